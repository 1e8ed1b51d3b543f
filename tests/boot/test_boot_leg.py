"""A leg from start to row, with real processes and real ports."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from boot_fake import Dialect, Facts, Toy

from evenhand.boot import port as ports
from evenhand.boot import proc
from evenhand.boot.guardian import Guardian
from evenhand.boot.leg import LegName, Running, boot_leg, warnings_in
from evenhand.engines.base import PoolRequest, Post, Settings
from evenhand.engines.registry import engine
from evenhand.records import LegRow
from evenhand.scenario import Deadlines
from evenhand.tiny_model import write_tiny_model

Boot = Callable[..., Running | LegRow]


def running(found: Running | LegRow) -> Running:
    assert isinstance(found, Running), found
    return found


def failed(found: Running | LegRow) -> LegRow:
    assert isinstance(found, LegRow)
    return found


def test_a_leg_from_start_to_row(boot: Boot, tmp_path: Path) -> None:
    leg = running(boot(env={"CACHE": "x"}, settings={"seats": 4, "env": {"TOY_FAST": "1", "TOY_TOKEN": "hush-hush-hush"}}))
    assert leg.check() is None
    assert leg.config == {"fast": "1"}
    assert leg.pool is not None
    assert leg.pool.blocks == 40
    assert leg.base_url == f"http://127.0.0.1:{leg.port}"
    row = leg.stop()
    assert (row.outcome, row.reason, row.exit_code, row.survivors) == ("ok", None, -signal.SIGTERM, [])
    assert row.start_ns is not None
    assert row.ready_ns is not None
    assert row.end_ns is not None
    assert row.start_ns < row.ready_ns < row.end_ns
    assert row.figures == {"load_s": 1.5}
    assert (row.log_errors, row.seats_requested, row.seats_resolved) == (0, 4, 4)
    assert row.env == {"TOY_FAST": "1", "TOY_MODE": "1", "TOY_TOKEN": "<redacted>"}
    assert leg.stop() is row
    assert "asked=1" in (tmp_path / "000-A" / "engine.log").read_text()  # one probe request, no more


def test_b56_a_refusal_becomes_a_row_at_once(boot: Boot) -> None:
    """B56: the reason is one line in the log; the row must not wait for a deadline."""
    say = [
        "INFO loading weights",
        "ERROR ValueError: requested length 9000 needs more cache than the 3600 tokens available",
    ]
    row = failed(boot({"say": say, "exit": 1}, ready_s=600.0))
    assert (row.outcome, row.exit_code) == ("refused", 1)
    assert "needs more cache than the 3600 tokens" in (row.reason or "")
    assert row.refusal is not None
    assert row.pool is None
    assert row.ready_ns is None
    assert row.log_errors == 1
    assert running(boot()).stop().outcome == "ok"  # the next configuration still runs


def test_an_early_exit_names_the_code_and_the_end_of_the_log(boot: Boot) -> None:
    row = failed(boot({"say": ["no such flag \x1b[31m--x\x1b[0m", "--api-key sk-abcdefghijklmnopqrst"], "exit": 2}))
    assert (row.outcome, row.exit_code) == ("launch_failed", 2)
    assert row.reason == "code 2; its log ends: INFO loaded | no such flag --x | --api-key <redacted>"


def test_b58_ready_means_listed_and_a_token(boot: Boot) -> None:
    """B58: /health is 200 from the start, the list is empty, then completions fail, then it works."""
    leg = running(boot({"listed_s": 0.4, "token_s": 0.9}))
    assert leg.ready_ns - leg.start_ns >= 0.9e9
    assert leg.stop().outcome == "ok"


class Jumping:
    """A clock that ticks when it is read, until `jump` lets every deadline pass: nothing depends on the machine's speed."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.2
        return self.now

    def jump(self) -> None:
        self.now = 1e6


def jumping_toy(clock: Jumping, served: int = 0, requests: int = 0) -> Toy:
    """A toy whose clock jumps once its list was asked for, or a completion was, that many times."""

    class Counting(Facts):
        count = 0

        def served(self, http: Any) -> list[str]:
            self.count += 1
            if self.count == served:
                clock.jump()
            return super().served(http)

    class Asking(Dialect):
        count = 0

        def request(self, prompt: Any, sampling: Any, model: str, *, stream: bool = True) -> Post:
            self.count += 1
            if self.count == requests:
                clock.jump()
            return super().request(prompt, sampling, model)

    class Jumper(Toy):
        facts = Counting()

        def dialect(self, settings: Any, capabilities: Any) -> Dialect:
            return Asking()

    return Jumper()


@pytest.mark.parametrize(
    ("options", "jump", "words"),
    [
        ({"token_s": 1000}, {"requests": 2}, "not ready after 10000 s: a 1-token completion fails: HTTP 500 not yet"),
        ({"listed_s": 1000}, {"served": 1}, "it lists no model yet"),
        ({"hang": True}, {"requests": 1}, "a 1-token completion has not ended"),
    ],
)
def test_b58_the_deadline_says_what_was_missing(boot: Boot, options: Any, jump: Any, words: str) -> None:
    """B58: never ready is a row that says which part was never ready."""
    clock = Jumping()
    row = failed(boot(options, engine=jumping_toy(clock, **jump), clock=clock, ready_s=10_000.0))
    assert row.outcome == "launch_failed"
    assert words in (row.reason or "")


def test_b58_nobody_listens(boot: Boot) -> None:
    """B58: an engine that never opens its port."""
    row = failed(boot({"silent": True}, ready_s=0.2))
    assert "not ready after 0.2 s: nothing listens on its port" in (row.reason or "")


def test_a_death_during_the_first_completion_is_noticed(boot: Boot) -> None:
    row = failed(boot({"die_on_request": True}, ready_s=600.0))
    assert (row.outcome, row.exit_code) == ("launch_failed", 3)


def test_b86_a_wrong_model_name_stops_at_readiness(boot: Boot) -> None:
    """B86: the message names what was asked and what is served; nothing is timed."""
    row = failed(boot({"name": "toy"}, settings={"served_name": "other"}, ready_s=600.0))
    assert row.outcome == "launch_failed"
    assert row.reason == "it does not serve 'other'; it serves 'toy'"
    assert "asked=" not in (row.reason or "")


def test_b86_every_form_of_a_url_reaches_the_same_server(boot: Boot) -> None:
    """B86: with and without /v1 and the slash; an attached server is not ours to stop."""
    server = running(boot())
    for end in ("", "/", "/v1", "/v1/"):
        leg = running(boot(settings={"url": server.base_url + end}))
        assert leg.base_url == server.base_url
        assert leg.check() is None
        row = leg.stop()
        assert (row.outcome, row.argv, row.port, row.exit_code) == ("ok", [], None, None)
    assert server.check() is None
    assert server.stop().outcome == "ok"
    assert failed(boot(settings={"url": "ftp://x"})).reason == (
        "url: 'ftp://x' is no http or https URL; give one like http://127.0.0.1:8000"
    )


def test_a_key_goes_with_every_question_and_into_no_row(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EH_TEST_OPENER", "open-sesame")
    options = {"key": "open-sesame", "api_key_env": "EH_TEST_OPENER"}
    server = running(boot(options))
    leg = running(boot({"api_key_env": "EH_TEST_OPENER"}, settings={"url": server.base_url}))
    for found in (leg, server):
        assert found.check() is None
        assert found.pool is not None
        assert found.headers == {"Authorization": "Bearer open-sesame"}
        row = found.stop()
        assert row.outcome == "ok"
        assert b"open-sesame" not in msgspec.json.encode(row)
    monkeypatch.delenv("EH_TEST_OPENER")
    row = failed(boot({"api_key_env": "EH_TEST_OPENER"}, settings={"url": server.base_url}))
    assert (row.outcome, row.reason) == (
        "launch_failed",
        "options.api_key_env names EH_TEST_OPENER, which is not set: export it before the run.",
    )


def test_b54_a_busy_port_is_refused_before_launch(boot: Boot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B54: somebody takes our port with SO_REUSEPORT; our engine would bind all the same and share the connections."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        monkeypatch.setattr(ports, "free_port", lambda lock_dir: taken)
        row = failed(boot({"reuse_port": True}))
        assert row.outcome == "launch_failed"
        assert f"port {taken} is busy: pid {os.getpid()} (" in (row.reason or "")
        assert not (tmp_path / "000-A" / "engine.log").exists()


def test_b54_a_listener_that_joins_later_makes_the_leg_void(boot: Boot) -> None:
    """B54: at the end every listening socket must belong to our tree."""
    leg = running(boot({"reuse_port": True}))
    assert leg.port is not None
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", leg.port))
        other.listen()
        assert f"port {leg.port} is also listened on by pid {os.getpid()}" in (leg.check() or "")
        row = leg.stop()
    assert row.outcome == "void"
    assert str(os.getpid()) in (row.reason or "")


def test_b57_a_death_is_noticed_with_its_signal(boot: Boot) -> None:
    """B57: liveness comes from the process, not from how fast connections are refused."""
    leg = running(boot())
    assert leg.child is not None
    proc.send(leg.child.pid, leg.child.start_time, signal.SIGKILL)
    while leg.alive() is None:
        pass
    assert "signal 9" in (leg.alive() or "")
    row = leg.stop()
    assert (row.outcome, row.exit_code) == ("died", -9)
    assert row.reason == "code -9"


def test_b52_stop_leaves_nobody(boot: Boot, tmp_path: Path) -> None:
    """B52: one worker ignores SIGTERM, one called setsid; both hold a lock file."""
    leg = running(boot({"workers": ["stubborn", "away"]}))
    assert len(leg.tree()) == 3
    assert leg.stop().survivors == []
    for name in ("stubborn", "away"):
        with (tmp_path / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_workers_of_a_dead_engine_go_too(boot: Boot, tmp_path: Path) -> None:
    leg = running(boot({"workers": ["stubborn", "away"]}))
    assert leg.child is not None
    proc.send(leg.child.pid, leg.child.start_time, signal.SIGKILL)
    assert leg.stop().survivors == []
    for name in ("stubborn", "away"):
        with (tmp_path / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_b27_proxies_are_never_asked(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    """B27: readiness and control calls go straight to 127.0.0.1, and the engine does not inherit the proxy."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "localhost")
    leg = running(boot())
    assert leg.http.get("/metrics").status_code == 200
    assert not [name for name in leg.env if "proxy" in name.lower()]
    assert leg.stop().outcome == "ok"


def test_b53_a_request_to_stop_ends_a_start(boot: Boot) -> None:
    """B53: interrupted while the server is still loading: a row, and nobody left."""
    stop = threading.Event()

    class AtOnce(Facts):
        def fatal(self, log_tail: str) -> str | None:
            if "INFO loaded" in log_tail:
                stop.set()
            return None

    class Eager(Toy):
        facts = AtOnce()

    row = failed(boot({"silent": True, "workers": ["away"]}, ready_s=600.0, stop=stop, engine=Eager()))
    assert row.outcome == "interrupted"
    assert row.reason == "interrupted while starting: nothing listens on its port"
    assert row.survivors == []


def test_an_executable_that_is_not_there(boot: Boot) -> None:
    row = failed(boot(settings={"executable": "/nowhere/toy"}))
    assert (row.outcome, row.reason) == ("launch_failed", "/nowhere/toy cannot be started: No such file or directory")


def test_contradicting_settings(boot: Boot) -> None:
    assert failed(boot({"contradiction": True})).reason == "fast and slow contradict each other"


def test_fatal_words_in_a_living_engine(boot: Boot) -> None:
    row = failed(boot({"say": ["engine-fatal: it threw"], "silent": True}, ready_s=600.0))
    assert row.outcome == "launch_failed"
    assert (row.reason or "").startswith("engine-fatal; its log ends:")


def test_b61_unknown_variables_are_warnings() -> None:
    """B61: an engine that does not know a switch says so in its log."""
    text = "WARNING Unknown vLLM environment variable detected: VLLM_FAST\nfine\nmax_running_requests is capped to 3 by x\n"
    assert len(warnings_in(text)) == 2


def test_b61_each_arm_has_its_own_environment(boot: Boot) -> None:
    """B61: each arm is a fresh process with an explicit environment, and its effective configuration is read back."""
    rows = []
    for value in ("0", "1"):
        leg = running(boot(settings={"env": {"TOY_FAST": value}}))
        rows.append(leg.stop())
    assert [row.env["TOY_FAST"] for row in rows] == ["0", "1"]
    assert [row.config for row in rows] == [{"fast": "0"}, {"fast": "1"}]


def test_answers_are_bounded(boot: Boot) -> None:
    import httpx

    leg = running(boot())
    with pytest.raises(httpx.ReadError, match="longer than"):
        leg.http.get("/huge")
    leg.stop()


def test_the_guardian_dies_in_the_middle(boot: Boot, tmp_path: Path) -> None:
    leg = running(boot({"workers": ["away"]}))
    pid = leg._boot.guardian.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert leg.alive() is not None
    row = leg.stop()
    assert (row.outcome, row.exit_code) == ("died", -9)
    with (tmp_path / "away.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert running(boot()).stop().outcome == "ok"


def test_ports_are_given_back(boot: Boot) -> None:
    leg = running(boot())
    assert leg.port in ports._held
    leg.stop()
    assert leg.port not in ports._held


@pytest.mark.e2e
def test_the_embedded_engine_boots_and_goes(guardian: Guardian, tmp_path: Path) -> None:
    """The double of every other test: ready by the same proof, read back, gone."""
    model = tmp_path / "tiny"
    write_tiny_model(model, "dense")
    settings = Settings(model=str(model), served_name="tiny", seats=4, context=1024, pool=PoolRequest(blocks=200))
    leg = running(
        boot_leg(
            guardian, engine("reference"), settings, tmp_path / "000-A", LegName(leg=0, arm="A"), Deadlines(), lock_dir=tmp_path
        )
    )
    assert leg.check() is None
    assert leg.pool is not None
    assert leg.pool.blocks == 200
    assert leg.seats == 4
    row = leg.stop()
    assert (row.outcome, row.survivors, row.log_errors) == ("ok", [], 0)
