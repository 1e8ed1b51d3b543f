"""Processes as /proc tells them: who is below whom, and signals that can only reach the process that was meant.

Standard library only: the guardian imports this and must start in a few tens of milliseconds.
"""

# pathlib would double the start-up
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import os
import signal
from collections.abc import Container, Iterable
from typing import NamedTuple


class Proc(NamedTuple):
    """One process. `start` (clock ticks since boot) tells it from a later one with the same pid."""

    pid: int
    ppid: int
    state: str
    start: int


def read(pid: int) -> Proc | None:
    """The process `pid`, or None when there is none (a zombie counts: its state is "Z")."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # the name in brackets may itself hold blanks and brackets: fields count from the last one
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Proc(pid, int(fields[1]), fields[0].decode(), int(fields[19]))


def start_time(pid: int) -> int | None:
    """Start of `pid` in clock ticks since boot, None when it is gone."""
    found = read(pid)
    return None if found is None else found.start


def living(pid: int, start: int) -> bool:
    """Whether that very process still runs (a zombie does not)."""
    found = read(pid)
    return found is not None and found.start == start and found.state not in "ZX"


def scan() -> dict[int, Proc]:
    """Every process that /proc shows."""
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {proc.pid: proc for proc in found if proc is not None}


def below(roots: Iterable[int], spare: Container[int] = ()) -> list[Proc]:
    """Living descendants of `roots`, children in sessions of their own included, the roots themselves not.

    Processes named in `spare` are left out, what is below them is not.
    """
    procs = scan()
    children: dict[int, list[Proc]] = {}
    for proc in procs.values():
        if proc.ppid not in procs:
            # its parent ended during the scan: look whose child it is now, or what is below would be missed
            proc = read(proc.pid) or proc
        children.setdefault(proc.ppid, []).append(proc)
    found: list[Proc] = []
    todo = list(roots)
    seen = set(todo)
    while todo:
        for proc in children.get(todo.pop(), ()):
            if proc.pid not in seen:
                seen.add(proc.pid)
                todo.append(proc.pid)
                if proc.pid not in spare and proc.state not in "ZX":
                    found.append(proc)
    return found


def send(pid: int, start: int, number: int) -> bool:
    """Signal that very process; False when it is gone. The start is read once the pidfd is open, so it cannot be another."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_time(pid) != start:
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)


def marked(mark: bytes) -> list[Proc]:
    """Processes that were started with the environment entry `mark` (b"NAME=value")."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                entries = file.read(1 << 20).split(b"\0")
        except OSError:
            continue
        if mark in entries and (proc := read(int(name))) is not None and proc.state not in "ZX":
            found.append(proc)
    return found
