"""The harness dies of SIGKILL, which nobody can handle: its guardian still takes a real vLLM down, with all its processes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from real_runs import processes_below, start, wait_until

from evenhand.store import open_run

pytestmark = pytest.mark.vllm

GONE_S = 10.0


def logged(out: Path, text: bytes) -> bool:
    """Whether the engine's log holds the text."""
    return any(text in log.read_bytes() for log in (out / "runs").rglob("engine.log"))


def in_a_rung(out: Path) -> bool:
    """Whether requests of the ladder are under way."""
    return b"ladder/c=1 starts" in (out / "stderr").read_bytes()


def starting(out: Path) -> bool:
    """Whether vLLM has started its engine's process and serves nobody yet."""
    return logged(out, b"Initializing a V1 LLM engine")


@pytest.mark.parametrize("moment", [starting, in_a_rung])
def test_no_process_is_left_ten_seconds_after_a_kill(vllm_env: Path, tmp_path: Path, moment: Callable[[Path], bool]) -> None:
    harness = start(tmp_path, "run", "vllm-cpu-tiny")
    try:
        wait_until(lambda: moment(tmp_path) or harness.poll() is not None, 180)
        below = psutil.Process(harness.pid).children(recursive=True)
        engine = processes_below(tmp_path)
        assert len(engine) >= 2, engine
        assert set(engine) <= {process.pid for process in below}
    finally:
        harness.send_signal(signal.SIGKILL)
    assert harness.wait() == -signal.SIGKILL
    took_s = wait_until(lambda: not processes_below(tmp_path) and not any(alive(process) for process in below), GONE_S)
    print(f"{len(engine)} engine processes and {len(below)} below the harness were gone {took_s:.1f} s after the kill")
    (folder,) = (tmp_path / "runs").iterdir()
    assert open_run(folder).partial


def alive(process: psutil.Process) -> bool:
    """Whether it still runs (a zombie does not)."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
