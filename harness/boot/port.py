"""A port of our own on 127.0.0.1, and proof that it is still ours."""

# pathlib would triple the cost of loops over /proc
# ruff: noqa: PTH115, PTH123, PTH208

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from evenhand.boot.lock import lock

UNKNOWN = 0
"""Stands for the pid of a process that we may not look into."""

_held: dict[int, int] = {}  # port -> descriptor of its lock


def _candidates() -> Iterable[int]:
    """Ports below the range from which the kernel picks sources of outgoing connections: none of ours can land on them."""
    low = 32768
    with contextlib.suppress(OSError, ValueError):
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    start = 20000 if low > 20100 else 1100
    stop = low if low > start + 100 else 65536
    yield from random.sample(range(start, stop), min(500, stop - start))


def _binds(port: int, reuse_address: bool = False) -> bool:
    """Whether a plain bind (never SO_REUSEPORT) works."""
    with socket.socket() as probe:
        if reuse_address:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port(lock_dir: str | Path | None = None) -> int:
    """A free port on 127.0.0.1 that no other harness of this user takes: locked until `release_port` or our end.

    Raises OSError when there is none.
    """
    for port in _candidates():
        if port not in _held and _binds(port) and (fd := lock(f"port-{port}", lock_dir)) is not None:
            _held[port] = fd
            return port
    raise OSError("no free port was found on 127.0.0.1")


def release_port(port: int) -> None:
    """Give a port of `free_port` back. Harmless for others."""
    fd = _held.pop(port, None)
    if fd is not None:
        os.close(fd)


def busy(port: int) -> int | None:
    """None when we can bind `port` on 127.0.0.1, else the pid that listens on it, UNKNOWN when that cannot be seen."""
    if _binds(port):
        return None
    owners = listeners(port)
    if owners:
        return max(owners)
    # nobody listens: ended connections may hold the address for a minute, which no server minds
    return None if _binds(port, reuse_address=True) else UNKNOWN


def _listening(port: int) -> set[str]:
    """Inodes of the TCP sockets that listen on `port`, on whatever address."""
    inodes = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(name) as file:
            for line in file:
                fields = line.split()
                if len(fields) > 9 and fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(fields[9])
    return inodes


def _sockets(pid: int) -> set[str]:
    """Inodes of the sockets that `pid` holds; empty when it is gone or not ours to see."""
    found = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def _holders(inodes: set[str], pids: Iterable[int]) -> set[int]:
    """Pids among `pids` that hold one of these sockets; UNKNOWN stands for sockets that none of them holds."""
    left = set(inodes)
    owners = set()
    for pid in pids:
        if common := inodes & _sockets(pid):
            owners.add(pid)
            left -= common
    return owners | {UNKNOWN} if left else owners


def _everybody() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def listeners(port: int) -> set[int]:
    """Pids that hold a socket listening on `port`; UNKNOWN among them for one whose holder cannot be seen."""
    inodes = _listening(port)
    return _holders(inodes, _everybody()) if inodes else set()


def foreign(port: int, tree: Callable[[], Iterable[int]]) -> tuple[bool, set[int]]:
    """(whether somebody listens on `port`, pids that hold a listening socket which no process of `tree` holds)."""
    inodes = _listening(port)
    if not inodes:
        return False, set()
    others = inodes - set().union(*(_sockets(pid) for pid in tree()))
    return True, _holders(others, _everybody()) if others else set()


def holder_names(pids: Iterable[int]) -> str:
    """ "pid 12 (python)" for messages; says so where the process cannot be seen."""
    return ", ".join(_name(pid) for pid in sorted(pids))


def _name(pid: int) -> str:
    if pid == UNKNOWN:
        return "a process of another user"
    with contextlib.suppress(OSError):
        return f"pid {pid} ({Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()})"
    return f"pid {pid}"
