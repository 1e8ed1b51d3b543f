"""What a run says when it ends: tables on the console, the same as Markdown and CSV beside the rows, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from evenhand.judge import gaps
from evenhand.judge.columns import Reader
from evenhand.judge.devices import device_rows
from evenhand.judge.gate import across_arms, judge_gate
from evenhand.judge.ladder import LadderRow, ladder_rows
from evenhand.judge.ledger import ledger
from evenhand.judge.pressure import PressureRow, pressure_rows
from evenhand.judge.reuse import reuse_rows
from evenhand.judge.verdict import Verdict
from evenhand.records import HAS_FIGURES
from evenhand.show.ladder import ladder_table
from evenhand.show.pressure import pressure_table
from evenhand.show.seal import broken_seal
from evenhand.show.table import Table, as_csv, as_markdown, as_text, terminal_width
from evenhand.show.tables import across_table, client_table, device_cells_table, ledger_table, refusal_table, reuse_table
from evenhand.show.verdict_md import status_line, verdict_text, write_verdict_files
from evenhand.store import TABLES, Run, StoreError, open_run, subfolder, write_atomic


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All tables of a run and what they add up to."""

    tables: list[Table]
    """Everything, for files."""
    console: list[Table]
    """The same, with long tables cut to what fits a screen."""
    lines: list[str]
    code: int


def expectation(row: LadderRow | PressureRow) -> str:
    """The name that a scenario's `expect` uses for a cell."""
    kind, concurrency = (row.kind, row.concurrency) if isinstance(row, LadderRow) else ("", 0)
    return gaps.expectation(row.arm, kind, row.cell, concurrency)


def summary(run: Run, width: int = 140) -> Summary:
    """Judge a stored run into tables, those of the console for `width` columns. Exit code 0 when every cell is ok or as
    expected, 2 otherwise.
    """
    reader = Reader(run)
    simulated = run.manifest.simulated
    ladder = ladder_rows(run, reader)
    pressure = pressure_rows(run, reader)
    reuse = pressure_rows(run, reader, kinds=("reuse",))
    tables = []
    if ladder:
        tables.append(ladder_table(ladder, simulated))
    if pressure:
        tables.append(pressure_table(pressure, simulated))
    extra = [
        reuse_table(reuse_rows(run, reader), simulated),
        refusal_table(run.legs, simulated),
        across_table(across_arms(run, reader), simulated) if run.manifest.kind == "run" else None,
        device_cells_table(device_rows(run, ladder, reader), simulated),
    ]
    tables += [table for table in extra if table is not None]
    facts = ledger(run, ladder)
    whole = [client_table(run.cells, simulated, rows=ladder), ledger_table(facts, simulated)]
    brief = [client_table(run.cells, simulated, brief=True, rows=ladder), ledger_table(facts, simulated, width)]
    rows: list[LadderRow | PressureRow] = [*ladder, *pressure, *reuse]
    lines, code = outcome_lines(rows, run.manifest.scenario.get("expect", {}))
    if run.manifest.scenario.get("watch", {}).get("require_metrics") and (without := _without_metrics(run, reader)):
        lines += [f"{text}; the scenario requires metrics" for text in without]
        code = code or 2
    if run.partial:
        done = sum(row.outcome not in ("not_run", "interrupted") for row in rows)
        planned = sum(len(leg["cells"]) for leg in run.manifest.plan.get("legs", []))
        state = f"the run is marked {run.manifest.status}; {done} of {planned} cells are done"
        lines.insert(0, f"partial: {state} (--resume does the rest)")
        code = code or 2
    if not rows:
        lines.append("no cell has a row: no evidence")
        code = 2
    return Summary(
        tables=[*tables, *(t for t in whole if t)], console=[*tables, *(t for t in brief if t)], lines=lines, code=code
    )


def _without_metrics(run: Run, reader: Reader) -> list[str]:
    """Arms of legs with figures but without one usable scrape, and why."""
    found = {}
    for leg in run.legs:
        samples = reader.samples(leg.leg)
        if leg.outcome in HAS_FIGURES and not any(sample.status == "ok" for sample in samples):
            found[leg.arm] = f"{leg.arm}: /metrics {samples[-1].status if samples else 'was not scraped'}"
    return list(found.values())


def outcome_lines(rows: Sequence[LadderRow | PressureRow], expect: dict[str, str]) -> tuple[list[str], int]:
    """Sentences about cells that are not ok, unexpected ones last, and the exit code."""
    expected, missing, surprising = [], [], []
    for row in rows:
        name, wanted = expectation(row), expect.get(expectation(row), "ok")
        text = f"{name}: {row.outcome}" + (f" ({row.reason})" if row.reason and row.outcome != "ok" else "")
        if row.outcome == wanted:
            if wanted != "ok":
                expected.append(f"as expected, {text}")
        elif wanted != "ok":
            surprising.append(f"{text}; the scenario expects {wanted}")
        elif row.outcome not in HAS_FIGURES:
            missing.append(text)
    if missing:
        missing.insert(0, f"{len(missing)} cell{'s have' if len(missing) > 1 else ' has'} no figures:")
    return [*expected, *surprising, *missing], 2 if missing or surprising else 0


def gate_verdict(run: Run, broken: Sequence[str]) -> Verdict:
    """Judge a gate run; only `judged_utc` differs when the same run is judged again. `broken`: what is wrong with its seal.

    Raises JudgeError in one sentence.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return judge_gate(run, now, changed=broken)


def summarise(path: Path) -> tuple[str, int]:
    """Print-ready text of a run folder and its exit code; writes tables.md and CSV files beside the rows."""
    run = open_run(path)
    broken = broken_seal(run)
    width = terminal_width()
    found = summary(run, width)
    gate = run.manifest.kind == "gate"  # whose verdict says by itself what is broken
    lines, code = [*found.lines, *([] if gate else broken)], found.code or (2 if broken else 0)
    parts = [as_text(table, width) for table in found.console]
    try:
        folder = subfolder(path, TABLES)
        write_atomic(folder / "tables.md", "\n\n".join(as_markdown(table) for table in found.tables).encode() + b"\n")
        for table in found.tables:
            write_atomic(folder / f"{table.title.split()[0].lower()}.csv", as_csv(table).encode())
        where = f"rows and logs are in {path}\nthese tables as Markdown and CSV are in {folder}"
    except (StoreError, OSError) as error:
        where = f"rows and logs are in {path} (no tables written there: {error})"
    parts += ["\n".join(lines)] if lines else []
    if gate:
        verdict = gate_verdict(run, broken)
        try:
            said = write_verdict_files(path, verdict)
            where += "".join(f"\n{text}" for text in said)
        except (StoreError, OSError) as error:
            where += f" (no verdict files written there: {error})"
        parts.append(verdict_text(verdict, width))
        where += f"\n\n{status_line(verdict)}"
        code = verdict.exit_code
    return "\n\n".join([*parts, where]), code
