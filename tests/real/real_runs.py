"""Calling the `evenhand` command on a real vLLM, and looking at what it left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from evenhand.judge.verdict import Verdict, decode
from evenhand.store import Run, open_run

COMMAND = str(Path(sys.executable).with_name("evenhand"))
PATCHES = Path(__file__).parent / "patches"
LIMIT_S = 400


class Ended(NamedTuple):
    """A command that ended, and its only run folder if it made one."""

    code: int
    out: str
    err: str
    folder: Path | None

    @property
    def run(self) -> Run:
        """The stored run."""
        assert self.folder is not None, self.out + self.err
        return open_run(self.folder)

    @property
    def verdict(self) -> Verdict:
        """What the gate wrote."""
        assert self.folder is not None, self.out + self.err
        return decode((self.folder / "verdict.json").read_bytes())

    def sentence(self) -> str:
        """What the command said at its end: one line besides progress, and no traceback."""
        lines = [line for line in self.err.splitlines() if not line.startswith("[")]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("evenhand: ")
        return lines[0]


def start(out: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The command in the background; its output goes to files in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "stdout").open("wb") as stdout, (out / "stderr").open("wb") as stderr:
        return subprocess.Popen([COMMAND, *arguments, "--out", str(out / "runs")], stdout=stdout, stderr=stderr)


def evenhand(out: Path, *arguments: str) -> Ended:
    """Run the command to its end. Nothing that it started may be left."""
    process = start(out, *arguments)
    try:
        code = process.wait(LIMIT_S)
    finally:
        process.kill()
    folders = sorted((out / "runs").glob("*/manifest.json"))
    assert processes_below(out) == {}
    return Ended(
        code,
        (out / "stdout").read_text("utf-8"),
        (out / "stderr").read_text("utf-8"),
        folders[0].parent if folders else None,
    )


def settings(**values: object) -> list[str]:
    """`--set` for each; "__" in a name is a dot."""
    return [word for name, value in values.items() for word in ("--set", f"{name.replace('__', '.')}={value}")]


def processes_below(folder: Path) -> dict[int, str]:
    """Living processes that work in `folder` or below: an engine works in its leg's folder, whatever it calls itself."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and (entry / "cwd").readlink().is_relative_to(folder.resolve()):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
    return found


def wait_until(what: Callable[[], object], limit_s: float) -> float:
    """Seconds until `what` is true. Fails after the limit."""
    begun = time.monotonic()
    while not what():
        assert time.monotonic() - begun < limit_s, f"not within {limit_s} s"
        time.sleep(0.05)
    return time.monotonic() - begun
