"""A table, and its three forms: console text, Markdown that pastes into a pull request, CSV."""

from __future__ import annotations

import csv
import io
import shutil
import unicodedata
from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal

import msgspec

SIMULATED = "reference model, not a measurement"


class Column(msgspec.Struct, frozen=True):
    """Heading, unit (second header line, "" for none) and side."""

    name: str
    unit: str = ""
    align: Literal["left", "right"] = "right"
    spare: int = 0
    """Left out where a terminal is too narrow for all columns: the highest first, of equals the rightmost; 0 never."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Cells are text already; notes stand below, one sentence each."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    simulated: bool = False

    @property
    def heading(self) -> str:
        """The title, and whether what follows is a measurement."""
        return f"{self.title} - {SIMULATED}" if self.simulated else self.title


def clean(text: str) -> str:
    """One line without control characters: what came from an engine may hold anything."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in text)


def visible(table: Table) -> list[int]:
    """Indices of the columns that hold something in some row (all of them where nothing does)."""
    return [i for i in range(len(table.columns)) if any(row[i] not in ("", "-") for row in table.rows)] or list(
        range(len(table.columns))
    )


def terminal_width() -> int:
    """Columns to write for: the terminal's, within 80 and 200; 140 where there is none."""
    return max(80, min(shutil.get_terminal_size((140, 40)).columns, 200))


def as_text(table: Table, width: int = 0) -> str:
    """Aligned columns for a terminal. Columns without any figure are left out; with `width`, spare columns are left out
    and named below, and where that is not enough columns of words are wrapped.
    """
    keep, narrow = _fitting(table, visible(table), width)
    columns = [table.columns[i] for i in keep]
    rows = [[clean(row[i]) for i in keep] for row in table.rows]
    units = any(column.unit for column in columns)
    widths = _wrapped([_breadth(table, i) for i in keep], columns, width)

    def line(cells: Sequence[str]) -> str:
        parts = [
            cell.ljust(size) if column.align == "left" else cell.rjust(size)
            for cell, size, column in zip(cells, widths, columns, strict=True)
        ]
        return "  ".join(parts).rstrip()

    def lines(cells: Sequence[str]) -> list[str]:
        pieces = [wrap(cell, max(size, 1)) for cell, size in zip(cells, widths, strict=True)]
        return [line(list(each)) for each in zip_longest(*pieces, fillvalue="")]

    out = [table.heading, "", *lines([column.name for column in columns])]
    if units:
        out.append(line([column.unit for column in columns]))
    out.append("  ".join("-" * size for size in widths))
    for row in rows:
        out += lines(row)
    notes = [*table.notes, *narrow]
    if notes:
        out.append("")
        for note in notes:
            out += wrap(clean(note), width or 120, indent="  ")
    return "\n".join(out)


def _breadth(table: Table, i: int) -> int:
    column = table.columns[i]
    return max([len(column.name), len(column.unit), *(len(clean(row[i])) for row in table.rows)])


def _wrapped(widths: list[int], columns: Sequence[Column], width: int) -> list[int]:
    """Widths that fit: the widest column of words gives way first, down to 10."""
    words = [i for i, column in enumerate(columns) if column.align == "left"]
    least = {i: max(10, len(columns[i].unit)) for i in words}
    for _ in range(max(0, sum(widths) + 2 * (len(widths) - 1) - width) if width else 0):
        i = max((i for i in words if widths[i] > least[i]), key=lambda i: widths[i], default=None)
        if i is None:
            break
        widths[i] -= 1
    return widths


def _fitting(table: Table, keep: list[int], width: int) -> tuple[list[int], list[str]]:
    """The columns that fit, and a sentence about those that do not."""
    out: list[int] = []

    def total(columns: list[int]) -> int:
        last = columns[-1]
        ragged = min(_breadth(table, last), 24) if table.columns[last].align == "left" else _breadth(table, last)
        return sum(_breadth(table, i) for i in columns[:-1]) + ragged + 2 * (len(columns) - 1)

    spare = sorted((i for i in keep if table.columns[i].spare), key=lambda i: (table.columns[i].spare, i))
    while width and spare and total([i for i in keep if i not in out]) > width:
        out.insert(0, spare.pop())
    twice = {c.name for c in table.columns if sum(c.name == other.name for other in table.columns) > 1}
    columns = [table.columns[i] for i in sorted(out)]
    names = ", ".join(f"{c.name} {c.unit}".strip() if c.name in twice else c.name for c in columns)
    return [i for i in keep if i not in out], [f"left out at {width} columns: {names}"] if out else []


def wrap(text: str, width: int, first: str = "", indent: str = "") -> list[str]:
    """Lines of at most `width` columns."""
    import textwrap

    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False) or [""]


def escape(cell: str) -> str:
    """Nothing from an engine may become markup in a comment, or call somebody by name."""
    out = clean(cell)
    for char in "\\`*_[]<>|~":
        out = out.replace(char, "\\" + char)
    return out.replace("@", "@\u200b")


def as_markdown(table: Table) -> str:
    """A pipe table under a heading, notes as a list."""
    keep = visible(table)
    columns = [table.columns[i] for i in keep]
    out = [f"### {escape(table.title)}", ""]
    if table.simulated:
        out += [f"*{SIMULATED}*", ""]
    out.append("| " + " | ".join(f"{c.name} ({c.unit})" if c.unit else c.name for c in columns) + " |")
    out.append("|" + "|".join("---" if c.align == "left" else "---:" for c in columns) + "|")
    out += ["| " + " | ".join(escape(row[i]) for i in keep) + " |" for row in table.rows]
    if table.notes:
        out += ["", *(f"- {escape(note)}" for note in table.notes)]
    return "\n".join(out)


def file_names(tables: Sequence[Table]) -> list[str]:
    """A name for a file of each table, made of its title; of several with one title the later ones are numbered."""
    seen: dict[str, int] = {}
    names = []
    for table in tables:
        stem = "-".join("".join(c if c.isalnum() else " " for c in table.title.lower()).split())
        seen[stem] = seen.get(stem, 0) + 1
        names.append(stem if seen[stem] == 1 else f"{stem}-{seen[stem]}")
    return names


def as_csv(table: Table) -> str:
    """RFC 4180; the unit in the column's name, an empty cell for null."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        [f"{c.name} ({c.unit})" if c.unit else c.name for c in table.columns] + (["note"] if table.simulated else [])
    )
    for row in table.rows:
        cells = ["" if cell == "-" else clean(cell) for cell in row]
        # a spreadsheet must not run what an engine wrote
        cells = ["'" + c if c[:1] in ("=", "+", "@") or (c[:1] == "-" and not c[1:2].isdigit()) else c for c in cells]
        writer.writerow(cells + ([SIMULATED] if table.simulated else []))
    return buffer.getvalue()


# --- figures as text ------------------------------------------------------------------------------------------------------


def number(value: float | int | None, digits: int = 3) -> str:
    """A figure with `digits` significant digits and no exponent; "-" for null."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    import math

    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    return f"{value:.{decimals}f}"


def whole(value: float | int | None) -> str:
    """A count; "-" for null."""
    return "-" if value is None else f"{value:,.0f}"


def milli(seconds: float | None, digits: int = 3) -> str:
    """Seconds as milliseconds."""
    return "-" if seconds is None else number(seconds * 1e3, digits)


def percent(share: float | None, decimals: int = 1) -> str:
    """A share 0..1 as %, without the sign of the unit (the column has it)."""
    return "-" if share is None else f"{share * 100:.{decimals}f}"
