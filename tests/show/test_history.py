"""One metric over runs: the list, the noise, and which changes leave it."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from show_runs import ladder_run, rich_gate, store

from evenhand.records import Manifest
from evenhand.show.history import Entry, Figure, _setting, changes, draw, history, history_table, noise
from evenhand.show.table import SIMULATED, as_text
from evenhand.store import StoreError

EVIDENCE = Path(__file__).parents[2] / "results" / "evidence"


def entry(run: str, *values: float, setting: str = "s") -> Entry:
    figures = [Figure(run=run, arm="a", cell="c", build=run, value=v) for v in values]
    return Entry(
        run=run, started_utc="", kind="run", status="finished", label=run, setting=setting, simulated=False,
        figures=figures,
    )  # fmt: skip


def test_noise_is_what_boots_of_one_build_differ_by() -> None:
    entries = [entry("one", 100.0, 102.0), entry("two", 100.0, 98.0)]
    sd, freedom = noise([f for e in entries for f in e.figures])
    expected = math.sqrt((math.log(1.02) ** 2 / 2 + math.log(1 / 0.98) ** 2 / 2) / 2)
    assert freedom == 2
    assert sd == pytest.approx(expected)
    assert noise([entry("one", 100.0).figures[0]]) == (None, 0)


def test_only_changes_beyond_the_noise_are_marked() -> None:
    entries = [
        entry("a", 100.0, 101.0, 99.5),
        entry("b", 100.5, 99.0, 100.0),
        entry("c", 120.0, 121.0, 119.0),
        entry("d", 120.5),
    ]
    sd, freedom = noise([f for e in entries for f in e.figures])
    assert changes(entries, sd, freedom) == [False, False, True, False]
    # a run without the figure is stepped over, and does not hide the change
    entries.insert(2, entry("none"))
    assert changes(entries, sd, freedom) == [False, False, False, True, False]


def test_another_machine_or_workload_is_no_change() -> None:
    entries = [entry("a", 100.0, 100.1), entry("b", 200.0, 200.1, setting="other")]
    sd, freedom = noise([f for e in entries for f in e.figures])
    assert changes(entries, sd, freedom) == [False, False]


def test_another_model_of_gpu_is_another_machine() -> None:
    (file,) = EVIDENCE.glob("h200-ladder-*/manifest.json")
    made = msgspec.json.decode(file.read_bytes(), type=Manifest)
    (gpu,) = made.machine["gpus"]

    def on(**changed: str) -> str:
        return _setting(msgspec.structs.replace(made, machine=made.machine | {"gpus": [gpu | changed]}))

    assert on(name="NVIDIA H100 80GB HBM3") != _setting(made)
    assert on(uuid="GPU-another-of-this-model") == _setting(made)


def test_without_a_repeated_boot_nothing_is_marked() -> None:
    assert changes([entry("a", 1.0), entry("b", 9.0)], None, 0) == [False, False]


def test_runs_of_a_folder(tmp_path: Path) -> None:
    for number in range(2):
        made = rich_gate(2)
        made.manifest = msgspec.structs.replace(made.manifest, started_utc=f"2026-01-0{number + 1}T00:00:00Z")
        store(made, tmp_path / f"run{number}")
    store(ladder_run(), tmp_path / "other")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    found = history(tmp_path, "ttft_p50", arm="new")
    assert (found.arm, found.cell) == ("new", "ladder/c=1")
    assert found.scenario == "rich", "of the newest run"
    assert [len(e.figures) for e in found.entries] == [2, 2]
    assert found.freedom == 3
    assert found.changed == [False, False]
    text = as_text(history_table(found))
    assert "scenario rich, arm new, cell ladder/c=1" in text
    assert "other scenarios (--scenario), with their runs: three (1)" in text
    assert "other arms (--arm): base" in text
    assert SIMULATED not in text, "the simulated run is of another scenario"
    assert "broken" in text
    assert "noise: boots of one build differ by" in text
    assert all(file.stat().st_size for file in draw(found, tmp_path / "out" / "h"))


def test_another_scenario_is_followed_when_named(tmp_path: Path) -> None:
    store(rich_gate(2), tmp_path / "a")
    store(ladder_run(), tmp_path / "b")
    found = history(tmp_path, "throughput", scenario="three")
    assert (found.scenario, found.arm, [e.run for e in found.entries]) == ("three", "clamped", ["b"])
    assert SIMULATED in as_text(history_table(found))
    assert history(tmp_path, "peak_pool").scenario == "rich", "of the newest run that has the metric"
    with pytest.raises(StoreError, match="no run of scenario 'x'; it holds"):
        history(tmp_path, "throughput", scenario="x")


def test_peaks_over_runs_are_in_blocks(tmp_path: Path) -> None:
    store(rich_gate(2), tmp_path / "run")
    found = history(tmp_path, "peak_pool", arm="new")
    assert [f.value for f in found.entries[0].figures] == [80, 80]
    assert found.sd == 0


def test_errors_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no metric named 'x'; the metrics are throughput"):
        history(tmp_path, "x")
    with pytest.raises(StoreError, match="holds no run folder"):
        history(tmp_path, "throughput")
    with pytest.raises(StoreError, match="is no folder"):
        history(tmp_path / "none", "throughput")
    store(ladder_run(), tmp_path / "run")
    with pytest.raises(StoreError, match="no run of scenario three has peak pool"):
        draw(history(tmp_path, "peak_pool"), tmp_path / "h")
