"""Columnar copies of a run's rows, made at its end in a process of their own: `python -m evenhand.columnar RUN PARENT_PID`."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from evenhand.records import RequestRow, SampleRow
from evenhand.store import fresh, stream_rows

_PR_SET_PDEATHSIG = 1


def columnar(path: Path) -> None:
    """requests.parquet and samples.parquet, made beside and renamed; heavy imports only here."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("requests", "samples"):
        files = [f for f in sorted(path.glob(f"[0-9][0-9][0-9]-*/{name}.jsonl")) if not f.parent.is_symlink()]
        if not files:
            continue
        kind: type[msgspec.Struct] = RequestRow if name == "requests" else SampleRow
        # a hundred rows at a time: as Python objects all of a long run would take gigabytes
        tables = [pa.Table.from_pylist(part) for file in files for part in _batches(stream_rows(file, kind))]
        if not tables:
            continue
        table = pa.concat_tables(tables, promote_options="permissive")
        temporary = path / f".{name}.parquet.tmp"
        with fresh(temporary) as stream:
            pq.write_table(table, stream, compression="zstd")
        temporary.replace(path / f"{name}.parquet")


def _batches(rows: Iterator[msgspec.Struct], size: int = 100) -> Iterator[list[dict[str, Any]]]:
    """Flat rows for a table, `size` at a time."""
    while part := list(itertools.islice(rows, size)):
        plain = [msgspec.to_builtins(row) for row in part]
        for row in plain:
            if "sampling" in row:
                row["sampling"] = msgspec.json.encode(row["sampling"]).decode()
            if "values" in row:  # as columns: `usage`, `running`, ...
                row.pop("by_engine")
                row.update(row.pop("values"))
        names = dict.fromkeys(name for row in plain for name in row)  # pyarrow takes those of the first row only
        yield [{name: row.get(name) for name in names} for row in plain]


def _end_with(parent: int) -> None:
    """So that a killed harness leaves nobody behind who writes into its run (Linux; elsewhere it is a matter of a second)."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        pass
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    _end_with(int(sys.argv[2]))
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # pools of its own hold what they have freed
    columnar(Path(sys.argv[1]))
