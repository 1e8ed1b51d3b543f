"""Whole cells against servers that behave, misbehave, hang and die. Deadlines are short; nothing is proved by waiting."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from server import Server, answers, serving, tokens
from wire import HEAD, chunk, event, text

from evenhand.boot import proc
from evenhand.drive import spread
from evenhand.drive.cell import CellResult, CellSpec, recover, run_cell
from evenhand.drive.decode import Read, reads_of
from evenhand.drive.loop import Progress, Rung, seal
from evenhand.drive.spill import Exchange
from evenhand.drive.stream import NO_STAMP, encode_request, kernel_stamps, resolve, stamp_ns
from evenhand.engines.base import Sampling
from evenhand.engines.openai import OpenAIDialect
from evenhand.scenario import Deadlines


def spec(url: str, folder: Path, **fields: Any) -> CellSpec:
    base: dict[str, Any] = {
        "leg": 1,
        "arm": "a",
        "cell": "ladder/c=1",
        "base_url": url,
        "dialect": OpenAIDialect(returns_ids=True),
        "model": "m",
        "prompts": [[1, 2, 3]],
        "sampling": Sampling(max_tokens=4),
        "concurrency": 1,
        "spill_path": str(folder / "rung-0.spill"),
        "processes": 1,
        "deadlines": Deadlines(connect_s=2, first_byte_s=5, silence_s=5, total_s=10),
    }
    return CellSpec(**{**base, **fields})


def run(url: str, folder: Path, **fields: Any) -> CellResult:
    return run_cell(spec(url, folder, **fields))


def outcomes(result: CellResult) -> list[tuple[str, str | None]]:
    return [(row.outcome, row.reason) for row in result.rows]


def test_a_closed_loop_keeps_its_connections(tmp_path: Path) -> None:
    with serving(answers()) as server:
        result = run(server.url, tmp_path, prompts=[[n, 2, 3] for n in range(12)], concurrency=3)
    assert outcomes(result) == [("ok", None)] * 12
    assert [row.key for row in result.rows] == [f"ladder/c=1#{n}" for n in range(12)]
    assert server.connections == 3
    assert (result.lag.max_in_flight, result.lag.processes) == (3, 1)
    assert {row.slot for row in result.rows} == {0, 1, 2}
    assert all(row.token_ids == [0, 1, 2, 3] and row.prompt_tokens == 3 for row in result.rows)
    assert result.lag.turnaround_p50_s is not None
    assert result.start_ns == min(row.send_ns or 0 for row in result.rows)
    assert not (tmp_path / "rung-0.spill").exists()


@pytest.mark.parametrize(("busy_ns", "together"), [(50_000_000, {4}), (0, {64})])
def test_what_is_finished_waits_for_a_quiet_moment_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy_ns: int, together: set[int]
) -> None:
    asked: set[int] = set()
    write = Rung._write_finished

    def watched(rung: Rung, most: int) -> None:
        asked.add(most)
        write(rung, most)

    def script(sock: socket.socket, number: int, request: bytes) -> None:
        time.sleep(0.08)  # a wait for the engine is no backlog
        sock.sendall(tokens(4))

    monkeypatch.setattr("evenhand.drive.loop._BUSY_NS", busy_ns)
    monkeypatch.setattr(Rung, "_write_finished", watched)
    with serving(script) as server:
        result = run(server.url, tmp_path, prompts=[[n] for n in range(6)], concurrency=2)
    assert outcomes(result) == [("ok", None)] * 6
    assert asked == together


def test_the_request_is_literal(tmp_path: Path) -> None:
    with serving(answers()) as server:
        result = run(server.url + "/v1/", tmp_path, headers={"Authorization": "Bearer k"})
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer k\r\n" in head + b"\r\n"
    sent = msgspec.json.decode(body)
    assert sent["prompt"] == [1, 2, 3]
    assert sent["temperature"] == 0
    assert result.rows[0].sampling["temperature"] == 0
    assert result.rows[0].sampling["max_tokens"] == 4
    assert "prompt" not in result.rows[0].sampling


def test_kernel_stamps_precede_our_own(tmp_path: Path) -> None:
    if not kernel_stamps():
        pytest.skip("this kernel gives no receive stamps")
    with serving(answers(20)) as server:
        result = run(server.url, tmp_path, prompts=[[1]] * 5)
    assert result.lag.stamp == "kernel"
    assert {row.stamp for row in result.rows} == {"kernel"}
    assert result.lag.lag_p50_s is not None
    assert result.lag.lag_p50_s > 0


def test_without_kernel_stamps_the_fallback_says_so(tmp_path: Path) -> None:
    with serving(answers()) as server:
        result = run(server.url, tmp_path, prompts=[[1]] * 3, stamp="user")
    assert outcomes(result) == [("ok", None)] * 3
    assert result.lag.stamp == "user"
    assert {row.stamp for row in result.rows} == {"user"}
    assert result.lag.lag_p50_s is None


@pytest.mark.parametrize("away", ["_tick", "_write_finished"])
def test_the_loop_counts_all_its_time_away_from_the_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: str) -> None:
    """Without kernel stamps it is all that is known of how late a read can be."""
    work = getattr(Rung, away)

    def slow(rung: Rung, *args: Any) -> Any:
        time.sleep(0.03)
        return work(rung, *args)

    monkeypatch.setattr(Rung, away, slow)
    monkeypatch.setattr("evenhand.drive.loop.TICK_NS", 1)
    monkeypatch.setattr("evenhand.drive.loop._BUSY_NS", -1)  # what is finished is written at once: the last pass is not counted
    with serving(answers()) as server:
        result = run(server.url, tmp_path, prompts=[[1]] * 3, stamp="user")
    assert outcomes(result) == [("ok", None)] * 3
    assert result.lag.loop_lag_p99_s is not None
    assert result.lag.loop_lag_p99_s >= 0.03


def test_reads_are_sealed_with_a_stamp_or_without() -> None:
    exchange = Exchange(index=0, key="k", prompt_sha256="", prompt_tokens_asked=1, offset_ns=1_000_000_000)
    stamp = struct.pack("=qq", 1, 40)
    sealed = seal(exchange, [50, stamp, b"abc", 60, NO_STAMP, b"", 70, stamp, b"de"])
    assert reads_of(sealed) == ([Read(50, 40, b"abc"), Read(60, None, b""), Read(70, 40, b"de")], False)
    assert reads_of(seal(exchange, []))[0] == []


def test_b24_a_silent_stream_is_one_failed_row(tmp_path: Path) -> None:
    def script(sock: socket.socket, number: int, request: bytes) -> None:
        if b'"prompt":[3]' in request:
            sock.sendall(HEAD + chunk(event(text("x", token_ids=[7]))))
            sock.recv(1)  # until the client gives up
        else:
            sock.sendall(tokens(4))

    with serving(script) as server:
        limits = Deadlines(connect_s=5, first_byte_s=10, silence_s=0.2, total_s=10)
        result = run(server.url, tmp_path, prompts=[[0], [1], [2], [3]], concurrency=4, deadlines=limits)
    assert outcomes(result)[:3] == [("ok", None)] * 3
    hung = result.rows[3]
    assert (hung.outcome, hung.reason) == ("failed", "read timeout: silent for 0.2 s")
    assert hung.token_ids == [7]
    assert hung.end_ns is not None
    assert hung.first_token_ns is not None
    assert 200_000_000 <= hung.end_ns - hung.first_token_ns <= 600_000_000


def test_an_endless_answer_is_cut_and_the_others_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenhand.drive.loop.MAX_ANSWER_BYTES", 4 << 20)
    flood = chunk(event(text("x" * 60_000)))

    def script(sock: socket.socket, number: int, request: bytes) -> None:
        if b'"prompt":[1]' in request:
            with contextlib.suppress(OSError):
                sock.sendall(HEAD)
                while True:
                    sock.sendall(flood)
        else:
            sock.sendall(tokens(4))

    with serving(script) as server:
        result = run(server.url, tmp_path, prompts=[[0], [1], [2]], concurrency=3)
    assert sorted(row.outcome for row in result.rows) == ["failed", "ok", "ok"]
    (cut,) = [row for row in result.rows if row.outcome == "failed"]
    assert cut.reason == "the answer is longer than 4 MiB"


def test_b25_every_deadline_ends_in_a_row_with_its_name(tmp_path: Path) -> None:
    def script(sock: socket.socket, number: int, request: bytes) -> None:
        if number == 0:
            sock.recv(1)
        else:
            sock.sendall(HEAD)
            while True:
                sock.sendall(chunk(b":\n\n"))
                if sock.recv(0) == b"" and done.wait(0.01):
                    return

    done = threading.Event()
    with serving(script) as server:
        limits = Deadlines(connect_s=5, first_byte_s=0.1, silence_s=5, total_s=0.3)
        result = run(server.url, tmp_path, prompts=[[0], [1]], deadlines=limits)
        done.set()
    assert outcomes(result) == [
        ("failed", "first byte timeout: nothing came within 0.1 s"),
        ("failed", "total timeout: not finished within 0.3 s"),
    ]


def test_b25_the_defaults_cut_no_valid_slow_request() -> None:
    limits = Deadlines()
    assert limits.first_byte_s >= 600
    assert limits.silence_s > 6
    assert limits.total_s >= 600


def test_b26_every_slot_is_in_flight_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(128, timeout=30)

    def script(sock: socket.socket, number: int, request: bytes) -> None:
        together.wait()  # nobody is answered before all 128 are here
        sock.sendall(tokens(1))

    with serving(script) as server:
        result = run(server.url, tmp_path, prompts=[[1]] * 128, concurrency=128, deadlines=Deadlines())
    assert outcomes(result) == [("ok", None)] * 128
    assert (server.peak, result.lag.max_in_flight) == (128, 128)


def test_b26_a_limit_of_open_files_is_said_not_measured(tmp_path: Path) -> None:
    result = run("http://127.0.0.1:9", tmp_path, prompts=[[1]], concurrency=100_000_000)
    assert result.rows == []
    assert result.limit is not None
    assert result.limit.startswith("client limit")


def test_b27_no_proxy_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "localhost")
    with serving(answers()) as server:
        assert outcomes(run(server.url, tmp_path)) == [("ok", None)]


def test_a_server_that_closes_after_each_answer(tmp_path: Path) -> None:
    def script(sock: socket.socket, number: int, request: bytes) -> bool:
        sock.sendall(tokens(2).replace(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\n"))
        return False

    with serving(script) as server:
        result = run(server.url, tmp_path, prompts=[[1]] * 5, concurrency=2)
    assert outcomes(result) == [("ok", None)] * 5
    assert server.connections >= 5


def test_a_kept_connection_that_the_server_dropped_between_requests(tmp_path: Path) -> None:
    def script(sock: socket.socket, number: int, request: bytes) -> bool:
        sock.sendall(tokens(2))
        return number % 2 == 0

    with serving(script) as server:
        due = {"arrivals": "constant", "rate": 20.0}
        result = run(server.url, tmp_path, prompts=[[1]] * 6, concurrency=1, **due)
    assert outcomes(result) == [("ok", None)] * 6


def test_a_truncated_stream_and_a_reset_are_rows(tmp_path: Path) -> None:
    def script(sock: socket.socket, number: int, request: bytes) -> bool | None:
        if number == 0:
            sock.sendall(tokens(4)[:-40])
            return False
        if number == 1:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.close()
            raise OSError
        if number == 2:
            return False
        sock.sendall(tokens(4))
        return None

    with serving(script) as server:
        result = run(server.url, tmp_path, prompts=[[1]] * 4)
    reasons = [row.reason or "ok" for row in result.rows]
    assert reasons[0].startswith("truncated stream")
    assert reasons[1].startswith(("connection lost", "the server closed"))
    assert reasons[2] == "the server closed the connection before the first byte"
    assert reasons[3] == "ok"
    assert len(server.requests) == 4  # nothing was sent twice


def test_http_errors_are_rows_and_the_connection_goes_on(tmp_path: Path) -> None:
    body = b'{"object":"error","message":"too long","code":400}'

    def script(sock: socket.socket, number: int, request: bytes) -> None:
        if number == 0:
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        else:
            sock.sendall(tokens(4))

    with serving(script) as server:
        result = run(server.url, tmp_path, prompts=[[1]] * 2)
    assert outcomes(result) == [("failed", "HTTP 400"), ("ok", None)]
    assert result.rows[0].error_text == "too long"
    assert server.connections == 1


def test_nobody_listening_is_a_row_per_request(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    result = run(f"http://127.0.0.1:{port}", tmp_path, prompts=[[1]] * 3, concurrency=2)
    assert [row.reason for row in result.rows] == ["connect: Connection refused"] * 3
    assert {row.send_ns for row in result.rows} == {None}


def test_an_engine_that_dies_ends_the_cell(tmp_path: Path) -> None:
    dead = threading.Event()

    def script(sock: socket.socket, number: int, request: bytes) -> bool:
        if number < 2:
            sock.sendall(tokens(1))
            return True
        dead.set()
        return False

    with serving(script) as server:
        result = run(
            server.url,
            tmp_path,
            prompts=[[1]] * 50,
            concurrency=2,
            alive=lambda: "the engine exited with code 1" if dead.is_set() else None,
        )
    assert result.died == "the engine exited with code 1"
    assert [row.outcome for row in result.rows].count("ok") == 2
    assert 3 <= len(result.rows) < 50
    assert not result.interrupted


def test_a_death_that_is_seen_outside_the_loop_ends_a_cell_that_hangs(tmp_path: Path) -> None:
    dead = threading.Event()

    def script(sock: socket.socket, number: int, request: bytes) -> None:
        if number < 2:
            sock.sendall(tokens(1))
        else:
            dead.set()
            sock.recv(1)  # until the client gives up

    with serving(script) as server:
        result = run(
            server.url,
            tmp_path,
            prompts=[[1]] * 50,
            concurrency=2,
            processes="auto",
            alive=lambda: "the engine exited" if dead.is_set() else None,
        )
    assert result.died == "the engine exited"
    assert sorted(row.reason or "ok" for row in result.rows) == ["ok", "ok", "the engine exited", "the engine exited"]
    assert max((row.end_ns or 0) - (row.send_ns or 0) for row in result.rows) < 2e9


def test_stop_leaves_in_flight_requests_as_interrupted(tmp_path: Path) -> None:
    stop = threading.Event()

    def script(sock: socket.socket, number: int, request: bytes) -> None:
        if number < 3:
            sock.sendall(tokens(1))
        else:
            sock.sendall(HEAD + chunk(event(text("x", token_ids=[7]))))
            stop.set()
            sock.recv(1)

    with serving(script) as server:
        result = run(server.url, tmp_path, prompts=[[1]] * 50, stop=stop)
    assert result.interrupted
    assert outcomes(result) == [*[("ok", None)] * 3, ("interrupted", "interrupted")]
    assert result.rows[3].token_ids in ([7], None)


def test_a_stop_before_the_start_sends_nothing(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with serving(answers()) as server:
        result = run(server.url, tmp_path, stop=stop)
    assert result.interrupted
    assert (result.rows, server.requests) == ([], [])


def test_open_loop_keeps_the_scheduled_time(tmp_path: Path) -> None:
    with serving(answers()) as server:
        result = run(server.url, tmp_path, prompts=[[1]] * 8, concurrency=4, arrivals="burst", rate=80.0, burst=4)
    assert outcomes(result) == [("ok", None)] * 8
    due = [row.scheduled_ns or 0 for row in result.rows]
    assert [at - due[0] for at in due] == [0] * 4 + [50_000_000] * 4
    assert all((row.send_ns or 0) >= (row.scheduled_ns or 0) for row in result.rows)
    assert result.lag.send_lag_max_s is not None
    assert result.lag.turnaround_p50_s is None


def test_b22_open_loop_with_one_connection_sends_late_and_says_so(tmp_path: Path) -> None:
    release = threading.Event()

    def script(sock: socket.socket, number: int, request: bytes) -> None:
        if number == 0:
            release.wait(0.1)
        sock.sendall(tokens(1))

    with serving(script) as server:
        result = run(server.url, tmp_path, prompts=[[1]] * 3, concurrency=1, arrivals="constant", rate=1000.0)
    first, second, third = result.rows
    assert second.scheduled_ns is not None
    assert second.send_ns is not None
    assert second.send_ns >= (first.end_ns or 0)
    assert result.lag.send_lag_max_s == pytest.approx((second.send_ns - second.scheduled_ns) / 1e9, abs=0.05)
    assert third.outcome == "ok"


def test_progress_is_told(tmp_path: Path) -> None:
    seen: list[Progress] = []
    with serving(answers()) as server:
        run(server.url, tmp_path, prompts=[[1]] * 8, concurrency=4, arrivals="constant", rate=20.0, on_progress=seen.append)
    assert seen
    assert seen[-1].planned == 8
    assert seen[-1].cell == "ladder/c=1"


def test_what_the_harness_does_meanwhile_holds_up_no_read(tmp_path: Path) -> None:
    """A liveness check may take seconds (an attached server's is a GET), and so may a line on a slow terminal."""
    asked: list[int] = []

    def slow(*_: object) -> None:
        asked.append(len(asked))
        time.sleep(0.4)

    def script(sock: socket.socket, number: int, request: bytes) -> None:
        time.sleep(0.05)
        sock.sendall(tokens(4))

    with serving(script) as server:
        result = run(server.url, tmp_path, prompts=[[n] for n in range(20)], processes="auto", alive=slow, on_progress=slow)
    assert outcomes(result) == [("ok", None)] * 20
    assert asked
    assert result.lag.turnaround_max_s is not None
    assert result.lag.turnaround_max_s < 0.2


def test_several_processes_share_one_queue(tmp_path: Path) -> None:
    with serving(answers()) as server:
        result = run(server.url, tmp_path, prompts=[[n] for n in range(20)], concurrency=5, processes=2)
    assert outcomes(result) == [("ok", None)] * 20
    assert [row.index for row in result.rows] == list(range(20))
    assert {row.slot for row in result.rows} <= set(range(5))
    assert result.lag.processes == 2
    assert sorted(msgspec.json.decode(r.partition(b"\r\n\r\n")[2])["prompt"][0] for r in server.requests) == list(range(20))


def test_several_processes_stop_together(tmp_path: Path) -> None:
    stop = threading.Event()

    def script(sock: socket.socket, number: int, request: bytes) -> None:
        sock.sendall(HEAD + chunk(event(text("x", token_ids=[7]))))
        if number == 3:
            stop.set()
        sock.recv(1)

    with serving(script) as server:
        result = run(server.url, tmp_path, prompts=[[1]] * 20, concurrency=4, processes=2, stop=stop)
    assert result.interrupted
    assert outcomes(result) == [("interrupted", "interrupted")] * 4


@pytest.mark.parametrize("processes", [1, 2])
def test_a_client_process_that_is_killed_is_a_limit_of_the_client(tmp_path: Path, processes: int) -> None:
    """The others are told to stop, but nobody interrupted the run."""

    def script(sock: socket.socket, number: int, request: bytes) -> None:
        if number == 4:
            workers = [one for one in proc.below([os.getpid()]) if one.ppid == os.getpid()]
            os.kill(workers[-1].pid, signal.SIGKILL)
        if number >= 4:
            sock.recv(1)
        sock.sendall(tokens(4))

    with serving(script) as server:
        asked = "auto" if processes == 1 else processes
        result = run(server.url, tmp_path, prompts=[[1]] * 20, concurrency=4, processes=asked)
    assert result.limit == "client limit: a client process ended without figures"
    assert not result.interrupted


def test_a_client_process_that_is_late_is_a_limit_of_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = spread._start

    def stuck(*args: Any) -> subprocess.Popen[bytes]:
        process = start(*args)
        process.send_signal(signal.SIGSTOP)
        return process

    monkeypatch.setattr(spread, "_READY_S", -0.9)
    monkeypatch.setattr(spread, "_start", stuck)
    with serving(answers()) as server:
        result = run(server.url, tmp_path, processes="auto", deadlines=Deadlines(connect_s=1))
    assert result.limit == "client limit: a client process was not ready within 0.1 s"
    assert not result.interrupted
    assert (result.rows, server.requests) == ([], [])


def certificate(folder: Path) -> ssl.SSLContext:
    key, cert = folder / "key.pem", folder / "cert.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", *names],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("no openssl to make a certificate with")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def test_https_is_stamped_by_its_ciphertext(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answers(10), certificate(tmp_path)) as server:
        with monkeypatch.context() as trusting:
            trusting.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
            result = run(server.url, tmp_path, prompts=[[n] * 3000 for n in range(6)], concurrency=2)
        refused = run(server.url, tmp_path, prompts=[[1]])
    assert outcomes(result) == [("ok", None)] * 6
    assert result.rows[0].token_ids == list(range(10))
    assert result.lag.stamp == ("kernel" if kernel_stamps() else "user")
    assert refused.rows[0].reason is not None
    assert refused.rows[0].reason.startswith("TLS: ")


KILLED = """
import os, sys, threading
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_cell import run
run({url!r}, Path({folder!r}), prompts=[[1]] * 10)
"""


def test_a_kill_loses_no_finished_request(tmp_path: Path) -> None:
    spill = tmp_path / "rung-0.spill"
    child: list[subprocess.Popen[bytes]] = []
    started = threading.Event()

    def script(sock: socket.socket, number: int, request: bytes) -> None:
        if number < 5:
            sock.sendall(tokens(4))
        else:  # nothing more comes, so the client has nothing to do but write what is finished
            started.wait(10)
            last = time.monotonic() + 10
            while len(recover(spill, OpenAIDialect(returns_ids=True))) < 5 and time.monotonic() < last:
                time.sleep(0.001)
            os.kill(child[0].pid, signal.SIGKILL)
            sock.recv(1)

    with serving(script) as server:
        code = KILLED.format(tests=str(Path(__file__).parent), url=server.url, folder=str(tmp_path))
        child.append(subprocess.Popen([sys.executable, "-c", code]))
        started.set()
        child[0].wait()
    rows = recover(tmp_path / "rung-0.spill", OpenAIDialect(returns_ids=True))
    assert [row.index for row in rows] == [0, 1, 2, 3, 4]
    assert {row.outcome for row in rows} == {"ok"}
    assert rows[0].token_ids == [0, 1, 2, 3]
    spill.write_bytes(spill.read_bytes()[:-5])
    assert recover(spill, OpenAIDialect(returns_ids=True)) == rows[:-1]


def test_recovering_nothing(tmp_path: Path) -> None:
    assert recover(tmp_path / "none.spill", OpenAIDialect(returns_ids=True)) == []
    (tmp_path / "empty.spill").write_bytes(b"\x05\0")
    assert recover(tmp_path / "empty.spill", OpenAIDialect(returns_ids=True)) == []


def test_a_large_spill_decodes_the_same_in_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answers(30)) as server:
        run(server.url, tmp_path, prompts=[[n] for n in range(9)], concurrency=3, keep_spill=True)
    from evenhand.drive import cell

    path, dialect = tmp_path / "rung-0.spill", OpenAIDialect(returns_ids=True)
    here = recover(path, dialect)
    monkeypatch.setattr(cell, "DECODE_APART_BYTES", 1000)
    monkeypatch.setattr(cell, "_cores", lambda: 3)
    assert recover(path, dialect) == here
    assert len(here) == 9


def test_addresses() -> None:
    target = resolve("http://user:secret@127.0.0.1:81/x/v1/")
    assert (target.host_header, target.prefix, target.address[1]) == ("127.0.0.1:81", "/x/v1", 81)
    assert encode_request(target, "/v1/completions", b"{}").startswith(b"POST /x/v1/v1/completions HTTP")
    assert encode_request(resolve("http://127.0.0.1:81/v1"), "/v1/completions", b"{}").startswith(b"POST /v1/completions HTTP")
    with pytest.raises(ValueError, match="needs http"):
        resolve("127.0.0.1:80")


def test_stamps_of_control_messages() -> None:
    assert stamp_ns([]) == 0
    assert stamp_ns([(1, 2, b"x")]) == 0


__all__ = ["Server"]
