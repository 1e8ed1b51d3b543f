"""The harness's handle on the processes that own the engines (see warden.py for who kills what, and when)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from evenhand.boot import proc, warden

MARK = "EVENHAND_GUARD"
"""Environment variable of everything below a guardian: the last means to find it when warden and keeper were both killed."""

# No site, no installed package: `evenhand` is a bare name for our own folder, so that the warden starts in 30 ms
# whatever the environment's .pth files import.
_BOOTSTRAP = """\
import sys, types
evenhand = types.ModuleType("evenhand")
evenhand.__path__ = [sys.argv[1]]
sys.modules["evenhand"] = evenhand
from evenhand.boot.warden import main
main(int(sys.argv[2]), float(sys.argv[3]))
"""


class GuardianDied(Exception):
    """The guardian was killed; the engines it kept are gone too."""


class SpawnError(Exception):
    """The operating system would not start the program: one sentence."""


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A started engine. `start_time` (clock ticks since boot) tells it from a later process with the same pid."""

    pid: int
    start_time: int
    id: int
    guard: int
    """Number of the warden that keeps it (a pid could come again)."""


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """How a stop ended."""

    exit_code: int | None
    """Negative for a signal; None when the engine is among the survivors."""
    survivors: list[int]
    """Pids that outlived SIGKILL (must be empty)."""


class Guardian:
    """Parent of every engine, in processes that outlive the harness just long enough to end them.

    Use it as a context manager. Safe to call from several threads. If its processes are killed, everything they kept is ended
    (`poll` then says -9) and the next `spawn` starts new ones.
    """

    def __init__(self, grace_s: float = warden.GRACE_S) -> None:
        """`grace_s`: SIGTERM to SIGKILL when the harness or a guardian process is gone."""
        self.key = uuid.uuid4().hex
        self._grace_s = grace_s
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = 0
        self._sent = 0
        self._known: dict[int, list[tuple[int, int]]] = {}
        self._stopped: dict[tuple[int, int], Stopped] = {}

    def __enter__(self) -> Guardian:
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Pid of the warden, None when none runs."""
        return None if self._process is None else self._process.pid

    def _begin(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._begun += 1
            home = str(Path(warden.__file__).resolve().parent.parent)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, home, str(os.getpid()), str(self._grace_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
                env={MARK: self.key, "PATH": os.environ.get("PATH", os.defpath)},
            )
        return self._process

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """One request, one answer. Raises GuardianDied after everything below was ended."""
        with self._lock:
            process = self._begin()
            assert process.stdin is not None
            assert process.stdout is not None
            self._sent += 1
            number = self._sent
            try:
                data = memoryview(json.dumps({**message, "n": number}).encode() + b"\n")
                try:
                    while data:
                        data = data[process.stdin.write(data) or 0 :]
                finally:
                    if data:  # interrupted by a signal: half a message must not be followed by another
                        process.stdin.close()
                while True:
                    found: dict[str, Any] = json.loads(_line(process.stdout))
                    if found["n"] == number:  # else the answer to a request that a signal interrupted
                        return found
            except (OSError, EOFError):
                self._bury(process)
                raise GuardianDied("the guardian process was killed; the engines below it have been ended") from None

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], log_path: str | Path, cwd: str | Path) -> Child:
        """Start a program with exactly `env`, both outputs appended to `log_path`. Raises SpawnError or GuardianDied."""
        message = {
            "do": "spawn",
            "argv": list(argv),
            "env": {**env, MARK: self.key},
            "log": str(Path(log_path).absolute()),
            "cwd": str(Path(cwd).absolute()),
        }
        with self._lock:
            answer = self._ask(message)
            if "error" in answer:
                raise SpawnError(f"{argv[0]} cannot be started: {answer['error']}")
            return Child(pid=answer["pid"], start_time=answer["start"], id=answer["id"], guard=self._begun)

    def _status(self, child: Child, tree: bool) -> dict[str, Any]:
        """Raises GuardianDied also when another warden runs by now."""
        with self._lock:
            if self._process is None or self._begun != child.guard:
                raise GuardianDied("the guardian of this engine is gone")
            answer = self._ask({"do": "status", "id": child.id, "tree": tree})
            if tree:
                self._known[child.id] = [(pid, start) for pid, start in answer["tree"]]
            return answer

    def poll(self, child: Child) -> int | None:
        """Exit code (negative for a signal), None while it runs. -9 when its guardian was killed."""
        try:
            found: int | None = self._status(child, tree=False)["exit"]
        except GuardianDied:
            stopped = self._stopped.get((child.guard, child.id))
            return stopped.exit_code if stopped is not None else -signal.SIGKILL
        return found

    def tree(self, child: Child) -> list[int]:
        """Pids of the engine and of everything it started that is alive, in whatever session."""
        try:
            return [pid for pid, _ in self._status(child, tree=True)["tree"]]
        except GuardianDied:
            return []

    def stop(self, child: Child, grace_s: float) -> Stopped:
        """SIGTERM to the engine; when it has exited, to what it left; SIGKILL to all after `grace_s` seconds."""
        begin = time.monotonic()
        try:
            if self._process is not None and self._begun == child.guard:
                self._ask({"do": "stop", "id": child.id, "grace_s": grace_s})
            while True:
                status = self._status(child, tree=True)
                if status["stopped"] is not None:
                    break
                time.sleep(warden.TICK_S if time.monotonic() - begin > 0.2 else 0.01)
        except GuardianDied:
            done = self._stopped.get((child.guard, child.id))
            return done or Stopped(exit_code=-signal.SIGKILL, survivors=[])
        done = Stopped(exit_code=status["exit"], **status["stopped"])
        self._stopped[child.guard, child.id] = done
        return done

    def close(self) -> None:
        """End everything that still runs, within 10 s, and the guardian itself. May be called twice."""
        with self._lock:
            process = self._process
            if process is None:
                return
            with contextlib.suppress(GuardianDied):
                self._ask({"do": "close"})
            if self._process is not None:
                self._bury(process)

    def _bury(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the warden has ended; then end what is still there: known by pid and start time, or by its mark."""
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            process.wait(warden.LIMIT_S + 1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None
        known = {key for tree in self._known.values() for key in tree}
        self._known = {}
        sweep(f"{MARK}={self.key}", known, self._grace_s + 1)


def _line(pipe: Any) -> bytes:
    """One line from an unbuffered pipe (whose writer sends one at a time). Raises EOFError when the writer is gone."""
    parts: list[bytes] = []
    while not parts or not parts[-1].endswith(b"\n"):
        part = pipe.read(65536)
        if not part:
            raise EOFError
        parts.append(part)
    return b"".join(parts).splitlines()[-1]


def sweep(mark: str, known: set[tuple[int, int]], patience_s: float) -> list[int]:
    """SIGKILL what carries `mark`, what is `known`, and all below, after keepers had their time to end it. Returns pids."""
    begin = time.monotonic()
    killed: list[int] = []
    while True:
        found = {(one.pid, one.start) for one in proc.marked(mark.encode())}
        found |= {key for key in known if proc.living(*key)}
        found |= {(one.pid, one.start) for one in proc.below([pid for pid, _ in found])}
        elapsed = time.monotonic() - begin
        if not found or elapsed > warden.LIMIT_S:
            return killed
        if elapsed > patience_s:
            killed += [pid for pid, start in found if proc.send(pid, start, signal.SIGKILL)]
        time.sleep(warden.TICK_S)
