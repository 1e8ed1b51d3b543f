"""A verdict as a comment that pastes into a pull request, as console text, and as files beside the run.

Nothing here judges: every sentence is the verdict's own or a figure of it, so no claim is wider than the measurement.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from evenhand.judge import verdict as judged
from evenhand.judge.fairness import Reason
from evenhand.judge.verdict import Verdict
from evenhand.records import LegRow, Manifest
from evenhand.show.junit import junit_xml
from evenhand.show.ladder import ladder_table
from evenhand.show.repeat import commands, engine_commands, scenario_note
from evenhand.show.sections import verdict_sections
from evenhand.show.table import SIMULATED, Table, as_markdown, as_text, clean, escape, wrap
from evenhand.show.tables import ledger_table
from evenhand.show.verdict_tables import (
    box_table,
    configuration_facts,
    configuration_table,
    device_table,
    memory_table,
    rules_table,
)
from evenhand.store import Run, StoreError, write_atomic

CUT = "Paths are cut to their last two parts; the run's rows have them whole"
COMMENT_LIMIT = 65_000
"""Characters; a comment on GitHub may have 65,536."""


def status_line(verdict: Verdict) -> str:
    """ "pass: NEW against BASE, 2 boots each (exit code 0)"."""
    arms = f"{verdict.candidate} against {verdict.baseline}"
    if verdict.compare == "same":
        arms += " (A/A, declared the same)"
    boots = "boot" if verdict.pairs == 1 else "boots"
    partial = ", PARTIAL RUN" if verdict.partial else ""
    return f"{verdict.status}: {arms}, {verdict.pairs} {boots} each{partial} (exit code {verdict.exit_code})"


def evidence_tables(verdict: Verdict) -> list[Table]:
    """The tables behind the rules, in the order people ask for them."""
    return [table for section in verdict_sections(verdict) if section.slug != "rules" for table in section.tables]


def side_tables(verdict: Verdict) -> list[Table]:
    """Ladder, devices, memory and ledger: for who looks closer."""
    ladder = ladder_table(verdict.ladder, verdict.simulated) if verdict.ladder else None
    told = configuration_facts(verdict)
    # an environment that is the same stands in the command lines
    rest = [f for f in verdict.ledger if f not in told and not f.name.startswith("env ")]
    return _present(ladder, device_table(verdict), memory_table(verdict), ledger_table(rest, verdict.simulated))


def verdict_markdown(verdict: Verdict, manifest: Manifest | None = None, legs: Sequence[LegRow] = ()) -> str:
    """The comment. Box facts and commands need the run's manifest and legs; the longest parts go first where it is too long."""
    head = [f"## evenhand: {escape(verdict.scenario)}", "", f"**{escape(status_line(verdict))}**", ""]
    if verdict.simulated:
        head += [f"*{SIMULATED}*", ""]
    if begin := claimed(verdict)[0]:
        head += [f"{escape(begin.removeprefix(f'{SIMULATED}: '))}.", ""]
    head += [f"Order of boots: {escape(' '.join(verdict.order)) or 'none'}. Run `{verdict.run}`.", ""]
    parts = ["\n".join(head).rstrip(), as_markdown(rules_table(verdict))]
    parts += _list("Why rules are void", reason_lines(verdict))
    parts += [as_markdown(table) for table in _present(configuration_table(verdict))]
    parts += [as_markdown(table) for table in evidence_tables(verdict)]
    parts += _list("What was not measured", verdict.not_measured)
    parts += _list("What would widen the claim", verdict.widen)
    optional = [folded_table(table) for table in side_tables(verdict)]
    if notes := [*remark_lines(verdict), *verdict.notes]:
        optional.insert(0, folded("Notes", "\n".join(f"- {escape(note)}" for note in notes)))
    end = []
    if manifest is not None:
        optional.append(folded_table(box_table(manifest)))
        if legs:
            optional.append(folded("Engine command lines", fenced(f"# {who}\n{line}" for who, line in engine_commands(legs))))
        end = ["### How to repeat", fenced(commands(manifest)), escape(scenario_note(manifest)) + f". {CUT}."]
    return placeless(_fitted(parts, optional, end))


def _fitted(parts: list[str], optional: list[str], end: list[str]) -> str:
    """Everything, unless it is too long for a comment: then the longest optional parts are left out, and that is said."""
    kept = list(optional)
    said: list[str] = []
    while True:
        text = "\n\n".join([*parts, *kept, *end, *said]) + "\n"
        if len(text) <= COMMENT_LIMIT:
            return text
        said = ["*Too long for a comment: some folded parts are left out; `evenhand report` shows all.*"]
        if not kept:
            return text[: COMMENT_LIMIT - 200].rpartition("\n")[0] + "\n\n*Cut here: too long for a comment.*\n"
        kept.remove(max(kept, key=len))


def verdict_text(verdict: Verdict, width: int = 120) -> str:
    """The verdict for a terminal: status first, then rules, reasons, tables and what was not measured."""
    parts = [f"{status_line(verdict)}" + (f"\n{SIMULATED}" if verdict.simulated else "")]
    parts.append(as_text(rules_table(verdict), width))
    parts += listed("why rules are void", reason_lines(verdict), width)
    parts += [as_text(table, width) for table in evidence_tables(verdict)]
    parts += listed("remarks", remark_lines(verdict), width)
    parts += listed("not measured", verdict.not_measured, width)
    parts += listed("would widen the claim", verdict.widen, width)
    return "\n\n".join(parts)


def write_verdict_files(path: Path, verdict: Verdict, run: Run | None = None) -> list[str]:
    """verdict.json, verdict.md and junit.xml into the run folder, and verdict.md into the job summary where
    GITHUB_STEP_SUMMARY names one. Returns sentences for people. Raises StoreError when the run folder cannot be written.
    """
    verdict = judged.as_before(path, verdict)
    text = verdict_markdown(verdict, run.manifest, run.legs) if run else verdict_markdown(verdict)
    try:
        judged.write(path, verdict)
    except OSError as error:
        raise StoreError(f"cannot write {path / 'verdict.json'}: {error.strerror or error}") from error
    write_atomic(path / "verdict.md", text.encode())
    write_atomic(path / "junit.xml", junit_xml(verdict))
    said = [f"verdict.json, verdict.md (ready for a pull request) and junit.xml are in {path}"]
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(text + "\n")
            said.append("the job summary has verdict.md too")
        except OSError as error:
            # the verdict stands whether or not CI could take its copy
            said.append(f"verdict.md could not be added to the job summary {summary}: {error.strerror or error}")
    return said


def claimed(verdict: Verdict) -> tuple[str, list[str]]:
    """("NEW against BASE on CONFIGURATION, 2 and 2 boots", what is said of each decided rule); ("", []) where none was."""
    said = [f"{rule.text}: {rule.status}, {rule.reason}" for rule in verdict.rules if rule.status in ("pass", "fail")]
    begins = {claim.removesuffix(f": {end}") for claim, end in zip(verdict.claims, said, strict=False) if claim.endswith(end)}
    return (begins.pop(), said) if len(begins) == 1 else ("", list(verdict.claims))


def placeless(text: str) -> str:
    """Paths of the machine that measured, cut to their last two parts: a reader elsewhere has no use for the rest."""
    return _PATH.sub(lambda path: ".../" + "/".join(path[0].rstrip("/").split("/")[-2:]), text)


_PATH = re.compile(r"(?<![\w./\\~-])(?:/[^\s/:;,|\"'`=()\[\]{}<>]+){3,}/?")
"""An absolute path of three parts or more; shorter ones (/metrics, /v1/models) belong to nobody, nor do those of a URL."""


def reason_lines(verdict: Verdict) -> list[str]:
    """Broken preconditions that made a rule void."""
    return [f"{reason.text} ({_scope(reason.scope)})" for reason in verdict.reasons if _voided(verdict, reason)]


def remark_lines(verdict: Verdict) -> list[str]:
    """Broken preconditions of rules that were not asked."""
    return [
        f"{reason.text} (would void {_scope(reason.scope)}; none was asked)"
        for reason in verdict.reasons
        if not _voided(verdict, reason)
    ]


def _voided(verdict: Verdict, reason: Reason) -> bool:
    return any(rule.status == "void" and reason.text in rule.reason for rule in verdict.rules)


def _scope(scope: str) -> str:
    only = {"timing": "timing rules only", "pool": "pool rules only", "outputs": "outputs and errors rules only"}
    return {"all": "all rules", **only}.get(scope, scope)


def _present(*tables: Table | None) -> list[Table]:
    return [table for table in tables if table is not None]


def _list(title: str, items: Iterable[str]) -> list[str]:
    lines = [f"- {escape(item)}" for item in items]
    return [f"### {title}\n\n" + "\n".join(lines)] if lines else []


def listed(title: str, items: Iterable[str], width: int) -> list[str]:
    """Lines below a heading, for a terminal; nothing where there are none."""
    lines = [line for item in items for line in wrap(clean(item), width, "  ", "    ")]
    return ["\n".join([f"{title}:", *lines])] if lines else []


def folded(title: str, body: str) -> str:
    """Shown when asked."""
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def folded_table(table: Table) -> str:
    """A table under its title, shown when asked."""
    return folded(escape(table.title), as_markdown(table).partition("\n\n")[2])  # the summary is its heading


def fenced(lines: Iterable[str]) -> str:
    """A fenced block that its content cannot close."""
    body = "\n".join(clean(line) for text in lines for line in text.split("\n")).replace("```", "` ` `")
    return f"```sh\n{body}\n```"
