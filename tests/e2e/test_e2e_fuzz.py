"""A small budget of what tests/benchmarks/fuzz.py does for longer."""

from __future__ import annotations

import json
import re
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
    assert invoke("run", file, "--dry-run").exit_code in (0, 2)
    assert invoke("gate", file, "--dry-run").exit_code in (0, 2)


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
    assert invoke("judge", run).exit_code in range(5)


HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m'
FREE = frozenset(
    {
        "reason",
        "version",
        "text",
        "reasoning",
        "error_text",
        "finish_reason",
        "description",
        "source",
        "cold_reason",
        "cache_reset",
    }
    | {"settle_reason", "counters_reason", "tpot_reason", "argv", "inexpressible", "log_warnings", "command", "notes"}
)
"""Fields whose text comes from engines, machines and people."""


def poisoned(node: object, free: bool = False) -> object:
    """The same tree with a payload in every free text (a scenario's prompts have a `source` of two words)."""
    if isinstance(node, dict):
        inside = {"machine", "versions", "config", "env"}
        return {
            key: value if key == "prompts" else poisoned(value, free or key in FREE or key in inside)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [poisoned(value, free) for value in node]
    return HOSTILE if free and (node is None or isinstance(node, str)) else node


@pytest.mark.parametrize("which", [0, 1])
def test_no_text_of_a_run_folder_becomes_markup(folders: Folders, which: int) -> None:
    run = folders.fresh(folders.runs[which])
    for file in [run / "manifest.json", *run.rglob("cells.jsonl"), *run.rglob("legs.jsonl"), *run.rglob("requests.jsonl")]:
        lines = [file.read_text()] if file.suffix == ".json" else file.read_text().splitlines()
        file.write_text("\n".join(json.dumps(poisoned(json.loads(line))) for line in lines) + "\n")
    out = folders.home / f"markup-{which}"
    result = invoke("report", run, "--out", out)
    assert result.exit_code == 0, result.output
    judged = invoke("judge", run)
    assert "\x1b" not in judged.output
    pages = [p for folder in (out, run / "tables") for p in folder.rglob("*") if p.suffix in (".html", ".md", ".svg", ".csv")]
    assert any(page.suffix == ".html" for page in pages)
    for page in pages:
        text = page.read_text("utf-8")
        assert "\x1b" not in text, page
        text = re.sub(r"(?s)```sh.*?\n```", "", text)  # a fenced block shows what it holds, and nothing in it can close it
        if page.suffix != ".csv":
            found = re.search(r"(?<!\\)<(script>alert|img src=x)", text)
            assert found is None, (page, text[max(0, found.start() - 200) : found.end()])
