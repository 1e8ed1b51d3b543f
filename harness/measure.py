"""One cell on a running engine: empty the cache, wait until idle, count, drive, settle, count again, write rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from evenhand import scenario as sc
from evenhand.boot.leg import Running
from evenhand.drive.cell import CellResult, CellSpec, run_cell
from evenhand.drive.loop import Progress
from evenhand.engines.base import Sampling
from evenhand.judge.stats import median
from evenhand.plan import CellPlan, LegPlan
from evenhand.records import CellRow, Outcome, RequestRow
from evenhand.secrecy import recorded_requests
from evenhand.stop import Interrupted, Stop
from evenhand.watch.idle import wait_idle
from evenhand.watch.scrape import Scrape, delta, scrape
from evenhand.workload import Workload

PLATEAU_INTERVALS = 4
"""A pressure request keeps decoding for at least this many sample intervals, so that its plateau is seen."""
WARM_UP_SLOWNESS = 2
"""How much slower than what follows it a warm-up may be: an answer sized by it still lasts PLATEAU_INTERVALS."""
STALE_AFTER_S = 3.0
"""Gauges that stand still for so long, after the client's last request ended, are not going to say that the engine is idle."""
MAX_FOUND_OUTPUT = 4096
DEFAULT_OUTPUT = 64


def found_output_tokens(tpot_s: float | None, interval_s: float, room: int | None) -> int:
    """Output tokens that keep decoding on for PLATEAU_INTERVALS intervals, from a warm-up's time per output token."""
    wanted = DEFAULT_OUTPUT if not tpot_s else math.ceil(WARM_UP_SLOWNESS * PLATEAU_INTERVALS * interval_s / tpot_s) + 2
    wanted = max(8, min(wanted, MAX_FOUND_OUTPUT))
    return wanted if room is None else max(1, min(wanted, room))


def steady_tpot(own_s: float | None, all_s: Sequence[float | None]) -> float | None:
    """Seconds per output token of a warm-up, never below the median over the warm-ups of one request at a time.

    A short answer can arrive in one burst (a front end that was busy while the engine went on); its own figure is then far too
    small, and a pressure run sized by it would decode for minutes.
    """
    usual = median(all_s)
    return own_s if usual is None else max(own_s or 0.0, usual)


def cold_proof(rows: list[RequestRow], counters: dict[str, float | None]) -> tuple[bool | None, str | None]:
    """Whether the cell ran on a cold cache: by each request's cached tokens, else by the counter, else not proved."""
    ended = [row for row in rows if row.outcome == "ok"]
    cached = [row.cached_tokens for row in ended]
    if ended and all(c is not None for c in cached):
        total = sum(c or 0 for c in cached)
        return total == 0, None if total == 0 else f"{total} prompt tokens came from the prefix cache"
    known = (counters.get(name) for name in ("cached_prompt_tokens", "prefix_hits"))
    hits = next((count for count in known if count is not None), None)
    if ended and hits is not None:
        return hits == 0, "by the engine's counter" if hits == 0 else f"the engine's counter rose by {hits:g} cached tokens"
    return None, "cold cache not proved: the engine reports no cached tokens"


class StopClock:
    """The clock of waiting, cut short by a stop."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def monotonic_ns(self) -> int:
        """The time line of every row."""
        return time.monotonic_ns()

    def sleep(self, seconds: float, /) -> None:
        """Raises Interrupted when the run was asked to end."""
        self._stop.wait(seconds)
        self._stop.check()


class Bench:
    """Cells of one leg on a running engine."""

    def __init__(
        self,
        scenario: sc.Scenario,
        leg: LegPlan,
        running: Running,
        folder: Path,
        stop: Stop,
        workload: Workload,
        on_progress: Callable[[CellPlan, Progress], None],
    ) -> None:
        self.scenario, self.leg, self.running, self.folder, self.stop = scenario, leg, running, folder, stop
        self.workload, self.on_progress = workload, on_progress
        facts = running.engine.facts
        self._gauges, self._metrics = facts.gauges, facts.metrics_path if scenario.watch.metrics else None

    def cell(self, plan: CellPlan, output_tokens: int) -> tuple[CellRow, list[RequestRow]]:
        """Measure one cell. Requests that failed are rows; an engine that died gives the outcome "died"."""
        reset = self._reset_cache(plan)
        before = self._scrape()
        result = run_cell(self._spec(plan, output_tokens))
        died = result.died or self._gone(result)
        settle_ns, settle_reason = (None, "the engine is gone") if died else self._settle()
        interrupted = "the run was interrupted" if result.interrupted else None
        after = Scrape(status="engine gone") if died else self._scrape()
        change = delta(before, after, self._gauges)
        cold, cold_reason = cold_proof(result.rows, change.counters)
        row = CellRow(
            leg=self.leg.leg,
            arm=self.leg.arm,
            cell=plan.cell,
            kind=plan.kind,
            repeat=plan.repeat,
            concurrency=plan.concurrency,
            prompt_tokens=plan.prompt_tokens,
            output_tokens=output_tokens,
            outcome=self._outcome(result, died, change.restarted),
            reason=interrupted or died or result.limit or (change.reason if change.restarted else None),
            planned=plan.requests,
            start_ns=result.start_ns,
            end_ns=result.end_ns,
            settle_ns=settle_ns,
            settle_reason=settle_reason,
            cold=cold if plan.kind != "reuse" else None,
            cold_reason=cold_reason if plan.kind != "reuse" else "a reuse cell warms the cache on purpose",
            cache_reset=reset,
            counters=change.counters,
            counters_reason=change.reason,
            restarted=change.restarted,
            lag=result.lag,
            deadlines_s=msgspec.to_builtins(self.scenario.deadlines),
        )
        return row, recorded_requests(result.rows, self.running.api_key)

    def drop_spills(self) -> None:
        """Raw reads whose rows are on disk, or that were never to be kept (warm-up)."""
        for spill in self.folder.glob("rung-*.spill"):
            spill.unlink()

    def _gone(self, result: CellResult) -> str | None:
        """Why the engine is gone, looked at where a request failed: a dead one must not be waited for."""
        return self.running.check() if any(row.outcome == "failed" for row in result.rows) else None

    def _outcome(self, result: CellResult, died: str | None, restarted: bool) -> Outcome:
        if result.interrupted:
            return "interrupted"
        if died:
            return "died"
        return "void" if restarted or result.limit else "ok"

    def _spec(self, plan: CellPlan, output_tokens: int) -> CellSpec:
        scenario, running = self.scenario, self.running
        ladder = scenario.ladder if plan.kind == "ladder" else None
        prompts = self.workload.prompts(plan)
        text = bool(prompts) and isinstance(prompts[0], str)
        return CellSpec(
            leg=self.leg.leg,
            arm=self.leg.arm,
            cell=plan.cell,
            repeat=plan.repeat,
            kind=plan.kind,
            base_url=running.base_url,
            dialect=running.dialect,
            model=scenario.served_name,
            prompts=prompts,
            prompt_tokens=[plan.prompt_tokens] * len(prompts) if text else None,
            sampling=Sampling(
                seed=scenario.seed,
                ignore_eos=scenario.ignore_eos,
                max_tokens=output_tokens,
            ),
            concurrency=plan.concurrency,
            arrivals=ladder.arrivals if ladder else "closed",
            rate=ladder.rate if ladder else None,
            burst=ladder.burst if ladder else 1,
            seed=scenario.seed,
            headers=running.headers,
            deadlines=scenario.deadlines,
            spill_path=self.folder / f"rung-{len(list(self.folder.glob('rung-*.spill')))}.spill",
            keep_spill=True,  # until the rows are on disk
            alive=running.check,
            on_progress=lambda progress: self.on_progress(plan, progress),
            stop=self.stop,
        )

    def _reset_cache(self, plan: CellPlan) -> str:
        if plan.kind == "warmup":
            return "not asked for a warm-up"
        reason = self.running.engine.facts.reset_cache(self.running.http)
        return "reset by the engine" if reason is None else f"not reset: {reason}"

    def _scrape(self) -> Scrape:
        return scrape(self.running.http, self._metrics, self._gauges)

    def _settle(self) -> tuple[int | None, str | None]:
        """Wait until the engine's gauges say idle."""
        if not self._metrics:
            return None, "no gauges to tell"

        def read() -> dict[str, float | None] | None:
            scraped = self._scrape()
            return dict(scraped.values) if scraped.status == "ok" else None

        step_s = min(0.25, self.scenario.watch.interval_s)
        try:
            settled = wait_idle(read, self.scenario.deadlines.settle_s, StopClock(self.stop), step_s, STALE_AFTER_S)
        except Interrupted:  # the cell's requests are over: its row is written, the leg ends after it
            return None, "the run was interrupted"
        return settled.settle_ns, settled.reason
