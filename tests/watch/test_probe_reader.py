"""Reading a probe's log, whole or torn."""

import json
from pathlib import Path
from typing import Any

from evenhand.watch.probe_reader import exact_peak, read

ON = {
    "probe": "on",
    "version": "0.26.0",
    "missing": [],
    "pid": 1,
    "blocks": 899,
    "groups": [{"kind": "state", "block_tokens": 272}],
}


def step(t_ns: int, n: int, used: int) -> dict[str, Any]:
    return {
        "t_ns": t_ns,
        "step": n,
        "used": used,
        "free": 899 - used,
        "running": 1,
        "waiting": 0,
        "preemptions": 0,
        "evictions": 0,
    }


def log(folder: Path, *rows: dict[str, Any], tail: str = "") -> Path:
    path = folder / "probe.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    return path


def test_a_whole_log(tmp_path: Path) -> None:
    request = {"t_ns": 5, "request": "r", "computed": 9, "attention": 1, "state": [2], "kept": None}
    cost = {"probe": "cost", "steps": 2, "own_ns": 3, "step_ns": 300}
    early = {"probe": "cost", "steps": 1, "own_ns": 2, "step_ns": 2}
    found = read(log(tmp_path, ON, request, early, step(10, 1, 70), step(20, 2, 79), step(30, 3, 79), step(40, 4, 0), cost))
    assert (found.status, found.version, found.usable_blocks) == ("on", "0.26.0", 899)
    assert found.requests == [request]
    assert found.cost_share == 0.01
    assert found.warnings == []
    peak = exact_peak(found, 0, 100)
    assert peak is not None
    assert (peak["used"], peak["step"]) == (79, 2), "the first of equals"
    assert exact_peak(found, 35, 100) == step(40, 4, 0)
    assert exact_peak(found, 50, 100) is None, "no step is no peak, not 0"


def test_a_row_cut_by_a_kill_is_dropped_without_a_word(tmp_path: Path) -> None:
    found = read(log(tmp_path, ON, step(10, 1, 5), tail='{"t_ns":20,"st'))
    assert [row["step"] for row in found.steps] == [1]
    assert found.warnings == []
    assert found.cost_share is None


def test_no_log_is_absent(tmp_path: Path) -> None:
    assert read(tmp_path / "probe.jsonl").status == "absent"
    assert read(log(tmp_path)).status == "absent"


def test_off_says_what_was_missing_and_keeps_the_rows_before(tmp_path: Path) -> None:
    off = {"probe": "off", "version": "0.40.0", "missing": ["BlockPool.num_gpu_blocks"]}
    found = read(log(tmp_path, ON, step(10, 1, 5), off))
    assert found.status == "off"
    assert len(found.steps) == 1
    assert found.warnings == ["the probe turned itself off on vLLM 0.40.0: BlockPool.num_gpu_blocks not as expected"]


def test_lost_figures_drops_and_junk_are_warnings(tmp_path: Path) -> None:
    dropped = {"probe": "dropped", "rows": 7}
    found = read(log(tmp_path, {**ON, "missing": ["BlockPool.x"]}, dropped, tail="junk\n"))
    assert found.dropped_rows == 7
    assert len(found.warnings) == 3
