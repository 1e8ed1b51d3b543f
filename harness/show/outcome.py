"""What a run adds up to: sentences about cells that are not as they should be, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.judge import gaps
from evenhand.judge.ladder import LadderRow
from evenhand.judge.pressure import PressureRow
from evenhand.records import HAS_FIGURES
from evenhand.show.judged import Judged


def outcome_of(judged: Judged) -> tuple[list[str], int]:
    """Sentences, and 0 when every cell is ok or as expected, 2 otherwise. A gate's own code is its verdict's."""
    run, rows = judged.run, judged.rows
    lines, code = outcome_lines(rows, run.manifest.scenario.get("expect", {}))
    if run.partial:
        done = sum(row.outcome not in ("not_run", "interrupted") for row in rows)
        state = f"the run is marked {run.manifest.status}; {done} of {judged.planned} cells are done"
        lines.insert(0, f"partial: {state} (--resume does the rest)")
        code = 2
    if not rows:
        lines.append("no cell has a row: no evidence")
        code = 2
    if judged.verdict is None:  # which says by itself what is broken
        lacking = [*gaps.without_metrics(run, judged.reader), *judged.broken]
        lines += lacking
        code = 2 if lacking else code
    return lines, code if judged.verdict is None else judged.verdict.exit_code


def expectation(row: LadderRow | PressureRow) -> str:
    """The name that a scenario's `expect` uses for a cell."""
    kind, concurrency = (row.kind, row.concurrency) if isinstance(row, LadderRow) else ("", 0)
    return gaps.expectation(row.arm, kind, row.cell, concurrency)


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
