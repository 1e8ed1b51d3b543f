"""The harness dies of SIGKILL, which nobody can handle: its guardian still takes a real vLLM down, with all its processes."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest
from real_runs import processes_below, settings, start, wait_until

from evenhand.store import open_run

pytestmark = pytest.mark.vllm

GONE_S = 10.0

STARTING = {
    "its first line": b"vLLM",
    "its engine's process begins": b"Initializing a V1 LLM engine",
    "its cache is laid out": b"KV cache size",
}
"""Moments of a start-up, and the words in vLLM's log that tell them: before, amid and after the model is loaded."""

MEASURING = ["ladder/c=1", "ladder/c=4", "pressure/12000"]
"""Cells during which the harness dies."""


def killed(out: Path, told: bytes, where: str, after_s: float = 0.0) -> int:
    """Kill the harness once `told` stands in a file of that name. Returns how many processes its engine had by then."""
    harness = start(out, "run", "vllm-cpu-tiny", *settings(ladder__concurrency="1,4", pressure__prompt_tokens="12000"))
    try:
        wait_until(lambda: harness.poll() is not None or any(told in file.read_bytes() for file in out.rglob(where)), 180)
        time.sleep(after_s)
        assert harness.poll() is None, (out / "stderr").read_text("utf-8")
        below = psutil.Process(harness.pid).children(recursive=True)
        engine = processes_below(out)
        assert set(engine) <= {process.pid for process in below}
    finally:
        harness.send_signal(signal.SIGKILL)
    assert harness.wait() == -signal.SIGKILL
    took_s = wait_until(lambda: not processes_below(out) and not any(alive(process) for process in below), GONE_S)
    print(f"{len(engine)} engine processes and {len(below)} below the harness were gone {took_s:.1f} s after the kill")
    return len(engine)


@pytest.mark.parametrize("moment", STARTING)
def test_a_kill_during_start_up_leaves_no_process_after_ten_seconds(vllm_env: Path, tmp_path: Path, moment: str) -> None:
    assert killed(tmp_path, STARTING[moment], "engine.log") >= 1
    (folder,) = (tmp_path / "runs").iterdir()
    run = open_run(folder)
    assert run.partial
    assert not run.cells


@pytest.mark.parametrize("cell", MEASURING)
def test_a_kill_during_a_rung_leaves_no_process_after_ten_seconds(vllm_env: Path, tmp_path: Path, cell: str) -> None:
    # a quarter of a second into the cell its requests are under way
    assert killed(tmp_path, f'"what":"cell","leg":0,"detail":"{cell}"'.encode(), "events.jsonl", after_s=0.25) >= 2
    (folder,) = (tmp_path / "runs").iterdir()
    run = open_run(folder)
    assert run.partial
    assert [row.cell for row in run.cells] == MEASURING[: MEASURING.index(cell)]


def alive(process: psutil.Process) -> bool:
    """Whether it still runs (a zombie does not)."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
