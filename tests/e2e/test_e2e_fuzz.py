"""A small budget of what tests/benchmarks/fuzz.py does for longer."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzing import FILES, Folders, invoke, mangled_rows, scenario_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.e2e
SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("fuzz"))


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(content=scenario_files())
def test_a_hostile_scenario_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "s.toml"
    file.write_bytes(content)
    invoke("run", file, "--dry-run")
    invoke("gate", file, "--dry-run")


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(data=st.data(), name=st.sampled_from(FILES), which=st.integers(0, 1), killed=st.booleans())
def test_a_hostile_run_folder_is_judged_or_refused(
    folders: Folders, data: st.DataObject, name: str, which: int, killed: bool
) -> None:
    run = folders.fresh(folders.runs[which])
    (run / name).write_bytes(data.draw(mangled_rows(run / name)))
    if killed:
        text = (run / "manifest.json").read_bytes()
        (run / "manifest.json").write_bytes(text.replace(b'"finished"', b'"running"'))
    invoke("judge", run)
