"""Locks between harnesses of one user on one machine: one a port, one a device. They end with the process that holds them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from pathlib import Path


def default_lock_dir() -> Path:
    """Where harnesses of one user on one machine meet."""
    return Path(tempfile.gettempdir()) / f"evenhand-{os.getuid()}"


def _open(name: str, folder: Path) -> int:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a folder of this user, so nothing can be locked in it")
    return os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def lock(name: str, lock_dir: str | Path | None = None) -> int | None:
    """A descriptor that holds the lock until it is closed or this process ends; None when another harness holds it.

    Raises OSError when the folder cannot be used.
    """
    fd = _open(name, default_lock_dir() if lock_dir is None else Path(lock_dir))
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        os.close(fd)
        raise
    with contextlib.suppress(OSError):  # a full disk: the pid is for messages only
        os.truncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def holder(name: str, lock_dir: str | Path | None = None) -> int | None:
    """Pid that took the lock last, for messages; None when nobody has."""
    folder = default_lock_dir() if lock_dir is None else Path(lock_dir)
    with contextlib.suppress(OSError, ValueError):
        return int((folder / f"{name}.lock").read_text())
    return None
