"""What a run says when it ends: tables on the console, the same as Markdown and CSV beside the rows, and the exit code."""

from __future__ import annotations

from pathlib import Path

from evenhand.show.judged import Judged, judge_folder
from evenhand.show.outcome import outcome_of
from evenhand.show.sections import run_sections
from evenhand.show.table import as_csv, as_markdown, as_text, clean, file_names, terminal_width, wrap
from evenhand.show.verdict_md import listed, status_line, verdict_text, write_verdict_files
from evenhand.store import TABLES, StoreError, subfolder, write_atomic


def summarise(path: Path) -> tuple[str, int]:
    """Print-ready text of a run folder and its exit code; writes tables.md and CSV files beside the rows, and a gate's verdict.

    Raises StoreError, JudgeError or RuleError in one sentence.
    """
    width = terminal_width()
    judged = judge_folder(path)
    lines, code = outcome_of(judged)
    parts = [as_text(table, width) for section in run_sections(judged, width) for table in section.tables]
    parts += ["\n".join(piece for line in lines for piece in wrap(clean(line), width, indent="  "))] if lines else []
    where = _write_tables(judged, path)
    if judged.verdict is None:
        return "\n\n".join([*parts, *listed("not measured", judged.not_measured, width), where]), code
    try:
        where += "".join(f"\n{text}" for text in write_verdict_files(path, judged.verdict, judged.run))
    except (StoreError, OSError) as error:
        where += f" (no verdict files written there: {error})"
    return "\n\n".join([*parts, verdict_text(judged.verdict, width), where, status_line(judged.verdict)]), code


def _write_tables(judged: Judged, path: Path) -> str:
    """tables/ of a run folder, where it can be written; what to say of it."""
    tables = [table for section in run_sections(judged) for table in section.tables]
    try:
        folder = subfolder(path, TABLES)
        write_atomic(folder / "tables.md", "\n\n".join(as_markdown(table) for table in tables).encode() + b"\n")
        for name, table in zip(file_names(tables), tables, strict=True):
            write_atomic(folder / f"{name}.csv", as_csv(table).encode())
    except (StoreError, OSError) as error:
        return f"rows and logs are in {path} (no tables written there: {error})"
    return f"rows and logs are in {path}\nthese tables as Markdown and CSV are in {folder}"
