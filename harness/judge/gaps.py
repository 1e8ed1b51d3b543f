"""Planned cells and required metrics that a run did not measure: no rule that needs them may pass over their absence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evenhand.judge.columns import Reader
from evenhand.judge.view import JudgeRow, RunView
from evenhand.records import HAS_FIGURES, CellRow


class Gap(JudgeRow, frozen=True, kw_only=True):
    """One planned cell of one leg without figures, or with fewer requests on record than planned."""

    leg: int
    arm: str
    cell: str
    kind: str
    why: str
    absent: bool
    """It has no row at all."""
    control: bool
    """The baseline against itself needed it, no comparison of the arms did."""
    expected: bool
    """The scenario's `expect` names this outcome."""


def expectation(arm: str, kind: str, cell: str, concurrency: int) -> str:
    """The name that a scenario's `expect` uses for a cell: "vllm@32", "vllm@pressure/14000"."""
    return f"{arm}@{concurrency}" if kind == "ladder" else f"{arm}@{cell}"


def gaps(run: RunView, reader: Reader) -> list[Gap]:
    """Gaps of every leg that has figures; a partial run and a leg without figures are void as a whole, and said so elsewhere.

    A rung whose times alone are void (a client that starved the engine) is no gap: all its outputs are there.
    """
    if run.partial:
        return []
    roles = {leg.leg: leg.role for leg in run.legs if leg.role != "warm_boot" and leg.outcome in HAS_FIGURES}
    expect = run.manifest.scenario.get("expect") or {}
    rows = {(cell.leg, cell.cell, cell.repeat): cell for cell in run.cells if cell.kind != "warmup"}
    planned = dict(_planned(run)) | {key: (cell.arm, cell.kind, cell.concurrency) for key, cell in rows.items()}
    found = []
    for (leg, name, repeat), (arm, kind, concurrency) in planned.items():
        row = rows.get((leg, name, repeat))
        lack = _lack(row, reader) if leg in roles else None
        if lack is None:
            continue
        found.append(
            Gap(
                leg=leg, arm=arm, cell=name, kind=kind, why=lack[1], absent=row is None,
                control=repeat > 0 or roles[leg] == "control",
                expected=expect.get(expectation(arm, kind, name, concurrency)) == lack[0],
            )
        )  # fmt: skip
    return found


def _planned(run: RunView) -> Iterator[tuple[tuple[int, str, int], tuple[str, str, int]]]:
    """(leg, cell, repeat) -> (arm, kind, concurrency), as the stored plan has it."""
    for leg in run.manifest.plan.get("legs", ()):
        for cell in leg.get("cells", ()):
            if "leg" in leg and "cell" in cell:
                about = (leg.get("arm", ""), cell.get("kind", ""), cell.get("concurrency", 1))
                yield (leg["leg"], cell["cell"], cell.get("repeat", 0)), about


def _lack(row: CellRow | None, reader: Reader) -> tuple[str, str] | None:
    """(outcome, words) of a cell that cannot be compared whole; None where it can."""
    if row is None:
        return "not_run", "there is no row of it"
    if row.outcome not in HAS_FIGURES:
        return row.outcome, f"{row.outcome}: {row.reason or 'no reason given'}"
    recorded = len(reader.columns(row.leg).where(row.cell, row.repeat))
    return ("void", f"{recorded} of {row.planned} requests were recorded") if recorded < row.planned else None


def without_metrics(run: RunView, reader: Reader) -> list[str]:
    """Counted legs with figures but without one usable scrape, one sentence each, where the scenario requires metrics."""
    if not run.manifest.scenario.get("watch", {}).get("require_metrics"):
        return []
    found = []
    for leg in run.legs:
        samples = reader.samples(leg.leg)
        if leg.role != "warm_boot" and leg.outcome in HAS_FIGURES and not any(sample.status == "ok" for sample in samples):
            why = samples[-1].status if samples else "was not scraped"
            found.append(f"{leg.arm}, leg {leg.leg}: /metrics {why}; the scenario requires metrics")
    return found


def told(found: Sequence[Gap]) -> list[str]:
    """One sentence per cell: "ladder/c=512 was not measured: base on leg 0, 3: void: client limit ..."."""
    cells: dict[str, dict[tuple[str, str], list[int]]] = {}
    for gap in found:
        cells.setdefault(gap.cell, {}).setdefault((gap.arm, gap.why), []).append(gap.leg)
    return [
        f"{cell} was not measured: "
        + "; ".join(f"{arm} on leg {', '.join(map(str, legs))}: {why}" for (arm, why), legs in each.items())
        for cell, each in cells.items()
    ]
