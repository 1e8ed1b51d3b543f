"""The embedded engine as a real child process, for tests marked e2e."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from evenhand.engines import engine_for
from evenhand.engines.base import Chunk, Engine, Sampling, Settings

from .helpers import MODELS, prompt

FAST = {"base_s": 0.001, "prefill_token_s": 0.0, "decode_token_s": 0.0}


class Child:
    """One running engine."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path, adapter: Engine, settings: Settings) -> None:
        self.process, self.port, self.log_path, self.adapter, self.settings = process, port, log, adapter, settings
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10)
        self.dialect = adapter.dialect(settings, adapter.launcher.capabilities(settings))

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def body(self, length: int = 20, tokens: int = 6, key: int = 0, **more: Any) -> dict[str, Any]:
        post = self.dialect.request(prompt(length, key).tolist(), Sampling(max_tokens=tokens), "m")
        return {**post.body, **more}

    def stream(self, length: int = 20, tokens: int = 6, key: int = 0, **more: Any) -> list[Chunk]:
        """A streamed completion, decoded by the real engine's dialect."""
        answer = self.http.post("/v1/completions", json=self.body(length, tokens, key, **more))
        assert answer.status_code == 200, answer.text
        return self.decode(answer.content)

    def decode(self, content: bytes) -> list[Chunk]:
        return [self.dialect.decode(line[6:]) for line in content.split(b"\n") if line.startswith(b"data: ")]

    def state(self) -> dict[str, Any]:
        return self.http.get("/evenhand/state").json()


def ids_of(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.ids or ()]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serve(folder: Path, *, env: dict[str, str] | None = None, wait: bool = True, **told: Any) -> Iterator[Child]:
    """Start an engine by the adapter's own command and end it afterwards, whatever happens."""
    options = {"clock": FAST, **told.pop("options", {})}
    told = {"model": str(MODELS / "tiny-hybrid"), "served_name": "m", "context": 8192, "prefix_caching": True, **told}
    settings = Settings(options=options, **told)
    adapter = engine_for("reference", settings)
    port = free_port()
    command = adapter.launcher.command(settings, port, adapter.launcher.capabilities(settings))
    log = folder / "engine.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command.argv, env={**os.environ, **command.env, **(env or {})}, stdout=out, stderr=out, start_new_session=True
        )
    child = Child(process, port, log, adapter, settings)
    try:
        if wait:
            _wait(child)
        yield child
    finally:
        child.http.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def _wait(child: Child) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if child.process.poll() is not None:
            raise AssertionError(f"ended with {child.process.returncode}: {child.log}")
        with contextlib.suppress(httpx.HTTPError):
            child.http.get("/v1/models")
            return
        time.sleep(0.02)
    raise AssertionError(f"not up after 20 s: {child.log}")


def refuse(folder: Path, **told: Any) -> tuple[int, str, Engine]:
    """A start that must not work: exit code, log, adapter."""
    with serve(folder, wait=False, **told) as child:
        code = child.process.wait(20)
        return code, child.log, child.adapter
