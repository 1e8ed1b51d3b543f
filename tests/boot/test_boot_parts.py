"""The small parts of boot: device release, environment, redaction, log, URLs, ports."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.boot import environment as env
from evenhand.boot import log, port, proc, ready
from evenhand.boot.client import control_client
from evenhand.boot.device import Released, wait_released
from evenhand.boot.lock import holder, lock
from evenhand.engines import engine
from evenhand.engines.base import Capabilities, EngineError, Settings
from evenhand.engines.control import base_url

GIB = 2**30

# --- device -----------------------------------------------------------------------------------------------------------


def device(readings: list[float | None], limit_s: float = 60.0, step_s: float = 2.0) -> tuple[Released, float]:
    now = 0.0

    def sleep(_: float) -> None:
        nonlocal now
        now += step_s

    left = [None if gib is None else int(gib * GIB) for gib in readings]
    found = wait_released(lambda: left.pop(0), GIB, limit_s=limit_s, clock=lambda: now, sleep=sleep)
    return found, now


def test_b60_memory_back_before_the_next_leg() -> None:
    """B60: 60, 40, 20, 1.2 GiB at 0, 2, 4, 6 s with 1.0 GiB before and a tolerance of 0.5: released after 6 s."""
    found, now = device([60, 40, 20, 1.2])
    assert (found.ok, found.waited_s, found.used_bytes, now) == (True, 6.0, int(1.2 * GIB), 6.0)


def test_b60_not_back_within_the_limit() -> None:
    """B60: at the limit it says how much is still held."""
    found, _ = device([60, 40, 20, 10, 9], limit_s=6.0)
    assert (found.ok, found.waited_s) == (False, None)
    assert found.reason == "after 6 s the device still holds 9.00 GiB more than before"


def test_b60_less_than_before_is_released() -> None:
    """B60: somebody else freed memory meanwhile."""
    assert device([0.1])[0].waited_s == 0.0


def test_b60_no_device() -> None:
    """B60: nothing to read is nothing to wait for, and no figure."""
    found = wait_released(lambda: None, None, limit_s=60.0)
    assert (found.ok, found.waited_s, found.used_bytes) == (True, None, None)
    assert device([None, 1.0])[0].waited_s == 2.0
    assert device([None, None], limit_s=2.0)[0].reason == "after 2 s the device cannot be read"


# --- environment --------------------------------------------------------------------------------------------------------


def test_an_engines_environment_is_built_not_inherited() -> None:
    ours = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "1",
        "PYTHONPATH": "/ours",
        "VIRTUAL_ENV": "/ours",
        "AWS_SECRET_ACCESS_KEY": "x",
        "http_proxy": "http://p:1",
        "OMP_NUM_THREADS": "2",
    }
    found = env.child_env({"TOY": "1", "PATH": "/own"}, ours)
    assert found == {"PATH": "/own", "CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "2", "TOY": "1", "PYTHONUNBUFFERED": "1"}


def test_b27_a_proxy_of_the_scenario_spares_loopback() -> None:
    """B27: NO_PROXY may list localhost but not 127.0.0.1."""
    found = env.child_env({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "localhost"}, {})
    assert found["NO_PROXY"] == "localhost,127.0.0.1,::1"
    assert found["no_proxy"] == "127.0.0.1,localhost,::1"


def test_what_is_recorded() -> None:
    given = {
        "VLLM_USE_V1": "1",
        "VLLM_API_KEY": "abcdef123456",
        "HF_TOKEN": "hf_abcdefghijklmnopqrst",
        "HOME": "/root",
        "TOY_TOKENS": "512",
        "TOY_URL": "http://me:pass@host/x",
        "TOKENIZERS_PARALLELISM": "false",
    }
    assert env.recorded_env(given, ["TOY_TOKENS", "TOY_URL", "HF_TOKEN"]) == {
        "HF_TOKEN": "<redacted>",
        "TOY_TOKENS": "512",
        "TOY_URL": "http://<redacted>@host/x",
        "VLLM_API_KEY": "<redacted>",
        "VLLM_USE_V1": "1",
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hf_token='hf_abcdefghijklmnopqrst', x=1", "hf_token='<redacted>', x=1"),
        ('{"hf_token": "abc", "seed": 0}', '{"hf_token": "<redacted>", "seed": 0}'),
        ("Namespace(api_key=['secret1', 'secret2'], port=1)", "Namespace(api_key=<redacted>, port=1)"),
        ("--api-key abc --port 1", "--api-key <redacted> --port 1"),
        ("--api-key=abc --port 1", "--api-key=<redacted> --port 1"),
        ("Authorization: Bearer abcdefghijkl", "Authorization: Bearer <redacted>"),
        ("key sk-proj_abcdefghijklmnopqrstuv end", "key <redacted> end"),
        ("https://user:pw@host/path", "https://<redacted>@host/path"),
        ("VLLM_API_KEY=abc123", "VLLM_API_KEY=<redacted>"),
        ("aws_secret_access_key = abc/def", "aws_secret_access_key = <redacted>"),
        # what only looks like one
        ("hf_token=None, tokens=5", "hf_token=None, tokens=5"),
        ("max_tokens=5 token_ids=[1, 2] num_tokens: 7", "max_tokens=5 token_ids=[1, 2] num_tokens: 7"),
        ("the password was wrong", "the password was wrong"),
        ("num_key_value_heads=4, secret sauce", "num_key_value_heads=4, secret sauce"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
    ],
)
def test_redaction(text: str, shown: str) -> None:
    assert env.redact(text) == shown
    assert env.redact(shown) == shown


@pytest.mark.parametrize(("hints", "pattern"), [rule[:2] for rule in env._RULES])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_what_a_pattern_finds_has_one_of_its_hints(
    hints: tuple[str, ...], pattern: re.Pattern[str], data: st.DataObject
) -> None:
    found = data.draw(st.from_regex(pattern, alphabet=st.characters(codec="ascii")))
    assert any(hint in found.lower() for hint in hints)


def test_known_secrets_are_found_anywhere() -> None:
    secrets = env.secrets_of({"MY_TOKEN": "s3cr3t-value", "DEBUG_KEY": "1", "NAME": "public-value"})
    assert secrets == ["s3cr3t-value"]
    assert env.redact("got s3cr3t-value and public-value", secrets) == "got <redacted> and public-value"


def test_command_lines() -> None:
    argv = [
        "x",
        "--api-key",
        "abc",
        "--hf-token=abc",
        "--max-num-batched-tokens",
        "512",
        "--auth",
        "--port",
        "1",
        "--seed-key=1",
    ]
    assert env.redact_argv(argv) == [
        *("x", "--api-key", "<redacted>", "--hf-token=<redacted>", "--max-num-batched-tokens", "512"),
        *("--auth", "--port", "1", "--seed-key=1"),
    ]


# --- log --------------------------------------------------------------------------------------------------------------


def test_control_characters_never_get_through() -> None:
    text = "a\x1b[31mred\x1b[0m\x1b]0;title\x07b\x9b2Jc\x00\x08\u202eevil\u202c\r\n10%\r20%\tend\x1bcx"
    assert log.clean(text) == "aredbcevil\n10%\n20%\tendx"


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters(max_codepoint=0x2100), max_size=60))
def test_clean_text_is_printable(text: str) -> None:
    found = log.clean(text)
    assert all(char in "\n\t" or ord(char) >= 32 for char in found)
    assert "\x1b" not in found
    assert "\u202e" not in found


def test_long_logs_are_read_at_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    assert log.read_log(path) == log.tail_log(path) == log.last_lines(path) == ""
    path.write_bytes(b"first\n" + b"x" * 1000 + b"\nlast \xff line\n")
    text = log.read_log(path, 100)
    assert text.startswith("first\n")
    assert "... 819 bytes left out ..." in text
    assert text.endswith("last \ufffd line\n")
    assert log.tail_log(path, 5) == "line\n"
    assert log.last_lines(path, 1) == "last \ufffd line"


def test_a_log_is_redacted_and_bounded_when_its_leg_ends(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_bytes(b"api_key='abc' \xff\x1b[1m\n" + b"y" * 1000 + b"\nMYSECRET end\n")
    log.finish_log(path, ["MYSECRET"], limit=100)
    data = path.read_bytes()
    assert data.startswith(b"api_key='<redacted>' \xff\x1b[1m\n")
    assert b"bytes left out" in data
    assert data.endswith(b"\n<redacted> end\n")
    assert list(tmp_path.iterdir()) == [path]
    clean = tmp_path / "clean.log"
    clean.write_bytes(b"nothing here\n")
    inode = clean.stat().st_ino
    log.finish_log(clean)
    assert clean.stat().st_ino == inode
    log.finish_log(tmp_path / "none.log")


@pytest.mark.parametrize("part", ["a-", "x", "eyJ-", "api_key=[", 'api_key="', "\x1b]", "://", "bearer "])
def test_hostile_lines_take_no_quadratic_time(part: str) -> None:
    """Where a repetition is not bounded, one of these takes hours: then the suite hangs here."""
    line = part * 50_000
    assert len(env.redact(log.clean(line))) <= 2 * len(line)
    assert len(log.one_line(line)) <= 500
    assert env.secret_name(line) is False


def test_a_lock_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(PermissionError, match="not a folder of this user"):
        lock("port-1", tmp_path / "link")


def test_a_lock_on_a_full_disk_holds_and_a_failed_one_leaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    monkeypatch.setattr("fcntl.flock", full)
    with pytest.raises(OSError, match="No space"):
        lock("x", tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    monkeypatch.undo()
    monkeypatch.setattr("os.write", full)
    fd = lock("x", tmp_path)
    monkeypatch.undo()
    assert fd is not None
    os.close(fd)


def test_a_log_is_never_redacted_through_a_link(tmp_path: Path) -> None:
    mine, kept = tmp_path / "mine", tmp_path / "engine.log"
    mine.write_text("mine")
    kept.write_text("api_key=abcdefgh\n")
    (tmp_path / "engine.log.new").symlink_to(mine)
    log.finish_log(kept)
    assert mine.read_text() == "mine"
    assert kept.read_text() == "api_key=<redacted>\n"


def test_one_line() -> None:
    assert log.one_line(" a\n b\x1b[1m\tc ") == "a b c"
    assert log.one_line("x" * 600, 10) == "xxxxxx ..."


# --- url --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", "h:1", " http://h:1// "])
def test_b86_forms_of_a_url(url: str) -> None:
    """B86: four forms of one server."""
    assert base_url(url) == "http://h:1"


def test_b86_a_path_before_v1_stays() -> None:
    """B86: servers behind a prefix."""
    assert base_url("https://h/api/v1/") == "https://h/api"


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:x", "http://h?a=1", "http://u:secret@h", "file:///etc"])
def test_b86_what_is_no_url(url: str) -> None:
    """B86: one sentence, without the secret."""
    with pytest.raises(EngineError) as caught:
        base_url(url)
    assert "secret" not in str(caught.value)


def test_b27_the_control_client_ignores_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """B27: trust_env off."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with control_client("http://127.0.0.1:1") as http:
        assert http.trust_env is False
        assert http._mounts == {}


def test_a_head_that_comes_byte_by_byte_is_bounded() -> None:
    def drip() -> None:
        served, _ = listener.accept()
        with served, contextlib.suppress(OSError):
            served.sendall(b"HTTP/1.1 200 OK\r\nx: ")
            for _ in range(60):
                served.sendall(b"a")
                time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=drip)
        server.start()
        begin = time.monotonic()
        with control_client(f"http://127.0.0.1:{listener.getsockname()[1]}", 0.5) as http:
            with pytest.raises(httpx.ReadTimeout, match=r"longer than 0\.5 s"):
                http.get("/")
            assert time.monotonic() - begin < 2
        server.join()


def test_every_client_of_a_wait_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Listed:
        def alive(self, http: httpx.Client) -> bool:
            return True

        def served(self, http: httpx.Client) -> list[str]:
            return ["m"]

    made: list[httpx.Client] = []

    def client(*args: Any, **more: Any) -> httpx.Client:
        made.append(control_client(*args, **more))
        return made[-1]

    monkeypatch.setattr(ready, "control_client", client)
    dialect = engine("vllm").dialect(Settings(model="m", served_name="m"), Capabilities())
    waited = ready.wait_ready(
        "http://127.0.0.1:1",
        "m",
        Listed(),  # type: ignore[arg-type]
        dialect,
        limit_s=1.0,
        exit_code=lambda: None,
        fatal=lambda: None,
        listening=lambda: (True, set()),
    )
    assert "a 1-token completion fails" in waited.reason
    assert len(made) > 2
    assert all(one.is_closed for one in made)


# --- processes ----------------------------------------------------------------------------------------------------------


def test_a_process_whose_parent_ends_during_the_scan_is_still_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 was read as a child of 5, which ended before it was read itself: by then 3 is a child of 2."""
    seen = [proc.Proc(2, 1, "S", 1), proc.Proc(3, 5, "S", 1)]
    monkeypatch.setattr(proc, "scan", lambda: {one.pid: one for one in seen})
    monkeypatch.setattr(proc, "read", lambda pid: {2: proc.Proc(2, 1, "S", 1), 3: proc.Proc(3, 2, "S", 1)}.get(pid))
    assert [one.pid for one in proc.below([2])] == [3]


# --- port -------------------------------------------------------------------------------------------------------------


def test_free_ports_are_free_and_ours(tmp_path: Path) -> None:
    first, second = port.free_port(tmp_path), port.free_port(tmp_path)
    try:
        assert first != second
        assert port.busy(first) is None
        assert lock(f"port-{first}", tmp_path) is None
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        assert first < low or low <= 20100
    finally:
        port.release_port(first)
        port.release_port(second)
    held = lock(f"port-{first}", tmp_path)
    assert held is not None
    os.close(held)


def test_two_harnesses_do_not_take_the_same_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process holds the lock of the first candidates although it has not bound them yet."""
    taken = port.free_port(tmp_path / "other")
    port.release_port(taken)
    code = (
        "import sys; from evenhand.boot.lock import lock\n"
        f"assert lock('port-{taken}', {str(tmp_path)!r}) is not None; print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        monkeypatch.setattr(port, "_candidates", lambda: [taken])
        with pytest.raises(OSError, match="no free port"):
            port.free_port(tmp_path)
        assert holder(f"port-{taken}", tmp_path) == other.pid
        other.kill()  # a lock ends with its process
    assert port.free_port(tmp_path) == taken
    port.release_port(taken)


def test_b54_who_listens() -> None:
    """B54: a listener with SO_REUSEPORT is seen by a plain bind, and named."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("0.0.0.0", 0))
        number = listener.getsockname()[1]
        assert port.foreign(number, list) == (False, set())
        listener.listen()
        assert port.busy(number) == os.getpid()
        assert port.listeners(number) == {os.getpid()}
        assert port.foreign(number, lambda: [os.getpid()]) == (True, set())
        assert port.foreign(number, list) == (True, {os.getpid()})
        assert port.holder_names([os.getpid()]).startswith(f"pid {os.getpid()} (")
    assert port.busy(number) is None


def test_an_ended_connection_does_not_make_a_port_busy() -> None:
    """TIME_WAIT blocks a plain bind for a minute, but no server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", number)) as client:
            served, _ = listener.accept()
            served.close()  # this side closes first and keeps the address
            assert client.recv(1) == b""
    assert port.busy(number) is None
