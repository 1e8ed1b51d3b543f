"""Untimed replays of requests whose outputs diverged in a gate: the top-2 log-probability margin at the divergence.

A small margin explains a difference (a near tie), it never excuses one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evenhand.boot.leg import Running
from evenhand.drive.cell import CellSpec, run_cell
from evenhand.engines.base import Sampling
from evenhand.judge.columns import Reader
from evenhand.judge.fairness import measured
from evenhand.judge.gate import compared, pairs_of
from evenhand.plan import CellPlan, LegPlan
from evenhand.records import RequestRow
from evenhand.scenario import Deadlines, Gate
from evenhand.secrecy import recorded_requests
from evenhand.stop import Stop
from evenhand.store import Run
from evenhand.workload import Workload

MOST = 16
"""Diverged requests that are replayed: the first ones are enough to tell ties from differences."""


def diverged(run: Run, gate: Gate) -> list[tuple[str, int]]:
    """(cell, index) of requests whose token ids or text differ between the arms, in the order of their keys; at most MOST."""
    matched = pairs_of(measured(run, gate.baseline), measured(run, gate.candidate))
    keys = sorted(
        {pair.key for comparison in compared(run, Reader(run), matched) for pair in comparison.pairs if pair.mismatch}
    )
    return [(key.rpartition("#")[0], int(key.rpartition("#")[2])) for key in keys[:MOST]]


def replay(
    running: Running,
    leg: LegPlan,
    wanted: Sequence[tuple[str, int]],
    output_tokens: dict[str, int],
    workload: Workload,
    deadlines: Deadlines,
    stop: Stop,
    seed: int,
    folder: Path,
) -> list[RequestRow]:
    """Ask each diverged request again, alone, with log-probabilities; the rows carry their measured key."""
    rows: list[RequestRow] = []
    cells = {cell.cell: cell for cell in leg.cells}
    for name, index in wanted:
        cell: CellPlan | None = cells.get(name)
        if cell is None or stop.is_set():
            continue
        prompt = workload.prompts(cell)[index]
        running.engine.facts.reset_cache(running.http)
        result = run_cell(
            CellSpec(
                leg=leg.leg,
                arm=leg.arm,
                cell=name,
                kind="control",
                base_url=running.base_url,
                dialect=running.dialect,
                model=running.settings.served_name,
                prompts=[prompt],
                prompt_tokens=[cell.prompt_tokens],
                keys=[f"{name}#{index}"],
                sampling=Sampling(seed=seed, max_tokens=cell.output_tokens or output_tokens.get(name, 64), logprobs=2),
                concurrency=1,
                headers=running.headers,
                deadlines=deadlines,
                spill_path=folder / "replay.spill",
                alive=running.alive,
                stop=stop,
            )
        )
        rows += recorded_requests(result.rows, running.api_key)
    return rows
