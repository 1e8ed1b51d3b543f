"""What a report holds, in the order in which it is read, and the page made of it. The template escapes everything."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from evenhand.judge.arms import different_work, ranking
from evenhand.judge.devices import device_rows
from evenhand.judge.reuse import reuse_rows
from evenhand.records import HAS_FIGURES
from evenhand.show.console import outcome_lines
from evenhand.show.judged import Judged
from evenhand.show.ladder import ladder_table
from evenhand.show.prediction import prediction_table
from evenhand.show.pressure import pressure_table
from evenhand.show.repeat import commands, engine_commands, scenario_note
from evenhand.show.table import SIMULATED, Table, clean, number, visible
from evenhand.show.tables import (
    DETAIL,
    client_table,
    device_cells_table,
    ledger_table,
    refusal_table,
    reuse_table,
)
from evenhand.show.unmeasured import unmeasured
from evenhand.show.verdict_md import claimed, status_line
from evenhand.show.verdict_tables import (
    box_table,
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
"""Title of the table that a page shows only when asked."""
LOG_LINES = 200
LOG_CHARACTERS = 24_000
LOGS_CHARACTERS = 800_000
"""All logs together: a page must open from a mail attachment."""
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A heading with its tables and the pictures that belong to them."""

    slug: str
    title: str
    tables: list[Table] = []
    pictures: list[str] = []
    """Slugs of the gallery."""


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one leg's engine log."""

    title: str
    outcome: str
    reason: str
    text: str
    note: str


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A whole report but for its pictures."""

    run: str
    scenario: str
    description: str
    status: str
    """One word or two: a verdict's status, or "complete", "incomplete", "partial"."""
    line: str
    simulated: bool
    partial: bool
    alarms: list[str]
    """What a reader must know before anything else."""
    found: list[str]
    found_for: str
    """What all that was found begins with: arms, configuration, boots."""
    reasons: list[str]
    sections: list[Section]
    not_measured: list[str]
    widen: list[str]
    notes: list[str]
    commands: list[str]
    scenario_note: str
    engines: list[tuple[str, str]]
    box: Table
    logs: list[Log]


def page_of(judged: Judged, broken: Sequence[str] = ()) -> Page:
    """Everything a report says about a run. `broken`: what is wrong with its seal, one sentence each."""
    run, verdict = judged.run, judged.verdict
    manifest = run.manifest
    lines, code = outcome_lines(judged.rows, manifest.scenario.get("expect", {}))
    cells = [cell for cell in run.cells if cell.kind != "warmup"]
    planned = sum(len(leg.get("cells", ())) for leg in manifest.plan.get("legs", ())) or len(cells)
    measured = sum(row.outcome in HAS_FIGURES for row in judged.rows)
    alarms = []
    if run.partial:
        alarms.append(f"Partial: the run is marked {manifest.status}; {len(cells)} of {planned} planned cells have a row.")
    alarms += [f"The {text.removeprefix('the ')}." for text in broken]
    status: str
    if verdict is not None:
        status, line = verdict.status, status_line(verdict)
    else:
        status = "partial" if run.partial else ("complete" if code == 0 and cells else "incomplete")
        line = f"{status}: {measured} of {planned} cells have figures"
        expected = sum(text.startswith("as expected") for text in lines)
        line += f", {expected} more ended as the scenario expects" if expected else ""
    begin, found = claimed(verdict) if verdict else ("", _ranked(judged))
    return Page(
        run=manifest.run,
        scenario=str(manifest.scenario.get("name", "")),
        description=str(manifest.scenario.get("description", "")),
        status=status,
        line=line,
        simulated=judged.simulated,
        partial=run.partial,
        alarms=alarms,
        found=found,
        found_for=begin,
        reasons=[f"{reason.text} ({reason.scope})" for reason in verdict.reasons] if verdict else [*_limited(judged), *lines],
        sections=_sections(judged),
        not_measured=list(verdict.not_measured) if verdict else unmeasured(judged),
        widen=list(verdict.widen) if verdict else [],
        notes=list(verdict.notes) if verdict else [],
        commands=commands(manifest),
        scenario_note=scenario_note(manifest),
        engines=engine_commands(run.legs),
        box=box_table(manifest),
        logs=_logs(judged),
    )


def _ranked(judged: Judged) -> list[str]:
    """Who was fastest on the highest rung that every arm finished, or why nobody is ranked."""
    ranked = ranking(judged.rungs)
    if not ranked:
        return [f"{cell}: not ranked, {why}" for cell, why in different_work(judged.rungs).items()]
    rows = max(ranked.values(), key=lambda each: (len(each), each[0].concurrency))
    each = ", ".join(f"{row.arm} {number(row.tokens_per_s, 4)}" for row in rows)
    said = f"tokens/s at concurrency {rows[0].concurrency}, the same work for each: {each}"
    return [f"{SIMULATED}: {said}" if judged.simulated else said]


def _limited(judged: Judged) -> list[str]:
    """Cells with figures that are not what was asked: fewer seats, or fewer running than asked."""
    said: dict[str, list[str]] = {}
    for row in judged.ladder:
        if row.outcome in ("clamped", "queued"):
            said.setdefault(f"{row.arm}: {row.outcome}, {row.reason}", []).append(str(row.concurrency))
    return [f"{text} (concurrency {', '.join(dict.fromkeys(rungs))})" for text, rungs in said.items()]


def _sections(judged: Judged) -> list[Section]:
    verdict, simulated, run = judged.verdict, judged.simulated, judged.run
    sections = []
    if verdict is not None:
        sections += [
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
    ladder = ladder_table(judged.ladder, simulated) if judged.ladder else None
    pressure = pressure_table(judged.pressure, simulated) if judged.pressure else None
    devices = _some(device_table(verdict), memory_table(verdict)) if verdict else []
    devices += _some(device_cells_table(device_rows(run, judged.ladder), simulated))
    return [
        *sections,
        Section(slug="ladder", title="Ladder", tables=_some(ladder), pictures=["ladder-throughput", "ladder-ttft"]),
        Section(
            slug="pressure",
            title="Pool pressure",
            tables=_some(pressure, prediction_table(judged.predicted, simulated)),
            pictures=["pool", "retained-states"],
        ),
        Section(slug="reuse", title="Prefix reuse", tables=_some(reuse_table(reuse_rows(run), simulated))),
        Section(slug="refusals", title="Refusals", tables=_some(refusal_table(run.legs, simulated))),
        Section(slug="ledger", title="Fairness", tables=_ledger(judged)),
        Section(slug="devices", title="Devices", tables=devices, pictures=["gpu"]),
        Section(slug="client", title="Client", tables=_some(client_table(run.cells, simulated, rows=judged.ladder))),
    ]


def _ledger(judged: Judged) -> list[Table]:
    """The ledger in two: facts that people compare, and the effective configuration, which is long and folded."""
    detail = [row for row in judged.ledger if row.name.startswith(DETAIL)]
    facts = ledger_table([row for row in judged.ledger if row not in detail], judged.simulated)
    rest = ledger_table(detail, judged.simulated)
    if rest is not None:
        rest = msgspec.structs.replace(rest, title=FOLDED)
    return _some(facts, rest)


def _some(*tables: Table | None) -> list[Table]:
    return [table for table in tables if table is not None]


def _logs(judged: Judged) -> list[Log]:
    legs = judged.run.legs
    share = min(LOG_CHARACTERS, LOGS_CHARACTERS // max(1, len(legs)))
    found = []
    for leg in legs:
        text = judged.run.log(leg.leg, 4 * share)
        lines = [clean(line.replace("\t", "    ")) for line in _ANSI.sub("", text).replace("\r\n", "\n").split("\n")]
        tail = "\n".join(lines[-LOG_LINES:]).strip("\n")
        cut = tail[-share:]
        shorter = len(lines) > LOG_LINES or len(cut) < len(tail) or len(text) >= 4 * share
        role = {"warm_boot": ", uncounted warm boot", "control": ", control"}.get(leg.role, "")
        errors = "" if leg.log_errors is None else f", {leg.log_errors} ERROR lines"
        found.append(
            Log(
                title=f"leg {leg.leg}: {leg.arm}{role}",
                outcome=leg.outcome,
                reason=clean(leg.reason or "") if leg.outcome != "ok" else "",
                text=cut,
                note=("the end of engine.log" if shorter else "engine.log, all of it") + errors if cut else "no log",
            )
        )
    return found


def cells_of(table: Table) -> dict[str, Any]:
    """A table for the template: visible columns with their class, and rows of (text, class)."""
    keep = visible(table)
    columns = [table.columns[i] for i in keep]
    body = [
        [(clean(row[i]), _cell_class(table.columns[i].name, row[i], table.columns[i].align)) for i in keep]
        for row in table.rows
    ]
    return {
        "heading": table.heading,
        "columns": columns,
        "rows": body,
        "notes": [clean(note) for note in table.notes],
        "folded": table.title == FOLDED,
        "stacked": len(columns) <= 3,
    }


def _cell_class(column: str, text: str, align: str) -> str:
    if column in ("outcome", "status") and text.replace(" ", "-").replace("_", "-").isascii():
        return "badge " + re.sub(r"[^a-z-]", "-", text.lower())
    if align == "left":
        return "long" if len(text) > 28 else "text"
    return "none" if text == "-" else "figure"


def _clean(value: object) -> object:
    """Text of a run without control characters; what is markup of our own stays as it is."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "\n".join(clean(line) for line in value.split("\n"))


def render(page: Page, pictures: dict[str, tuple[str, str, str]]) -> str:
    """The page as one HTML file that needs nothing else. `pictures`: slug -> (title, caption, markup made by inline)."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("evenhand.show", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_clean,
    )  # fmt: skip
    loader = env.loader
    assert loader is not None
    script = loader.get_source(env, "report.js")[0]
    style = loader.get_source(env, "report.css")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return env.get_template("report.html").render(
        page=page,
        pictures=pictures,
        sections=[s for s in page.sections if s.tables or any(slug in pictures for slug in s.pictures)],
        cells_of=cells_of,
        script=script,
        script_sha256=digest,
        style=style,
        reference=SIMULATED,
    )
