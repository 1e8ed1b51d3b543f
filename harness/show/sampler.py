"""How well the pool was sampled, and what that took from the server."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.records import LegRow, SamplerReport
from evenhand.show.table import Column, Table, milli, percent, whole


def sampler_table(legs: Sequence[LegRow], simulated: bool, brief: bool = False) -> Table | None:
    """One row per boot that was sampled. `brief`: of each arm the boot whose server gave most of its time to scrapes."""
    every = [(leg, leg.sampler) for leg in legs if leg.sampler is not None and leg.sampler.samples + leg.sampler.failed]
    if not every:
        return None
    shown = every
    if brief:
        arms = dict.fromkeys(leg.arm for leg, _ in every)
        shown = [max((pair for pair in every if pair[0].arm == arm), key=lambda pair: _share(pair[1])) for arm in arms]
    notes = ["in flight: share of the time with a scrape under way, the most that sampling can have taken from the server"]
    if len(shown) < len(every):
        notes.append(f"the boot with the largest share of each arm; all {len(every)} are in the Markdown form of this table")
    notes += dict.fromkeys(f"{leg.arm}: {warning}" for leg, report in shown for warning in report.warnings)
    return Table(
        title="Sampler",
        columns=(
            Column("arm", "", "left"),
            Column("leg"),
            Column("interval", "asked, ms"),
            Column("kept", "ms"),
            Column("scrapes"),
            Column("failed", spare=1),
            Column("skipped", spare=1),
            Column("longest gap", "ms"),
            Column("late p99", "ms"),
            Column("scrape p50", "ms"),
            Column("p99", "ms"),
            Column("in flight", "%"),
            Column("status", "", "left", spare=1),
        ),
        rows=[_line(leg, report) for leg, report in shown],
        notes=notes,
        simulated=simulated,
    )


def _share(report: SamplerReport) -> float:
    return report.scrape_share or 0.0


def _line(leg: LegRow, report: SamplerReport) -> list[str]:
    return [
        leg.arm,
        whole(leg.leg),
        milli(report.interval_s),
        milli(report.effective_interval_s),
        whole(report.samples),
        whole(report.failed),
        whole(report.skipped),
        milli(report.gap_max_s),
        milli(report.jitter_p99_s),
        milli(report.scrape_p50_s),
        milli(report.scrape_p99_s),
        percent(report.scrape_share),
        report.status,
    ]
