"""What a report says, and the HTML page made of it. The template escapes everything."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

import msgspec

from evenhand.judge.arms import different_work, ranking
from evenhand.records import HAS_FIGURES
from evenhand.show.judged import Judged
from evenhand.show.outcome import outcome_of
from evenhand.show.repeat import commands, engine_commands, scenario_note
from evenhand.show.sections import FOLDED, Section, run_sections, verdict_sections
from evenhand.show.table import SIMULATED, Table, clean, number, visible
from evenhand.show.verdict_md import claimed, reason_lines, remark_lines, status_line
from evenhand.show.verdict_tables import box_table

LOG_LINES = 200
LOG_CHARACTERS = 24_000
LOGS_CHARACTERS = 800_000
"""All logs together: a page must open from a mail attachment."""
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


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


def page_of(judged: Judged) -> Page:
    """Everything a report says about a run."""
    run, verdict = judged.run, judged.verdict
    manifest = run.manifest
    lines, code = outcome_of(judged)
    cells = [cell for cell in run.cells if cell.kind != "warmup"]
    alarms = []
    if run.partial:
        alarms.append(
            f"Partial: the run is marked {manifest.status}; {len(cells)} of {judged.planned} planned cells have a row."
        )
    alarms += [f"The {text.removeprefix('the ')}." for text in judged.broken]
    status: str
    if verdict is not None:
        status, line = verdict.status, status_line(verdict)
    else:
        status = "partial" if run.partial else ("complete" if code == 0 else "incomplete")
        measured = sum(row.outcome in HAS_FIGURES for row in judged.rows)
        line = f"{status}: {measured} of {judged.planned} cells have figures"
        expected = sum(text.startswith("as expected") for text in lines)
        line += f", {expected} more ended as the scenario expects" if expected else ""
        lines = [text for text in lines if text not in judged.broken and not text.startswith("partial: ")]
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
        reasons=reason_lines(verdict) if verdict else [*_limited(judged), *lines],
        sections=[*(verdict_sections(verdict) if verdict else []), *run_sections(judged)],
        not_measured=judged.not_measured,
        widen=list(verdict.widen) if verdict else [],
        notes=[*remark_lines(verdict), *verdict.notes] if verdict else [],
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
    said = f"tokens/s at concurrency {rows[0].at_once}, the same work for each: {each}"
    return [f"{SIMULATED}: {said}" if judged.simulated else said]


def _limited(judged: Judged) -> list[str]:
    """Cells with figures that are not what was asked: fewer seats, or fewer running than asked."""
    said: dict[str, list[str]] = {}
    for row in judged.ladder:
        if row.outcome in ("clamped", "queued"):
            said.setdefault(f"{row.arm}: {row.outcome}, {row.reason}", []).append(str(row.concurrency))
    return [f"{text} (concurrency {', '.join(dict.fromkeys(rungs))})" for text, rungs in said.items()]


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
