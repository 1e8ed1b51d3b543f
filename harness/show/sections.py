"""What is shown of a judged run, in the order in which it is read: the one list that console, Markdown and page are made of."""

from __future__ import annotations

import msgspec

from evenhand.judge.verdict import Verdict
from evenhand.show.judged import Judged
from evenhand.show.ladder import ladder_table
from evenhand.show.meaning import pool_unit
from evenhand.show.prediction import prediction_table
from evenhand.show.pressure import pressure_table
from evenhand.show.sampler import sampler_table
from evenhand.show.table import Table
from evenhand.show.tables import (
    DETAIL,
    across_table,
    client_table,
    device_cells_table,
    ledger_table,
    refusal_table,
    reuse_table,
)
from evenhand.show.verdict_tables import (
    configuration_table,
    device_table,
    divergence_table,
    memory_table,
    outputs_table,
    paired_tables,
    rules_table,
    timing_table,
)

FOLDED = "Effective configuration and environment"
"""Title of the table that is shown only when asked."""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A heading with its tables and the pictures that belong to them."""

    slug: str
    title: str
    tables: list[Table] = []
    pictures: list[str] = []
    """Slugs of the gallery."""


def verdict_sections(verdict: Verdict) -> list[Section]:
    """What decided a gate."""
    return [
        Section(slug="rules", title="Rules", tables=_some(rules_table(verdict), configuration_table(verdict))),
        Section(slug="paired", title="Pool pressure, paired", tables=paired_tables(verdict)),
        Section(
            slug="outputs",
            title="Outputs",
            tables=_some(outputs_table(verdict), divergence_table(verdict)),
            pictures=["divergence"],
        ),
        Section(slug="timing", title="Timing", tables=_some(timing_table(verdict)), pictures=["paired-differences"]),
    ]


def run_sections(judged: Judged, width: int = 0) -> list[Section]:
    """What was measured. `width`: for a screen of so many columns, where long tables are cut and say so."""
    verdict, simulated, run = judged.verdict, judged.simulated, judged.run
    unit = pool_unit([leg for leg in run.legs if leg.role != "warm_boot"], run.manifest.scenario)
    client = client_table(run.cells, simulated, brief=bool(width), rows=judged.ladder)
    return [
        Section(
            slug="ladder",
            title="Ladder",
            tables=_some(ladder_table(judged.ladder, simulated, unit) if judged.ladder else None),
            pictures=["ladder-throughput", "ladder-ttft"],
        ),
        Section(
            slug="pressure",
            title="Pool pressure",
            tables=_some(
                pressure_table(judged.pressure, simulated, unit) if judged.pressure else None,
                prediction_table(judged.predicted, simulated),
            ),
            pictures=["pool", "retained-states"],
        ),
        Section(slug="reuse", title="Prefix reuse", tables=_some(reuse_table(judged.reused, simulated))),
        Section(slug="refusals", title="Refusals", tables=_some(refusal_table(run.legs, simulated))),
        Section(slug="across", title="Outputs across arms", tables=_some(across_table(judged.across, simulated))),
        Section(
            slug="devices",
            title="Devices",
            tables=_some(
                *([device_table(verdict), memory_table(verdict)] if verdict else []),
                device_cells_table(judged.devices, simulated),
            ),
            pictures=["gpu"],
        ),
        Section(slug="client", title="Client", tables=_some(client, sampler_table(run.legs, simulated, brief=bool(width)))),
        Section(slug="ledger", title="Fairness", tables=_ledger(judged, width)),
    ]


def _ledger(judged: Judged, width: int) -> list[Table]:
    """The ledger; where there is room in two: facts that people compare, and the effective configuration, which is long."""
    if width:
        return _some(ledger_table(judged.ledger, judged.simulated, width))
    detail = [row for row in judged.ledger if row.name.startswith(DETAIL)]
    facts = ledger_table([row for row in judged.ledger if row not in detail], judged.simulated)
    rest = ledger_table(detail, judged.simulated)
    return _some(facts, None if rest is None else msgspec.structs.replace(rest, title=FOLDED))


def _some(*tables: Table | None) -> list[Table]:
    return [table for table in tables if table is not None]
