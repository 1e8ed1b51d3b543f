"""sha256 of models, drafts and executables, cached by device, inode, size and mtime so that weights are read once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from evenhand.records import FileHash

MAX_FILES = 2000


def cache_folder() -> Path:
    """Where evenhand keeps what can be made again: $XDG_CACHE_HOME/evenhand or ~/.cache/evenhand."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "evenhand"


def files_of(path: Path) -> list[Path]:
    """The file itself, or every file below a folder (hidden ones and temporary ones left out), sorted."""
    if path.is_file():
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        found += [Path(folder) / name for name in sorted(names) if not name.startswith(".")]
        if len(found) > MAX_FILES:
            break
    return found[:MAX_FILES]


def hash_files(paths: Iterable[Path]) -> list[FileHash]:
    """Hashes of the files, relative to the parent of what was asked; unreadable ones are left out."""
    store = cache_folder() / "sha256.json"
    try:
        known = msgspec.json.decode(store.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        known = {}
    rows, fresh = [], False
    for path in paths:
        for file in files_of(path):
            try:
                stat = file.stat()
                key = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
                digest = known.get(key)
                if digest is None:
                    with file.open("rb") as stream:
                        digest = known[key] = hashlib.file_digest(stream, "sha256").hexdigest()
                    fresh = True
            except OSError:
                continue
            rows.append(FileHash(path=str(file.relative_to(path.parent)), sha256=digest, size_bytes=stat.st_size))
    if fresh:
        _save(store, known)
    return rows


def _save(store: Path, known: dict[str, str]) -> None:
    """The cache is a convenience: a folder that cannot be written costs time, nothing else."""
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        temporary = store.with_name(f"{store.name}.{os.getpid()}")
        temporary.write_bytes(msgspec.json.encode(known))
        temporary.replace(store)
    except OSError:
        pass
