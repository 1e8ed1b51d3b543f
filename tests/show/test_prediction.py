"""`predict --from`: the run's own model, its types, and one sentence where there is none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from show_runs import rich_gate, store

from evenhand.load import shipped_folder
from evenhand.predict.pages import PredictError
from evenhand.show.judged import kept_model
from evenhand.store import MODEL_CONFIG, open_run


def test_a_run_brings_its_own_model(tmp_path: Path) -> None:
    made = rich_gate(1)
    made.manifest = msgspec.structs.replace(made.manifest, scenario=made.manifest.scenario | {"cache_dtype": "fp8"})
    run = store(made, tmp_path / "run")
    with pytest.raises(PredictError, match=r"kept no model-config.json .*; name a MODEL"):
        kept_model(open_run(run))
    config = json.loads((shipped_folder() / "models" / "4b-hybrid" / "config.json").read_text())
    (run / MODEL_CONFIG).write_text(json.dumps(config))
    assert kept_model(open_run(run)).cache_dtype == "fp8"
    assert kept_model(open_run(run), cache_dtype="bfloat16").cache_dtype == "bfloat16"
