"""Whatever ends the harness, no engine outlives it, and the run that is left can be judged and finished."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import psutil
import pytest
from e2e_cli import SIGNALS, Child, Cli, cells, manifest, only, requests, text, wait_for, work

pytestmark = pytest.mark.e2e

GONE_S = 10.0
STUBBORN = {"grandchild": True, "ignore_sigterm": True}
SLOW = 0.08
"""seconds per step: a rung lasts long enough to be hit"""


def in_rung(cli: Cli, **more: object) -> Child:
    """A run that is in its second rung; the engine has a grandchild in a session of its own and ignores SIGTERM."""
    scenario = cli.scenario(text(faults=STUBBORN, concurrency=(4, 1), base_s=SLOW, requests=12, output=4, **more))  # type: ignore[arg-type]
    child = cli.start("run", scenario, "--out", "out")
    child.says("ladder/c=1 starts")
    spill = next((cli.folder / "out").glob("*/000-a"))
    wait_for(lambda: any(f.stat().st_size > 2000 for f in spill.glob("rung-*.spill")), "a finished request in the spill")
    assert len(child.look()) >= 3
    return child


def starting(cli: Cli) -> Child:
    """A run whose engine is still loading."""
    child = cli.start("run", cli.scenario(text(faults={**STUBBORN, "models_after_s": 60.0})), "--out", "out")
    wait_for(lambda: any("models_after_s" in " ".join(p.cmdline()) for p in child.look() if p.is_running()), "the engine")
    wait_for(lambda: len(cli.engines()) >= 3 and child.look(), "the engine's grandchild")
    return child


def all_gone(cli: Cli) -> None:
    wait_for(lambda: not cli.left(), f"the end of {cli.left()}", GONE_S)


def usable(cli: Cli) -> Path:
    """The interrupted run is judged: partial, exit code 2, strict JSON, no traceback."""
    run = only(cli.folder / "out")
    judged = cli.run("judge", run)
    assert judged.code == 2, judged
    assert "partial: the run is marked interrupted" in judged.out, judged
    assert "Traceback" not in judged.all
    assert manifest(run)["status"] == "interrupted"
    found = cells(run)
    assert found["a ladder/c=1"]["outcome"] in ("interrupted", "not_run"), found
    assert not list(run.glob("*/rung-*.spill"))
    return run


@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_b81_a_signal_in_a_rung_keeps_what_ended(cli: Cli, number: signal.Signals, group: bool) -> None:
    child = in_rung(cli)
    only_we_listen(child)
    child.signal(number, group=group)
    ended = child.end()
    assert ended.code == SIGNALS[number], ended
    assert "Traceback" not in ended.all, ended
    assert not cli.left(), "the harness has ended before its engine"
    run = usable(cli)
    first = [r for r in requests(run) if r["cell"] == "ladder/c=4"]
    second = [r for r in requests(run) if r["cell"] == "ladder/c=1"]
    assert [r["outcome"] for r in first] == ["ok"] * 12
    assert {r["outcome"] for r in second} == {"ok", "interrupted"}, "both the finished and the cut requests have rows"
    assert cells(run)["a ladder/c=1"]["planned"] == 12


def only_we_listen(child: Child) -> None:
    """Every listening socket of the engine's tree is on loopback, on one port, and nobody else can join it."""
    engines = [p for p in child.look() if "evenhand.engines.reference" in " ".join(p.cmdline())]
    sockets = [c.laddr for p in engines for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert {(one.ip, one.port) for one in sockets} == {("127.0.0.1", sockets[0].port)}
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError):
            other.bind(("127.0.0.1", sockets[0].port))


def test_b53_ctrl_c_twice_while_the_engine_loads(cli: Cli) -> None:
    child = starting(cli)
    child.signal(signal.SIGINT, group=True)
    child.signal(signal.SIGINT, group=True)
    ended = child.end()
    assert ended.code == 130, ended
    assert "Traceback" not in ended.all, ended
    assert not cli.left()
    run = usable(cli)
    assert "while starting" in cells(run)["a ladder/c=1"]["reason"]


def test_a_hangup_while_the_engine_loads(cli: Cli) -> None:
    child = starting(cli)
    child.signal(signal.SIGHUP, group=True)
    ended = child.end()
    assert ended.code == 129, ended
    assert not cli.left()
    usable(cli)


def test_kill_9_of_the_harness_in_a_rung_then_resume(cli: Cli) -> None:
    whole = cli.run(
        "run", cli.scenario(text(requests=12, output=4, faults={"grandchild": True}), "whole.toml"), "--out", "whole"
    )
    assert whole.fine, whole
    child = in_rung(cli)
    child.signal(signal.SIGKILL)
    child.end()
    all_gone(cli)
    run = only(cli.folder / "out")
    assert manifest(run)["status"] == "running"
    spilled = sum(f.stat().st_size for f in run.glob("*/rung-*.spill"))
    assert spilled
    usable(cli)
    recovered = [r for r in requests(run) if r["cell"] == "ladder/c=1"]
    assert recovered
    assert all(r["outcome"] == "ok" for r in recovered)
    resumed = cli.run("run", cli.folder / "s.toml", "--resume", run)
    assert resumed.fine, resumed
    assert work(run) == work(only(cli.folder / "whole"))
    assert manifest(run)["status"] == "finished"
    assert [one["status"] for one in manifest(run)["previous"]] == ["interrupted"]
    judged = cli.run("judge", run)
    assert judged.fine, judged
    assert "evidence changed" not in judged.all


def test_kill_9_of_the_harness_while_the_engine_loads(cli: Cli) -> None:
    child = starting(cli)
    child.signal(signal.SIGKILL)
    child.end()
    all_gone(cli)
    run = only(cli.folder / "out")
    judged = cli.run("judge", run)
    assert judged.code == 2, judged
    assert "Traceback" not in judged.all


@pytest.mark.parametrize("moment", ["rung", "start"])
def test_kill_9_of_the_guardian(cli: Cli, moment: str) -> None:
    child = in_rung(cli) if moment == "rung" else starting(cli)
    child.warden().kill()
    ended = child.end()
    assert ended.code == 2, ended
    assert "Traceback" not in ended.all, ended
    assert not cli.left()
    row = cells(only(cli.folder / "out"))["a ladder/c=1"]
    assert row["outcome"] == ("died" if moment == "rung" else "launch_failed"), row
    assert row["reason"]


def test_two_harnesses_at_once_and_the_end_of_one(cli: Cli) -> None:
    """Neither takes the other's port, folder or processes."""
    scenario = cli.scenario(text(base_s=0.05, output=4))
    one, two = (cli.start("run", scenario, "--out", "out") for _ in range(2))
    for child in (one, two):
        child.says("ladder/c=1 starts")
    one.signal(signal.SIGKILL)
    one.end()
    ended = two.end()
    assert ended.fine, ended
    runs = sorted((cli.folder / "out").glob("e2e-*"))
    assert len(runs) == 2
    states = sorted(manifest(run)["status"] for run in runs)
    assert states == ["finished", "running"]
    all_gone(cli)


def test_judge_leaves_a_run_alone_that_is_still_going_on(cli: Cli) -> None:
    child = in_rung(cli)
    run = only(cli.folder / "out")
    judged = cli.run("judge", run)
    assert judged.code == 2, judged
    assert "partial: the run is marked running" in judged.out
    resumed = cli.run("run", cli.folder / "s.toml", "--resume", run)
    assert resumed.code == 2
    assert "being written by another evenhand" in resumed.err, resumed
    assert list(run.glob("*/rung-*.spill"))
    ended = child.end()
    assert ended.fine, ended
    assert {row["outcome"] for row in cells(run).values()} == {"ok"}


def test_b54_two_engines_behind_one_port(cli: Cli) -> None:
    """A foreign server joins our engine's port by SO_REUSEPORT: what was measured then is void or died, never ok."""
    faults = {"reuse_port": True}
    child = cli.start("run", cli.scenario(text(faults=faults, base_s=0.1, output=4)), "--out", "out")
    child.says("ladder/c=1 starts")
    engines = [p for p in child.look() if "evenhand.engines.reference" in " ".join(p.cmdline())]
    port = next(c.laddr.port for p in engines for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", port))
        other.listen(64)
        ended = child.end()
    assert ended.code == 2, ended
    assert f"pid {os.getpid()}" in ended.out, ended
    found = cells(only(cli.folder / "out"))
    assert {row["outcome"] for row in found.values()} <= {"died", "void", "not_run"}, found
