"""Every fault the embedded engine can be told to have, seen from outside."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest

from .served import Child, ids_of, refuse, serve

pytestmark = pytest.mark.e2e


def faulty(folder: Path, dialect: str = "vllm", **faults: object):  # type: ignore[no-untyped-def]
    return serve(folder, options={"dialect": dialect, "faults": faults})


def raw(child: Child, tokens: int = 6) -> bytes:
    """Everything a request brings until the connection ends or falls silent."""
    body = httpx.Request("POST", "http://x/v1/completions", json=child.body(tokens=tokens)).content
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", child.port), 5) as wire:
        wire.sendall(head + body)
        wire.settimeout(0.4)
        found = b""
        while True:
            try:
                part = wire.recv(65_536)
            except (TimeoutError, ConnectionResetError):
                return found
            found += part
            if not part or found.endswith(b"0\r\n\r\n"):
                return found


def test_dies_at_a_request(tmp_path: Path) -> None:
    with faulty(tmp_path, die_at_request=2, after_tokens=2) as child:
        assert len(ids_of(child.stream())) == 6
        with pytest.raises(httpx.HTTPError):
            child.stream()
        assert child.process.wait(5) == -signal.SIGKILL


def test_a_dead_engine_behind_a_living_health(tmp_path: Path) -> None:
    with faulty(tmp_path, "vllm.cpp", engine_dies_at_request=2) as child:
        child.stream()
        chunks = child.stream()
        assert any(chunk.error for chunk in chunks)
        assert child.http.get("/health").status_code == 200
        assert child.http.post("/v1/completions", json=child.body()).status_code == 500
        assert child.adapter.facts.fatal(child.log) is not None
        assert child.process.poll() is None


def test_a_prompt_that_is_too_long_kills_vllm_cpp(tmp_path: Path) -> None:
    with serve(tmp_path, options={"dialect": "vllm.cpp"}, context=512) as child:
        assert child.adapter.facts.max_prompt_tokens(child.settings) is not None
        assert child.http.post("/v1/completions", json=child.body(600)).status_code == 500
        assert "engine-fatal: EngineCore busy loop threw" in child.log
        assert child.http.get("/health").status_code == 200


def test_a_pool_that_is_too_small_never_answers_in_vllm_cpp(tmp_path: Path) -> None:
    from evenhand.engines.base import PoolRequest

    with serve(tmp_path, options={"dialect": "vllm.cpp"}, block_tokens=16, pool=PoolRequest(blocks=64), context=8192) as child:
        with pytest.raises(httpx.ReadTimeout):
            child.http.post("/v1/completions", json=child.body(2000), timeout=0.3)
        assert child.http.get("/health").status_code == 200


def test_streams_that_go_wrong(tmp_path: Path) -> None:
    with faulty(
        tmp_path, stall_at_request=1, error_at_request=2, truncate_at_request=3, reset_at_request=4, after_tokens=2
    ) as child:
        silent = raw(child)
        assert silent.count(b'"token_ids":[') == 2
        assert b"[DONE]" not in silent
        failed = raw(child)
        assert b'{"error":{"message":"engine stopped"' in failed
        cut = raw(child)
        assert cut.endswith(b"0\r\n\r\n")
        assert b"[DONE]" not in cut
        assert b'"finish_reason":"length"' not in cut
        reset = raw(child)
        assert b"0\r\n\r\n" not in reset
        assert len(ids_of(child.stream())) == 6  # and the fifth is served
        state = child.state()
        assert state["in_flight"] == 0
        assert state["used_blocks"] == 0


def test_500_to_everything(tmp_path: Path) -> None:
    with faulty(tmp_path, always_500=True) as child:
        assert child.http.post("/v1/completions", json=child.body()).status_code == 500
        assert child.http.get("/v1/models").status_code == 200


def test_comments_while_a_stream_waits(tmp_path: Path) -> None:
    with serve(tmp_path, options={"clock": {"base_s": 0.15}, "faults": {"keepalive_s": 0.02}}) as child:
        content = child.http.post("/v1/completions", json=child.body(tokens=2)).content
        assert content.count(b": keep-alive\n\n") >= 2
        assert len(ids_of(child.decode(content))) == 2


def test_events_in_pieces(tmp_path: Path) -> None:
    with faulty(tmp_path, split_bytes=40) as child:
        assert len(ids_of(child.stream())) == 6


def test_batch_dependent_tokens_differ_only_in_company(tmp_path: Path) -> None:
    with faulty(tmp_path, batch_dependent=0.5) as child:
        alone = [ids_of(child.stream(30, 120, key)) for key in range(6)]
        assert alone == [ids_of(child.stream(30, 120, key)) for key in range(6)]
        found: dict[int, list[int]] = {}

        def ask(key: int) -> None:
            body = child.body(30, 120, key)
            with httpx.Client(base_url=f"http://127.0.0.1:{child.port}", trust_env=False) as http:
                found[key] = ids_of(child.decode(http.post("/v1/completions", json=body).content))

        threads = [threading.Thread(target=ask, args=(key,)) for key in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[key] for key in range(6)] != alone


def test_a_planted_token_and_a_leak(tmp_path: Path) -> None:
    with faulty(tmp_path) as child:
        plain = ids_of(child.stream(tokens=10))
    with faulty(tmp_path, plant_token=4, leak_blocks=1) as child:
        planted = ids_of(child.stream(tokens=10))
        assert [at for at in range(10) if plain[at] != planted[at]] == [4]
        assert child.state()["used_blocks"] == 1
        config = child.adapter.facts.config(child.http, child.log)
        assert config["reference.faults"] == {"plant_token": 4, "leak_blocks": 1}


@pytest.mark.parametrize(
    ("kind", "status", "sign"),
    [
        ("absent", 404, b"Not Found"),
        ("denied", 401, b"Unauthorized"),
        ("junk", 200, b"not an exposition"),
        ("nan", 200, b"} NaN"),
        ("huge", 200, b"evenhand_filler"),
    ],
)
def test_metrics_that_are_no_use(tmp_path: Path, kind: str, status: int, sign: bytes) -> None:
    with faulty(tmp_path, metrics=kind) as child:
        answer = child.http.get("/metrics")
        assert answer.status_code == status
        assert sign in answer.content
        assert (len(answer.content) > 10_000_000) == (kind == "huge")


def test_metrics_that_never_come(tmp_path: Path) -> None:
    with faulty(tmp_path, metrics="never") as child, pytest.raises(httpx.ReadTimeout):
        child.http.get("/metrics", timeout=0.3)


def test_metrics_that_are_slow(tmp_path: Path) -> None:
    with faulty(tmp_path, metrics_delay_s=0.4) as child:
        with pytest.raises(httpx.ReadTimeout):
            child.http.get("/metrics", timeout=0.1)
        assert child.http.get("/metrics").status_code == 200


def test_answers_that_end_early(tmp_path: Path) -> None:
    with faulty(tmp_path, eos_share=1.0) as child:
        short = child.stream(tokens=40, ignore_eos=False)
        assert [chunk.finish_reason for chunk in short if chunk.finish_reason] == ["stop"]
        assert len(ids_of(short)) == 20
        assert len(ids_of(child.stream(tokens=40))) == 40


def test_two_engines_behind_one_port(tmp_path: Path) -> None:
    with faulty(tmp_path, reuse_port=True) as child:
        second = {"faults": {"reuse_port": True}, "clock": {"base_s": 0.001}}
        with serve(tmp_path / "..", args=("--port", str(child.port)), options=second, wait=False) as other:
            until = time.monotonic() + 10
            while "Application startup complete" not in other.log and time.monotonic() < until:
                time.sleep(0.02)
            assert "Application startup complete" in other.log


def test_counters_start_again(tmp_path: Path) -> None:
    with faulty(tmp_path, restart_counters_at_request=2) as child:
        child.stream(tokens=30)
        child.stream(tokens=4)
        line = next(
            line for line in child.http.get("/metrics").text.splitlines() if line.startswith("vllm:generation_tokens_total")
        )
        assert line.endswith(" 4.0")


def test_ready_before_it_is(tmp_path: Path) -> None:
    """b58: health and an empty model list from the start, the model later, tokens later still."""
    with faulty(tmp_path, models_after_s=0.5, generate_after_s=1.0) as child:
        assert child.http.get("/health").status_code == 200
        assert child.adapter.facts.served(child.http) == []
        assert child.http.post("/v1/completions", json=child.body()).status_code == 500
        until = time.monotonic() + 10
        while not child.adapter.facts.served(child.http) and time.monotonic() < until:
            time.sleep(0.02)
        while child.http.post("/v1/completions", json=child.body()).status_code != 200 and time.monotonic() < until:
            time.sleep(0.02)
        assert len(ids_of(child.stream())) == 6


def test_words_and_an_exit_code_at_start(tmp_path: Path) -> None:
    """b56: a refusal in words that no pattern knows."""
    words = "INFO loading weights\nERROR ValueError: requested length 9000 needs more cache than the 3600 tokens available"
    code, log, adapter = refuse(tmp_path, options={"faults": {"boot_text": words}})
    found = adapter.facts.exit(code, log)
    assert (code, found.outcome) == (1, "refused")
    assert "needs more cache than the 3600 tokens" in found.reason
    assert refuse(tmp_path, options={"faults": {"boot_text": "Killed", "boot_exit_code": 137}})[0] == -signal.SIGKILL


def test_a_grandchild_and_a_deaf_ear(tmp_path: Path) -> None:
    with faulty(tmp_path, grandchild=True, ignore_sigterm=True) as child:
        (grandchild,) = psutil.Process(child.process.pid).children()
        try:
            assert os.getsid(grandchild.pid) == grandchild.pid
            child.process.terminate()
            assert len(ids_of(child.stream())) == 6
        finally:
            grandchild.kill()


def test_a_flood_in_the_log(tmp_path: Path) -> None:
    with faulty(tmp_path, flood_lines_per_s=20_000) as child:
        until = time.monotonic() + 10
        while child.log_path.stat().st_size < 500_000 and time.monotonic() < until:
            child.stream()
        assert child.log_path.stat().st_size >= 500_000


def test_a_busy_port_ends_in_words(tmp_path: Path) -> None:
    with faulty(tmp_path) as child:
        code, log, _ = refuse(tmp_path / "..", args=("--port", str(child.port)))
    assert code == 1
    assert "error while attempting to bind" in log
