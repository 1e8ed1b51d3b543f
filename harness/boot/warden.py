"""The guardian's own processes: `python -m evenhand.boot.warden HARNESS_PID GRACE_S`. Standard library only.

    harness -> warden -> keeper -> engine -> whatever the engine starts

The warden runs in a session of its own, so no terminal signal reaches it. It forks one keeper per engine. Both are subreapers:
an orphan below an engine, in a session of its own or not, comes back to the keeper, and when the keeper was killed, to the
warden. So whatever an engine started stays below its keeper and can be found and ended.

    the harness ends in any way   end of file on the warden's stdin (or the harness's pidfd) -> it ends everything below it
    the warden is killed          end of file on each keeper's lifeline -> it ends everything below it
    a keeper is killed            the engine dies at once (PR_SET_PDEATHSIG), the rest comes to the warden, which kills it

Ending means SIGTERM, after GRACE_S seconds SIGKILL, all of it within LIMIT_S.

Protocol: one JSON object a line on stdin, one answer a line on stdout, in order, both with the same number "n"; none blocks.

    {"do": "spawn", "argv", "env", "log", "cwd"} -> {"id", "pid", "start"} | {"error"}
    {"do": "status", "id", "tree": bool}         -> {"exit", "tree": [[pid, start]], "stopped"}
    {"do": "stop", "id", "grace_s"}              -> {} ; the outcome is told by later statuses
    {"do": "close"}                              -> {} ; as end of file

"stopped" is null until a stop is done, then {"survivors": [pid]}.
"""

# pathlib would double the start-up
# ruff: noqa: PTH110, PTH123, PTH208

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Container
from typing import Any, NoReturn

from evenhand.boot import proc

GRACE_S = 3.0
"""SIGTERM to SIGKILL when the harness or the warden is gone (default)."""
LIMIT_S = 9.0
"""After that long the ending process gives up (only a process stuck in the kernel can still be there)."""
STRAY_S = 5.0
"""SIGTERM to SIGKILL for what is left when the engine itself has exited."""
REAP_S = 5.0
"""After SIGKILL, how long a stop waits before it reports survivors."""
TICK_S = 0.05

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class _Signals:
    """Signals as something that a poll can wait for."""

    def __init__(self) -> None:
        self.ending = False
        self.fd, write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # an orphaned engine process may signal "its parent", which is us by then
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        for number in _ENDING:
            signal.signal(number, self._end)

    def _end(self, *_: object) -> None:
        self.ending = True

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)


def _write(fd: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    with contextlib.suppress(OSError):  # the reader is gone: its end of file is handled where we read
        while data:
            data = data[os.write(fd, data) :]


def end_below(spare: Container[int], reap: Callable[[], object], grace_s: float) -> list[proc.Proc]:
    """SIGTERM, then SIGKILL everything below this process but `spare`; what still lives after LIMIT_S is returned."""
    begin = time.monotonic()
    told: set[tuple[int, int]] = set()
    while True:
        reap()
        left = proc.below([os.getpid()], spare)
        elapsed = time.monotonic() - begin
        if not left or elapsed > LIMIT_S:
            return left
        for one in left:
            if elapsed >= grace_s:
                proc.send(one.pid, one.start, signal.SIGKILL)
            elif (one.pid, one.start) not in told:
                told.add((one.pid, one.start))
                proc.send(one.pid, one.start, signal.SIGTERM)
        time.sleep(TICK_S)


# --- keeper: parent of one engine --------------------------------------------------------------------------------------


def _become(argv: list[str], env: dict[str, str], log: str, cwd: str, parent: int) -> NoReturn:
    """Between fork and exec: become the engine. Raises OSError when that does not work."""
    os.setsid()  # an engine that signals its process group must not hit the keeper
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the keeper died before the line above
        os._exit(127)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)  # ignored signals would outlive the exec
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(cwd)
    os.execvpe(argv[0], argv, env)  # every other descriptor is close-on-exec


def _start(argv: list[str], env: dict[str, str], log: str, cwd: str) -> int:
    """Fork the engine and wait for its exec. Returns its pid; raises OSError with what went wrong."""
    read, write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _become(argv, env, log, cwd, parent)
        except OSError as error:
            os.write(write, json.dumps([error.errno, error.strerror, error.filename]).encode())
        except BaseException as error:
            os.write(write, json.dumps([0, repr(error), None]).encode())
        finally:
            os._exit(127)
    os.close(write)
    with open(read, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.waitpid(pid, 0)
        number, text, name = json.loads(failure)
        raise OSError(number, text, name)
    return pid


def _keep(argv: list[str], env: dict[str, str], log: str, cwd: str, lifeline: int, report: int, grace_s: float) -> None:
    """A keeper's life."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    # the warden's own ends would keep other keepers from seeing its end
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in (lifeline, report):
            with contextlib.suppress(OSError):
                os.close(int(name))
    signals = _Signals()
    try:
        child = _start(argv, env, log, cwd)
    except OSError as error:
        what = f": {error.filename}" if error.filename not in (None, argv[0]) else ""
        if error.errno == errno.ENOENT and not what and os.path.exists(argv[0]):
            what = " for the interpreter in its first line"
        _write(report, {"error": f"{error.strerror}{what}"})
        return
    _write(report, {"pid": child, "start": proc.start_time(child)})
    childless = False

    def reap() -> None:
        nonlocal childless
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == child:
                    _write(report, {"exit": os.waitstatus_to_exitcode(found[1])})
            return
        childless = True

    poller = select.poll()
    poller.register(lifeline, select.POLLIN)
    poller.register(signals.fd, select.POLLIN)
    while not childless:
        gone = any(fd == lifeline for fd, _ in poller.poll())
        signals.drain()
        reap()
        if gone or signals.ending:
            end_below((), reap, grace_s)
            return


# --- warden -----------------------------------------------------------------------------------------------------------


class _Kept:
    """One engine as the warden sees it."""

    def __init__(self, keeper: int, lifeline: int, report: int) -> None:
        self.keeper = keeper
        self.lifeline = lifeline
        self.report = report
        self.buffer = b""
        self.open = True
        self.pid = 0
        self.start = 0
        self.exit: int | None = None
        self.exit_at = 0.0
        self.stop_at: float | None = None
        self.grace_s = 0.0
        self.told: dict[tuple[int, int], int] = {}
        self.stopped: dict[str, list[int]] | None = None

    def read(self) -> list[dict[str, Any]]:
        """Messages that have come; notices the keeper's end."""
        data = os.read(self.report, 65536)
        if not data:
            os.close(self.report)
            os.close(self.lifeline)
            self.open = False
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def take(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            if "exit" in message:
                self.exit, self.exit_at = message["exit"], time.monotonic()
        if not self.open and self.exit is None:
            # the keeper was killed and took the engine along
            self.exit, self.exit_at = -signal.SIGKILL, time.monotonic()

    def tree(self) -> list[proc.Proc]:
        return proc.below([self.keeper]) if self.open else []

    def step(self) -> None:
        """One step of a stop: the engine first, so that it can end in its own way, then the rest, then SIGKILL."""
        if self.stop_at is None or self.stopped is not None:
            return
        now = time.monotonic()
        left = self.tree()
        kill_at = self.stop_at + self.grace_s
        if self.exit is not None:
            kill_at = min(kill_at, max(self.exit_at, self.stop_at) + STRAY_S)
        if (not left and self.exit is not None) or now > kill_at + REAP_S:
            self.stopped = {"survivors": [one.pid for one in left]}
            return
        for one in left:
            key = (one.pid, one.start)
            if now >= kill_at:
                number = signal.SIGKILL
            elif one.pid == self.pid or self.exit is not None:
                number = signal.SIGTERM
            else:
                continue
            if self.told.get(key) != number and proc.send(one.pid, one.start, number):
                self.told[key] = number


class Warden:
    """The event loop below the harness."""

    def __init__(self, harness: int, grace_s: float) -> None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.grace_s = grace_s
        self.signals = _Signals()
        self.kept: dict[int, _Kept] = {}
        self.buffer = b""
        self.closing = False
        self.poller = select.poll()
        self.poller.register(0, select.POLLIN)
        self.poller.register(self.signals.fd, select.POLLIN)
        self.harness = -1
        with contextlib.suppress(OSError):
            # a fork of the harness may hold the pipe open: its own end is seen here
            self.harness = os.pidfd_open(harness)
            self.poller.register(self.harness, select.POLLIN)
        if os.getppid() != harness:
            self.closing = True

    def run(self) -> None:
        while not (self.closing or self.signals.ending):
            busy = any(one.stop_at is not None and one.stopped is None for one in self.kept.values())
            ready = {fd for fd, _ in self.poller.poll(TICK_S * 1000 if busy else None)}
            self.signals.drain()
            self._keepers(ready)
            if 0 in ready:
                self._requests()
            if self.harness in ready:
                self.closing = True
            for one in self.kept.values():
                one.step()
        end_below({one.keeper for one in self.kept.values() if one.open}, self._reap, self.grace_s)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _keepers(self, ready: set[int]) -> None:
        for one in [kept for kept in self.kept.values() if kept.open and kept.report in ready]:
            messages = one.read()
            if not one.open:
                self.poller.unregister(one.report)
            one.take(messages)
        self._reap()
        if any(not one.open and one.stopped is None for one in self.kept.values()):
            self._strays()

    def _strays(self) -> None:
        """Kill what a killed keeper left to us: our children that are no keepers, and all below them."""
        keepers = {one.keeper for one in self.kept.values() if one.open}
        direct = [one for one in proc.below([os.getpid()]) if one.ppid == os.getpid() and one.pid not in keepers]
        for one in [*direct, *proc.below([root.pid for root in direct])]:
            proc.send(one.pid, one.start, signal.SIGKILL)

    def _requests(self) -> None:
        data = os.read(0, 1 << 16)
        if not data:
            self.closing = True
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            _write(1, {**self._answer(message), "n": message["n"]})

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        do = message["do"]
        if do == "spawn":
            return self._spawn(message)
        if do == "close":
            self.closing = True
            return {}
        one = self.kept[message["id"]]
        if do == "stop":
            if one.stop_at is None:
                one.stop_at, one.grace_s = time.monotonic(), float(message["grace_s"])
            one.step()
            return {}
        tree = [[each.pid, each.start] for each in one.tree()] if message.get("tree") else []
        return {"exit": one.exit, "tree": tree, "stopped": one.stopped}

    def _spawn(self, message: dict[str, Any]) -> dict[str, Any]:
        life_read, life_write = os.pipe()
        report_read, report_write = os.pipe()
        keeper = os.fork()
        if keeper == 0:
            try:
                _keep(message["argv"], message["env"], message["log"], message["cwd"], life_read, report_write, self.grace_s)
            finally:
                os._exit(0)
        os.close(life_read)
        os.close(report_write)
        one = _Kept(keeper, life_write, report_read)
        messages: list[dict[str, Any]] = []
        while not messages and one.open:
            messages = one.read()
        first: dict[str, Any] = messages[0] if messages else {"error": "the keeper was killed"}
        if "error" in first:
            if one.open:
                os.close(life_write)
                os.close(report_read)
            os.waitpid(keeper, 0)
            return first
        one.pid, one.start = first["pid"], first["start"]
        one.take(messages[1:])
        if one.open:
            self.poller.register(report_read, select.POLLIN)
        number = len(self.kept)
        self.kept[number] = one
        return {"id": number, "pid": one.pid, "start": one.start}


def main(harness: int, grace_s: float = GRACE_S) -> None:
    """Serve the harness on stdin and stdout until it is gone."""
    Warden(harness, grace_s).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
