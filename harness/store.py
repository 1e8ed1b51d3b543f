"""A run directory: append and flush while measuring, finish by rename, open read-only.

The only interface between measuring and judging. Layout and rows: records.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from evenhand.records import SCHEMA, CellRow, EventRow, GpuRow, LegRow, Manifest, RequestRow, SampleRow
from evenhand.scenario import Scenario

T = TypeVar("T", bound=msgspec.Struct)

SUMS = "sha256.json"
_UNSEALED = {SUMS, "verdict.json", "verdict.md", "junit.xml"}
"""Written by judging, or the list itself: not part of what was measured."""
MODEL_CONFIG = "model-config.json"
"""Copy of the model's config.json: prediction needs its shape, years later and on another machine."""
OVERLAYS = "overlay"
"""Folder of the arms' overlays (links) while a run is on."""
TABLES = "tables"
"""Folder of what show writes into a run; not part of what was measured either."""

_SMALL_BYTES = 64 << 20
"""Most of a manifest or a list of sums."""
_TAIL_BYTES = 64 << 10


class StoreError(Exception):
    """One sentence for the user."""


def encode(row: Any) -> bytes:
    """One line of strict JSON without its end (msgspec writes NaN and the infinities as null)."""
    return msgspec.json.encode(row)


def lock_run(path: Path) -> int | None:
    """A descriptor that keeps a run folder for one writer until it is closed or this process ends; None when another has it.

    Raises StoreError when the folder cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror or error}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        pass  # a file system without locks: nothing to hold, the descriptor does no harm
    return fd


class RunWriter:
    """Writes one run. Every append is one write(2) to a file opened with O_APPEND, so a kill tears at most the last line."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Raises StoreError when another process writes this run, or the manifest cannot be written."""
        self.path = path
        self._files: dict[Path, int] = {}
        self.manifest = manifest
        self._lock = lock_run(path)
        if self._lock is None:
            raise StoreError(f"{path} is being written by another evenhand; wait until it has ended")
        self.save_manifest()

    @classmethod
    def create(cls, out: Path, name: str, stamp: str, manifest_for: Any) -> RunWriter:
        """Make `out/name-stamp` (a number is added when two runs start in one second) and write its manifest.

        `manifest_for(folder_name) -> Manifest`. Raises StoreError when the folder cannot be made.
        """
        # made beside and renamed with its manifest inside: a kill leaves no run folder that nothing can read
        beside = out / f".{name}-{os.getpid()}-{secrets.token_hex(4)}.tmp"
        writer: RunWriter | None = None
        try:
            out.mkdir(parents=True, exist_ok=True)
            beside.mkdir()
            for attempt in range(1000):
                folder = out / (f"{name}-{stamp}" if not attempt else f"{name}-{stamp}-{attempt + 1}")
                if folder.exists() or folder.is_symlink():
                    continue
                if writer is None:
                    writer = cls(beside, manifest_for(folder.name))
                elif writer.manifest.run != folder.name:
                    writer.save_manifest(run=folder.name)
                try:
                    beside.rename(folder)
                except OSError:
                    if not folder.exists():
                        raise
                    continue  # two starts in one second: the other one has this name
                writer.path = folder
                return writer
        except (OSError, StoreError) as error:
            shutil.rmtree(beside, ignore_errors=True)
            cause = error.__cause__ if isinstance(error, StoreError) and isinstance(error.__cause__, OSError) else error
            said = cause.strerror if isinstance(cause, OSError) else None
            raise StoreError(f"cannot write results to {out}: {said or cause}; choose another folder with --out") from error
        raise StoreError(f"cannot find a free folder name for {name}-{stamp} in {out}")

    def save_manifest(self, **changes: Any) -> None:
        """Write the manifest beside itself and rename it into place."""
        if changes:
            self.manifest = msgspec.structs.replace(self.manifest, **changes)
        write_atomic(self.path / "manifest.json", self._manifest_bytes())

    def _manifest_bytes(self) -> bytes:
        return msgspec.json.format(encode(self.manifest), indent=1)

    def leg_folder(self, leg: int, arm: str) -> Path:
        """The folder of a leg, made on first use."""
        return subfolder(self.path, f"{leg:03d}-{safe_name(arm)}")

    def append(self, file: Path, rows: Iterable[msgspec.Struct]) -> None:
        """Append rows to `file` in one write. Raises StoreError when the disk is full or gone."""
        data = b"".join(encode(row) + b"\n" for row in rows)
        if not data:
            return
        try:
            fd = self._files.get(file)
            if fd is None:
                fd = self._files[file] = _open_mended(file)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        except OSError as error:
            raise StoreError(
                f"cannot append to {file}: {error.strerror or error}; what was written before is kept, "
                f"free some space and run again with --resume {self.path}"
            ) from error

    def cell(self, row: CellRow) -> None:
        """Append a cell's row."""
        self.append(self.path / "cells.jsonl", [row])

    def leg(self, row: LegRow) -> None:
        """Append a leg's row."""
        self.append(self.path / "legs.jsonl", [row])

    def event(self, row: EventRow) -> None:
        """Append a line for people."""
        self.append(self.path / "events.jsonl", [row])

    def requests(self, folder: Path, rows: list[RequestRow]) -> None:
        """Append a cell's requests."""
        self.append(folder / "requests.jsonl", rows)

    def close(self) -> None:
        """Close every file and let others write the run."""
        self._close_files()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _close_files(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def finish(self, status: str, ended_utc: str) -> None:
        """Columnar copies, the sha256 of every file, and last the final manifest: a run that says it ended is sealed."""
        try:
            self._close_files()
            failure = _columnar_apart(self.path)
            self.manifest = msgspec.structs.replace(self.manifest, status=status, ended_utc=ended_utc)
            data = self._manifest_bytes()
            seal(self.path, {"manifest.json": hashlib.sha256(data).hexdigest()})
            write_atomic(self.path / "manifest.json", data)
            if failure is not None:
                raise StoreError(f"rows are safe as JSON lines, but no Parquet copy could be made in {self.path}: {failure}")
        finally:
            self.close()


def _columnar_apart(path: Path) -> str | None:
    """Columnar copies, from a process of its own: its libraries are no memory of the client. None: done, else why not."""
    # -P: nothing that lies in the working directory is imported
    argv = [sys.executable, "-P", "-m", "evenhand.columnar", str(path), str(os.getpid())]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, start_new_session=True, check=False)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def mend(file: Path) -> None:
    """Cut off a torn last line. Raises StoreError."""
    try:
        os.close(_open_mended(file))
    except OSError as error:
        raise StoreError(f"cannot mend {file}: {error.strerror or error}") from error


def _open_mended(file: Path) -> int:
    """Open for appending; a torn last line of an earlier, killed run is cut off so that the next row stands alone."""
    fd = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    size = end = os.fstat(fd).st_size
    while end:
        start = max(0, end - _TAIL_BYTES)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        end = start + at + 1
        if at >= 0:
            break
    if end != size:
        os.ftruncate(fd, end)
    return fd


def subfolder(path: Path, name: str) -> Path:
    """A folder inside a run folder, made on first use. Raises StoreError when a link stands there: it would lead elsewhere."""
    folder = path / name
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make {folder}: {error.strerror or error}") from error
    if folder.is_symlink():
        raise StoreError(f"{folder} is a symbolic link; a run folder holds plain files and folders only")
    return folder


def safe_name(text: str) -> str:
    """A name that is one harmless path component."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in text).lstrip(".")[:80] or "_"


def write_atomic(path: Path, data: bytes) -> None:
    """Write beside `path`, fsync, rename."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with fresh(temporary) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def fresh(path: Path) -> IO[bytes]:
    """A new file to write; what stood there is removed first, so that a planted link is never written through."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "wb")


# --- reading ----------------------------------------------------------------------------------------------------------


_NOT_ROWS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def plain(file: Path) -> BufferedReader:
    """Open a file of a run folder to read. Raises StoreError for a link, a pipe or a device (a run folder is untrusted);
    FileNotFoundError where there is none."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        if file.is_symlink():
            raise StoreError(f"{file} is a symbolic link; a run folder holds plain files only") from error
        raise StoreError(f"cannot read {file}: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StoreError(f"{file} is no plain file; a run folder holds plain files only")
    return os.fdopen(fd, "rb")


def whole(file: Path, limit: int | None = None) -> bytes:
    """The bytes of a file of a run folder. Raises StoreError for more than `limit` bytes or than fit into memory, and as
    `plain`; FileNotFoundError where there is none."""
    try:
        with plain(file) as stream:
            if limit is not None and os.fstat(stream.fileno()).st_size > limit:
                raise StoreError(f"{file} is longer than {limit} bytes, so it was not written by evenhand")
            return stream.read()
    except FileNotFoundError:
        raise
    except (OSError, MemoryError) as error:
        raise StoreError(f"cannot read {file}: {getattr(error, 'strerror', None) or 'it does not fit into memory'}") from error


def read_rows(file: Path, kind: type[T]) -> list[T]:
    """Rows of a JSON-lines file; a torn last line is left out, a missing file is empty.

    Raises StoreError for a line that is not a row (with its number), and for a symbolic link (a run folder is untrusted).
    """
    try:
        data = whole(file)
    except FileNotFoundError:
        return []
    if data and not data.endswith(b"\n"):
        data = data[: data.rfind(b"\n") + 1]
    decoder = msgspec.json.Decoder(kind)
    try:
        return decoder.decode_lines(data)
    except _NOT_ROWS:
        for number, line in enumerate(data.split(b"\n"), 1):
            try:
                if line:
                    decoder.decode(line)
            except _NOT_ROWS as error:
                raise StoreError(f"{file} line {number} is not a {kind.__name__}: {error}") from error
        raise StoreError(f"{file} does not hold one {kind.__name__} a line") from None


def stream_rows(file: Path, kind: type[T], chunk_bytes: int = 1 << 22) -> Iterator[T]:
    """Like read_rows, a few megabytes at a time."""
    decoder = msgspec.json.Decoder(kind)
    number, rest = 0, b""
    try:
        with plain(file) as stream:
            while data := stream.read(chunk_bytes):
                lines = (rest + data).split(b"\n")
                rest = lines.pop()
                for line in lines:
                    number += 1
                    if line:
                        yield decoder.decode(line)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error.strerror or error}") from error
    except _NOT_ROWS as error:
        raise StoreError(f"{file} line {number} is not a {kind.__name__}: {error}") from error


class _PlannedLeg(msgspec.Struct):
    leg: int = 0
    arm: str = ""
    cells: list[dict[str, Any]] = []


class _Planned(msgspec.Struct):
    legs: list[_PlannedLeg] = []
    notes: list[str] = []


class Run:
    """A stored run, read-only: what judge and show see."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_symlink() and not path.resolve().is_dir():
            raise StoreError(f"{path} is a broken link")
        manifest = path / "manifest.json"
        try:
            data = whole(manifest, _SMALL_BYTES)
        except FileNotFoundError as error:
            raise StoreError(f"{path} is no run folder: manifest.json cannot be read ({error.strerror})") from error
        try:
            self.manifest = msgspec.json.decode(data, type=Manifest)
        except _NOT_ROWS as error:
            raise StoreError(f"{manifest} is not a manifest of schema {SCHEMA}: {error}") from error
        if self.manifest.schema > SCHEMA:
            raise StoreError(
                f"{path} was written with schema {self.manifest.schema}; this evenhand reads up to {SCHEMA}: use a newer one"
            )
        try:
            msgspec.convert(self.manifest.scenario, Scenario)  # judging relies on the types of its keys
            msgspec.convert(self.manifest.plan, _Planned)
        except _NOT_ROWS as error:
            raise StoreError(f"{manifest} is not a manifest of schema {SCHEMA}: {error}") from error
        if self.manifest.run != safe_name(self.manifest.run):
            raise StoreError(f"{manifest}: its run is called {self.manifest.run[:100]!r}, which is no folder name")
        self.legs = read_rows(path / "legs.jsonl", LegRow)
        self.cells = read_rows(path / "cells.jsonl", CellRow)
        self._requests: dict[int, list[RequestRow]] = {}

    @property
    def partial(self) -> bool:
        """Whether the run did not reach its planned end."""
        return self.manifest.status != "finished"

    def leg_folder(self, leg: int) -> Path | None:
        """The folder of a leg, None when it never started."""
        found = sorted(self.path.glob(f"{leg:03d}-*"))
        return found[0] if found and not found[0].is_symlink() else None

    def _leg_rows(self, leg: int, name: str, kind: type[T]) -> list[T]:
        folder = self.leg_folder(leg)
        return read_rows(folder / name, kind) if folder else []

    def leg_numbers(self) -> list[int]:
        """Numbers of all legs that have a folder."""
        return sorted(int(p.name[:3]) for p in self.path.glob("[0-9][0-9][0-9]-*") if p.is_dir() and not p.is_symlink())

    def requests(self, leg: int | None = None, cell: str | None = None) -> list[RequestRow]:
        """Requests of a leg (None: of all), of a cell (None: of all)."""
        rows: list[RequestRow] = []
        for number in self.leg_numbers() if leg is None else [leg]:
            if number not in self._requests:
                self._requests[number] = self._leg_rows(number, "requests.jsonl", RequestRow)
            rows.extend(self._requests[number])
        return rows if cell is None else [row for row in rows if row.cell == cell]

    def stream_requests(self, leg: int) -> Iterator[RequestRow]:
        """Requests of a leg one after the other, so that a large leg is never in memory as objects all at once."""
        folder = self.leg_folder(leg)
        return stream_rows(folder / "requests.jsonl", RequestRow) if folder else iter(())

    def samples(self, leg: int) -> list[SampleRow]:
        """Scrapes of a leg."""
        return self._leg_rows(leg, "samples.jsonl", SampleRow)

    def gpu(self, leg: int) -> list[GpuRow]:
        """NVML readings of a leg."""
        return self._leg_rows(leg, "gpu.jsonl", GpuRow)

    def probe(self, leg: int) -> list[dict[str, Any]]:
        """Rows of the in-engine probe of a leg; lines that cannot be read count as dropped, but for a torn last one."""
        folder = self.leg_folder(leg)
        if folder is None:
            return []
        try:
            data = whole(folder / "probe.jsonl")
        except FileNotFoundError:
            return []
        *lines, last = data.split(b"\n")
        rows, lost = [], 0
        for line in lines:
            try:
                rows.append(msgspec.json.decode(line, type=dict[str, Any]))
            except _NOT_ROWS:
                lost += 1
        with contextlib.suppress(*_NOT_ROWS):  # the last line of a killed engine
            rows.append(msgspec.json.decode(last, type=dict[str, Any]))
        return [*rows, {"probe": "dropped", "rows": lost}] if lost else rows

    def replays(self) -> list[RequestRow]:
        """Untimed replays of requests that diverged in a gate."""
        return read_rows(self.path / "replays.jsonl", RequestRow)

    def log(self, leg: int, limit: int = 1 << 20) -> str:
        """The end of a leg's engine log."""
        folder = self.leg_folder(leg)
        file = folder / "engine.log" if folder else None
        if file is None or not file.is_file() or file.is_symlink():
            return ""
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - limit))
            return stream.read(limit).decode("utf-8", "replace")


def open_run(path: Path) -> Run:
    """Open a run folder. Raises StoreError with one sentence."""
    if not os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises for a name that is too long)
        raise StoreError(f"{str(path)[:300]} is no folder; name a run folder, such as results/NAME-STAMP")
    return Run(path)


# --- the end of a run -----------------------------------------------------------------------------------------------------


def _hash(file: Path) -> str:
    with plain(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _measured_files(path: Path) -> dict[str, Path]:
    """Name, fit for JSON and a terminal -> file. (os.walk recurses: folders nested a thousand deep would end it.)"""
    found: dict[str, Path] = {}
    todo = [path]
    while todo:
        folder = todo.pop()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) and entry.name not in (OVERLAYS, TABLES):
                    todo.append(folder / entry.name)
                unsealed = entry.name.endswith(".tmp") or (folder == path and entry.name in _UNSEALED)
                if entry.is_file(follow_symlinks=False) and not unsealed:
                    file = folder / entry.name
                    found[os.fsencode(file.relative_to(path)).decode("utf-8", "backslashreplace")] = file
    return found


def seal(path: Path, known: dict[str, str] | None = None) -> None:
    """Write sha256.json over every measured file; `known` sums are of files that are about to be written."""
    sums = {name: _hash(file) for name, file in _measured_files(path).items()} | (known or {})
    write_atomic(path / SUMS, msgspec.json.format(msgspec.json.encode(sums, order="sorted"), indent=1))


def changed_files(path: Path) -> list[str]:
    """Files that differ from what the run sealed, each with how ("changed", "missing", "added"); empty when it sealed none.

    Raises StoreError when the list itself cannot be read.
    """
    file = path / SUMS
    try:
        sums = msgspec.json.decode(whole(file, _SMALL_BYTES), type=dict[str, str])
    except FileNotFoundError:
        return []
    except _NOT_ROWS as error:
        raise StoreError(f"{file} cannot be read: {error}") from error
    present = _measured_files(path)
    differing = [f"{name} (missing)" for name in sorted(sums) if name not in present]
    differing += [f"{name} (changed)" for name in sorted(sums) if name in present and _hash(present[name]) != sums[name]]
    return differing + [f"{name} (added)" for name in sorted(present) if name not in sums]
