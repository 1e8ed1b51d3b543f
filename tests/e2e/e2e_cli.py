"""The command line as a real child process in a session of its own, on the embedded engine, and what is left of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

EVENHAND = [str(Path(sys.executable).with_name("evenhand"))]
MODEL = Path(__file__).parents[2] / "scenarios" / "models" / "4b-hybrid"
MARK = "VLLM_E2E_MARK"
"""Passed on to engines by its prefix, and so to everything they start."""
PATIENCE_S = 120.0
"""For what must happen; tests wait for it, they do not time it."""


def text(
    *,
    faults: Mapping[str, Any] | None = None,
    concurrency: tuple[int, ...] = (1, 4),
    requests: int = 8,
    output: int = 8,
    base_s: float = 0.02,
    arms: Mapping[str, Mapping[str, Any]] | None = None,
    dialect: str = "vllm",
    more: str = "",
    deadlines: str = "stop_s = 2.0\nsettle_s = 1.0\nrelease_s = 1.0",
    top: str = "",
) -> str:
    """A small scenario. `arms`: name -> faults (default: one arm "a" with `faults`). `top` comes first, `more` last."""
    sections = ""
    for arm, own in (arms or {"a": faults or {}}).items():
        options = {"dialect": dialect, "clock": {"base_s": base_s}, "faults": dict(own)}
        sections += f'[[arm]]\nname = "{arm}"\nengine = "reference"\noptions = {toml(options)}\n'
    return f"""name = "e2e"
model = "{MODEL}"
seats = 8
context = 8192
{top}
{sections}
[pool]
bytes = "4 GiB"
[ladder]
concurrency = {list(concurrency)}
prompt_tokens = 64
output_tokens = {output}
requests = {requests}
[watch]
interval_s = 0.05
[deadlines]
{deadlines}
{more}
"""


def toml(value: Any) -> str:
    """An inline TOML value."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value)


def wait_for(what: Callable[[], Any], why: str, limit_s: float = PATIENCE_S) -> Any:
    """The first true value of `what`; fails in words after `limit_s`."""
    end = time.monotonic() + limit_s
    while not (found := what()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {limit_s:g} s in vain for {why}")
        time.sleep(0.02)
    return found


class Ended(str):
    """A command that ended; as text it tells everything, so that a failing assertion does."""

    code: int
    out: str
    err: str

    def __new__(cls, code: int, out: str, err: str) -> Ended:
        """What it said and how it ended."""
        made = super().__new__(cls, f"exit code {code}\n--- stdout\n{out}\n--- stderr\n{err}")
        made.code, made.out, made.err = code, out, err
        return made

    @property
    def all(self) -> str:
        """Both streams."""
        return self.out + self.err

    @property
    def fine(self) -> bool:
        """Every cell was measured. On a busy machine a rung may still be void because the client starved the engine."""
        return self.code == 0 or (self.code == 2 and "the client starved the engine" in self.out and "partial" not in self.out)


class Cli:
    """Commands in one folder. Whatever they started is found by a mark, and ended with the test."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.env = {**os.environ, MARK: self.mark, "XDG_CACHE_HOME": str(folder / "cache"), **(env or {})}
        self.seen: set[psutil.Process] = set()
        self._started = 0

    def scenario(self, content: str, name: str = "s.toml") -> Path:
        """Write a scenario file."""
        path = self.folder / name
        path.write_text(content)
        return path

    def start(self, *args: object, before: Callable[[], None] | None = None, env: Mapping[str, str] | None = None) -> Child:
        """Start `evenhand ARGS` in a session of its own, as a terminal would."""
        self._started += 1
        return Child(self, [str(arg) for arg in args], self._started, before, {**self.env, **(env or {})})

    def run(self, *args: object, env: Mapping[str, str] | None = None) -> Ended:
        """Run `evenhand ARGS` to its end."""
        return self.start(*args, env=env).end()

    def engines(self) -> set[psutil.Process]:
        """Living processes that carry our mark: engines and what they started (and the harness, its samplers)."""
        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.add(process)
        return found

    def left(self) -> list[str]:
        """What is alive of everything that was ever seen or is marked, in words."""
        words = []
        for process in self.engines() | {p for p in self.seen if p.is_running()}:
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:
                    words.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        return words

    def close(self) -> None:
        """End what is left, so that a failing test leaves nothing behind."""
        for process in self.engines() | {p for p in self.seen if p.is_running()}:
            with contextlib.suppress(psutil.Error):
                process.kill()


class Child:
    """One running command."""

    def __init__(
        self, cli: Cli, args: list[str], number: int, before: Callable[[], None] | None, env: Mapping[str, str]
    ) -> None:
        self.cli = cli
        self._out, self._err = cli.folder / f"stdout-{number}", cli.folder / f"stderr-{number}"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*EVENHAND, *args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(env),
                cwd=cli.folder,
                start_new_session=True,
                preexec_fn=before,
            )

    @property
    def err(self) -> str:
        """What it has said on stderr so far."""
        return self._err.read_text("utf-8", "replace")

    def says(self, words: str) -> None:
        """Wait until it has said so."""
        wait_for(lambda: words in self.err or self._dead(words), f"{words!r} in:\n{self.err}")

    def _dead(self, words: str) -> bool:
        if self.process.poll() is not None and words not in self.err:
            raise AssertionError(f"it ended with {self.process.returncode} before it said {words!r}:\n{self.err}")
        return False

    def look(self) -> set[psutil.Process]:
        """Remember everything below it, to see later that it is gone."""
        found: set[psutil.Process] = set()
        with contextlib.suppress(psutil.Error):
            found = set(psutil.Process(self.process.pid).children(recursive=True))
        self.cli.seen |= found | {p for p in self.cli.engines() if p.pid != self.process.pid}
        return found

    def warden(self) -> psutil.Process:
        """The guardian's process."""
        return wait_for(
            lambda: next((p for p in self.look() if any("evenhand.boot.warden" in word for word in _cmdline(p))), None),
            "the guardian",
        )

    def signal(self, number: int, group: bool = False) -> None:
        """To the process, or to its group as a terminal does."""
        if group:
            os.killpg(self.process.pid, number)
        else:
            os.kill(self.process.pid, number)

    def end(self, limit_s: float = PATIENCE_S) -> Ended:
        """Wait for its end. The exit code as a shell shows it."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"did not end within {limit_s:g} s:\n{self.err}") from None
        return Ended(128 - code if code < 0 else code, self._out.read_text("utf-8", "replace"), self.err)


def _cmdline(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def only(folder: Path, pattern: str = "*") -> Path:
    """The one run folder in `folder`."""
    found = sorted(p for p in folder.glob(pattern) if p.is_dir() and not p.name.startswith("."))
    assert len(found) == 1, found
    return found[0]


def rows(file: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file, by a strict parser; a missing file is empty."""

    def never(word: str) -> None:
        raise AssertionError(f"{word} in {file}")

    if not file.exists():
        return []
    return [json.loads(line, parse_constant=never) for line in file.read_text().splitlines()]


def cells(run: Path) -> dict[str, dict[str, Any]]:
    """Cell rows by "ARM CELL"."""
    found = rows(run / "cells.jsonl")
    by = {f"{row['arm']} {row['cell']}" + (f" {row['repeat']}" if row["repeat"] else ""): row for row in found}
    assert len(by) == len(found), "a cell has two rows"
    return by


def requests(run: Path) -> list[dict[str, Any]]:
    """Request rows of all legs."""
    return [row for file in sorted(run.glob("[0-9][0-9][0-9]-*/requests.jsonl")) for row in rows(file)]


def work(run: Path) -> list[tuple[Any, ...]]:
    """What a run did, without its times: what must not depend on interruptions."""
    kept = ("leg", "arm", "cell", "repeat", "index", "key", "prompt_sha256", "outcome", "output_tokens", "prompt_tokens")
    return sorted((*(row[key] for key in kept), tuple(row["token_ids"] or ())) for row in requests(run))


def manifest(run: Path) -> dict[str, Any]:
    """The manifest."""
    found: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return found


SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
