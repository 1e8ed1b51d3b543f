"""A small engine for these tests (run as a script), and its adapter (imported). Options come as one JSON argument."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenhand.engines.base import Capabilities, Chunk, Command, EngineError, Exit, Post, Sampling, Settings
from evenhand.records import Pool, Refusal

# --- adapter -----------------------------------------------------------------------------------------------------------


class Launcher:
    def locate(self, settings: Settings) -> str:
        return sys.executable

    def capabilities(self, settings: Settings) -> Capabilities:
        return Capabilities(version="1")

    def command(self, settings: Settings, port: int, capabilities: Capabilities) -> Command:
        if settings.url:
            return Command(argv=[])
        if settings.options.get("contradiction"):
            raise EngineError("fast and slow contradict each other")
        options = json.dumps({**settings.options, "name": settings.options.get("name", settings.served_name)})
        executable = settings.executable or sys.executable
        return Command(argv=[executable, __file__, str(port), options, *settings.args], env={"TOY_MODE": "1"})

    def package_folder(self, settings: Settings) -> str | None:
        return None

    def probe(self, settings: Settings) -> str | None:
        return None

    def files(self, settings: Settings) -> list[str]:
        return []


class Dialect:
    returns_ids = True

    def request(self, prompt: Sequence[int] | str, sampling: Sampling, model: str, *, stream: bool = True) -> Post:
        return Post(path="/v1/completions", body={"model": model, "prompt": prompt, "max_tokens": sampling.max_tokens})

    def decode(self, payload: bytes) -> Chunk:
        if payload == b"[DONE]":
            return Chunk(done=True)
        found = json.loads(payload)
        if "error" in found:
            return Chunk(error=found["error"])
        return Chunk(ids=tuple(found["ids"]), output_tokens=len(found["ids"]))


class Facts:
    gauges = ()
    metrics_path = "/metrics"

    def alive(self, http: Any) -> bool:
        return bool(http.get("/health").status_code == 200)

    def served(self, http: Any) -> list[str]:
        return [model["id"] for model in http.get("/v1/models").json()["data"]]

    def config(self, http: Any, log: str) -> dict[str, Any]:
        return {"fast": http.get("/config").json()["fast"]}

    def pool(self, http: Any, log: str, metrics: str | None) -> Pool | None:
        return Pool(blocks=int((metrics or "").split()[1]), source="toy_blocks")

    def seats(self, http: Any, log: str) -> int | None:
        return 4

    def version(self, http: Any, log: str) -> str | None:
        return None

    def exit(self, code: int | None, log: str) -> Exit:
        for line in log.splitlines():
            if "needs more cache" in line:
                return Exit(outcome="refused", reason=line, refusal=Refusal(text=line))
        return Exit(outcome="died" if "toy is ready" in log else "launch_failed", reason=f"code {code}")

    def fatal(self, log_tail: str) -> str | None:
        return "engine-fatal" if "engine-fatal" in log_tail else None

    def figures(self, log: str) -> dict[str, float]:
        return {"load_s": 1.5} if "loaded" in log else {}

    def log_errors(self, log: str) -> int:
        return sum(line.startswith("ERROR") for line in log.splitlines())

    def reset_cache(self, http: Any) -> str | None:
        return None

    def max_prompt_tokens(self, settings: Settings) -> int | None:
        return None


class Toy:
    name = "toy"
    simulated = True
    launcher = Launcher()
    facts = Facts()

    def dialect(self, settings: Settings, capabilities: Capabilities) -> Dialect:
        return Dialect()

    def allocate(self, shape: Any, budget: Any) -> Any:
        raise NotImplementedError


# --- engine ------------------------------------------------------------------------------------------------------------


def serve(port: int, options: dict[str, Any]) -> None:
    """Serve until told otherwise by `options`."""
    import os
    import signal
    import socket
    import subprocess
    import threading
    import time
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    begin = time.monotonic()
    print("INFO loaded", flush=True)
    for line in options.get("say", []):
        print(line, file=sys.stderr, flush=True)
    if "exit" in options:
        raise SystemExit(options["exit"])
    if options.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for kind in options.get("workers", []):
        # "stubborn" ignores SIGTERM, "away" has a session of its own; both hold a lock file
        lock = f"{options['folder']}/{kind}.lock"
        subprocess.Popen([sys.executable, __file__, "worker", kind, lock], start_new_session=kind == "away")
        while not Path(lock + ".held").exists():
            time.sleep(0.01)
    if options.get("silent"):
        time.sleep(1000)

    def after(name: str) -> bool:
        """Whether the moment `name` (seconds after the start) has come."""
        return time.monotonic() - begin >= options.get(name, 0.0)

    asked = 0

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def refused(self) -> bool:
            """Whether the request lacks the key that `options` ask for; then it is answered."""
            if "key" in options and self.headers["authorization"] != f"Bearer {options['key']}":
                self.answer(401, b"no key")
                return True
            return False

        def do_GET(self) -> None:
            if self.refused():
                return
            if self.path == "/health":
                self.answer(200, b"")
            elif self.path == "/v1/models":
                names = [options["name"]] if after("listed_s") else []
                self.answer(200, json.dumps({"data": [{"id": name} for name in names]}).encode())
            elif self.path == "/config":
                self.answer(200, json.dumps({"fast": os.environ.get("TOY_FAST")}).encode())
            elif self.path == "/metrics":
                self.answer(200, b"toy_blocks 40\n")
            elif self.path == "/huge":
                self.answer(200, b"x" * (17 << 20))
            else:
                self.answer(404, b"")

        def do_POST(self) -> None:
            nonlocal asked
            asked += 1
            self.rfile.read(int(self.headers["content-length"]))
            if self.refused():
                return
            if self.path != "/v1/completions":
                self.answer(404, b"no such path")
            elif options.get("hang"):
                time.sleep(1000)
            elif options.get("die_on_request"):
                os._exit(3)
            elif not after("token_s"):
                self.answer(500, b"not yet\x1b[31m")
            else:
                print("toy is ready", f"asked={asked}", flush=True)
                self.answer(200, b'data: {"ids": [7]}\r\n\r\ndata: [DONE]\n\n')

        def log_message(self, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def server_bind(self) -> None:
            if options.get("reuse_port"):
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            super().server_bind()

    server = Server(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if "die_s" in options:
        time.sleep(options["die_s"])
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def work(kind: str, lock: str) -> None:
    """A worker that holds a lock file and does not go by itself."""
    import fcntl
    import signal
    import time

    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with Path(lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        Path(lock + ".held").touch()
        time.sleep(1000)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        work(sys.argv[2], sys.argv[3])
    else:
        serve(int(sys.argv[1]), json.loads(sys.argv[2]))
