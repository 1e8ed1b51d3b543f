"""Execute a plan: boot each leg, measure its cells, store rows. The plan says what to do, judging what it means."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from evenhand import scenario as sc
from evenhand.arms import ArmPreparer, Prepared
from evenhand.boot.guardian import Guardian
from evenhand.boot.leg import LegName, Running, boot_leg
from evenhand.drive.loop import Progress
from evenhand.judge.stats import median
from evenhand.measure import Bench, found_output_tokens, steady_tpot
from evenhand.plan import CellPlan, LegPlan, Plan
from evenhand.progress import Event, Listener, silent
from evenhand.records import CellRow, EventRow, LegRow, Outcome, RequestRow
from evenhand.replay import diverged, replay
from evenhand.resume import Done
from evenhand.stop import Interrupted, Stop
from evenhand.store import RunWriter, open_run
from evenhand.watch.sampler import Sampler
from evenhand.workload import Workload


class Campaign:
    """One run of a plan into one run folder."""

    def __init__(
        self,
        scenario: sc.Scenario,
        plan: Plan,
        writer: RunWriter,
        stop: Stop,
        listener: Listener = silent,
        done: Done | None = None,
    ) -> None:
        self.scenario, self.plan, self.writer, self.stop, self.tell = scenario, plan, writer, stop, listener
        self.done = done or Done()
        self._output = dict(self.done.output_tokens)
        self._arms = ArmPreparer(scenario, plan, writer.path)

    def run(self) -> str:
        """Execute every leg that is not done. Returns "finished" or "interrupted"; rows are on disk either way."""
        with contextlib.closing(self._arms), Guardian() as guardian:
            for arm in self.scenario.arm:
                if arm.build is not None:
                    self.tell(
                        Event(what="note", arm=arm.name, text=f"building with {arm.build!r}, unless that was done before")
                    )
            self._arms.build(guardian, self.stop)
            if not self.stop.is_set():
                self._arms.check()
                self._workload = Workload(self.scenario, self.scenario.model, as_text=not self._arms.takes_ids)
            held: str | None = None
            for leg in self.plan.legs:
                if leg.leg in self.done.legs:
                    continue
                if self.stop.is_set() or held:
                    self._leave_out(leg, "not_run", held or "the run was interrupted before this leg")
                else:
                    held = still_held(self._leg(guardian, leg), self.plan.kind)
            if self.plan.kind == "gate" and not self.stop.is_set() and not held:
                self._replay(guardian)
        return "interrupted" if self.stop.is_set() else "finished"

    def _leg(self, guardian: Guardian, leg: LegPlan) -> LegRow:
        folder = self.writer.leg_folder(leg.leg, leg.arm)
        self._say(leg, "leg", text="booting" + (" (uncounted, warms the compile caches)" if leg.role == "warm_boot" else ""))
        with self._arms.prepare(leg, folder) as prepared:
            booted = boot_leg(
                guardian,
                prepared.engine,
                prepared.settings,
                folder,
                LegName(leg=leg.leg, arm=leg.arm, role=leg.role, pair=leg.pair),
                self.scenario.deadlines,
                capabilities=prepared.capabilities if leg.arm in self._arms.capabilities else None,
                overlay=prepared.overlay,
                env=prepared.env,
                python_path=prepared.python_path,
                stop=self.stop,
            )
            if isinstance(booted, LegRow):
                row = booted
                self._leave_out(leg, row.outcome, row.reason or row.outcome)
            else:
                prepared.ready()
                boot_s = (booted.ready_ns - booted.start_ns) / 1e9
                self._say(leg, "ready", text=f"ready after {boot_s:.1f} s, seats {booted.seats or '?'}, {_pool_words(booted)}")
                row = self._measure(leg, folder, booted, prepared)
            row = prepared.finish(row)
        row = msgspec.structs.replace(row, earlier=self.done.earlier.get(leg.leg, []))
        self.writer.leg(row)
        self._say(leg, "leg_end", outcome=row.outcome, text=row.reason or "")
        return row

    def _replay(self, guardian: Guardian) -> None:
        """One more boot of the baseline, uncounted, when outputs differ: how close was the first token that differs?"""
        gate = self.scenario.gate
        assert gate is not None
        wanted = diverged(open_run(self.writer.path), gate)
        if not wanted or self.writer.path.joinpath("replays.jsonl").exists():
            return
        first = next(leg for leg in self.plan.legs if leg.arm == gate.baseline and leg.cells)
        leg = msgspec.structs.replace(first, leg=len(self.plan.legs), role="control", pair=None)
        folder = self.writer.leg_folder(leg.leg, "replay")
        self._say(leg, "note", text=f"replaying {len(wanted)} requests that differ, untimed, for their log-probability margins")
        with self._arms.prepare(leg, folder) as prepared:
            name = LegName(leg=leg.leg, arm=leg.arm, role="control")
            booted = boot_leg(
                guardian,
                prepared.engine,
                prepared.settings,
                folder,
                name,
                self.scenario.deadlines,
                overlay=prepared.overlay,
                env=prepared.env,
                python_path=prepared.python_path,
                stop=self.stop,
            )
            if isinstance(booted, LegRow):
                self._say(leg, "note", text=f"no replay: {booted.reason}")
                return
            try:
                rows = replay(
                    booted,
                    leg,
                    wanted,
                    self._output,
                    self._workload,
                    self.scenario.deadlines,
                    self.stop,
                    self.scenario.seed,
                    folder,
                )
            finally:
                booted.stop()
        self.writer.append(self.writer.path / "replays.jsonl", rows)

    def _measure(self, leg: LegPlan, folder: Path, booted: Running, prepared: Prepared) -> LegRow:
        """All cells of a leg on a ready engine, which is stopped whatever happens."""
        interrupted = False
        try:
            with self._sampler(leg, folder, booted) as sampler:
                try:
                    self._cells(leg, folder, booted, sampler)
                except Interrupted:
                    interrupted = True
        finally:
            row = booted.stop()
        row = msgspec.structs.replace(row, sampler=sampler.stop())
        if interrupted and row.outcome == "ok":
            row = msgspec.structs.replace(row, outcome="interrupted", reason="the run was interrupted")
        return row

    def _sampler(self, leg: LegPlan, folder: Path, booted: Running) -> Sampler:
        watch, facts = self.scenario.watch, booted.engine.facts
        return Sampler(
            leg.leg,
            booted.base_url,
            facts.gauges,
            facts.metrics_path if watch.metrics else None,
            watch.interval_s,
            folder,
            booted.api_key,
            nvml=watch.gpu,
            env=booted.env,
            roots=booted.tree(),
            pool_sizes=booted.pool.by_engine if booted.pool else None,
        )

    # --- cells ----------------------------------------------------------------------------------------------------------

    def _cells(self, leg: LegPlan, folder: Path, booted: Running, sampler: Sampler) -> None:
        def progress(cell: CellPlan, progress: Progress) -> None:
            latest = (sampler.latest() or {}).get("values", {})
            self._say(
                leg,
                "requests",
                cell=cell.cell,
                done=progress.done,
                total=progress.planned,
                failed=progress.failed,
                usage=latest.get("usage"),
                running=latest.get("running"),
            )

        bench = Bench(self.scenario, leg, booted, folder, self.stop, self._workload, progress)
        todo = [cell for cell in leg.cells if (leg.leg, cell.cell, cell.repeat) not in self.done.cells]
        gone = None
        with contextlib.suppress(Interrupted):  # then every cell below gets the row that says so
            gone = self._warm_up(leg, bench, booted)
        for number, cell in enumerate(todo):
            if self.stop.is_set() or gone:
                reason = f"the engine died before: {gone}" if gone else "the run was interrupted"
                for rest in todo[number:]:
                    self.writer.cell(self._empty(leg, rest, "not_run", reason))
                break
            gone = self._cell(leg, folder, bench, cell, booted)
        self.stop.check()

    def _warm_up(self, leg: LegPlan, bench: Bench, booted: Running) -> str | None:
        """Every prompt shape once, uncounted. Returns why the engine is gone, if it is."""
        tpots: dict[int, float | None] = {}
        shapes = ", ".join(f"{cell.requests} x {cell.prompt_tokens}" for cell in leg.warmup)
        self._say(leg, "note", text=f"warming up with {shapes} tokens")
        for cell in leg.warmup:
            self.stop.check()
            row, rows = bench.cell(cell, cell.output_tokens or 16)
            bench.drop_spills()
            if row.outcome == "died":
                return row.reason
            tpots[cell.prompt_tokens] = median([r.tpot_s for r in rows])
        alone = [tpots[cell.prompt_tokens] for cell in leg.warmup if cell.concurrency == 1]
        for planned in leg.cells:
            if planned.output_tokens is None and planned.cell not in self._output:
                room = None if self.scenario.context is None else self.scenario.context - planned.prompt_tokens
                tpot_s = steady_tpot(tpots.get(planned.prompt_tokens), alone)
                self._output[planned.cell] = found_output_tokens(tpot_s, self.scenario.watch.interval_s, room)
        return booted.check()

    def _cell(self, leg: LegPlan, folder: Path, bench: Bench, cell: CellPlan, booted: Running) -> str | None:
        """Measure a cell and store it. Returns why the engine is gone, if it is."""
        self._say(leg, "cell", cell=cell.cell, done=0, total=cell.requests)
        output = cell.output_tokens if cell.output_tokens is not None else self._output.get(cell.cell, 64)
        limit = booted.engine.facts.max_prompt_tokens(booted.settings)
        if limit is not None and cell.prompt_tokens + output > limit:
            reason = (
                f"{cell.prompt_tokens} + {output} tokens exceed what this engine can take ({limit}); sending them would end it"
            )
            self.writer.cell(self._empty(leg, cell, "not_run", reason))
            self._say(leg, "cell_end", cell=cell.cell, outcome="not_run", ok=0, failed=0, text=reason)
            return None
        row, rows = bench.cell(cell, output)
        if row.outcome == "ok" and (gone := booted.check()) is not None:
            row = msgspec.structs.replace(row, outcome="died", reason=gone)
        self._store(leg, folder, bench, row, rows)
        return row.reason or "died" if row.outcome == "died" else None

    def _store(self, leg: LegPlan, folder: Path, bench: Bench, row: CellRow, rows: list[RequestRow]) -> None:
        """Requests first, then the cell: a cell's row on disk means that its requests are, too. Then the raw reads may go."""
        self.writer.requests(folder, rows)
        self.writer.cell(row)
        bench.drop_spills()
        ok = sum(r.outcome == "ok" for r in rows)
        failed = sum(r.outcome == "failed" for r in rows)
        self._say(leg, "cell_end", cell=row.cell, outcome=row.outcome, ok=ok, failed=failed, text=row.reason or "")

    # --- rows without figures, and words ----------------------------------------------------------------------------------

    def _leave_out(self, leg: LegPlan, outcome: Outcome, reason: str) -> None:
        """Every cell of a leg that did not run gets its row, with the reason."""
        for cell in leg.cells:
            if (leg.leg, cell.cell, cell.repeat) not in self.done.cells:
                self.writer.cell(self._empty(leg, cell, outcome, reason))

    def _empty(self, leg: LegPlan, cell: CellPlan, outcome: Outcome, reason: str) -> CellRow:
        return CellRow(
            leg=leg.leg,
            arm=leg.arm,
            cell=cell.cell,
            kind=cell.kind,
            repeat=cell.repeat,
            concurrency=cell.concurrency,
            prompt_tokens=cell.prompt_tokens,
            output_tokens=cell.output_tokens,
            outcome=outcome,
            reason=reason,
            planned=cell.requests,
        )

    def _note(self, leg: LegPlan, what: str, detail: str) -> None:
        self.writer.event(EventRow(t_ns=time.monotonic_ns(), what=what, leg=leg.leg, detail=detail))

    def _say(self, leg: LegPlan, what: str, **more: object) -> None:
        event = Event(what=what, leg=leg.leg, legs=len(self.plan.legs), arm=leg.arm, **more)  # type: ignore[arg-type]
        self.tell(event)
        if what != "requests":
            self._note(leg, what, event.text or event.outcome or event.cell)


def still_held(row: LegRow, kind: str) -> str | None:
    """Why nothing can be booted after this leg, or None: it left processes, or, in a gate, the device's memory in use."""
    if row.survivors:
        return f"leftover processes {row.survivors} of leg {row.leg} ({row.arm}) hold what the next engine needs"
    if kind == "gate" and row.device_bytes_before is not None and row.released_s is None:
        return f"leg {row.leg} ({row.arm}) did not give its device's memory back: {row.reason}"
    return None


def _pool_words(booted: Running) -> str:
    pool = booted.pool
    if pool is None:
        return "pool not reported"
    parts = [
        f"{pool.blocks:,} blocks" if pool.blocks is not None else "",
        f"of {pool.block_tokens} tokens" if pool.blocks is not None and pool.block_tokens else "",
        f"{pool.tokens:,} tokens" if pool.blocks is None and pool.tokens is not None else "",
    ]
    return "pool " + (" ".join(p for p in parts if p) or "not reported")
