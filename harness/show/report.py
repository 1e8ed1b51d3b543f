"""`evenhand report`: a stored run as one HTML file, Markdown, CSV and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from evenhand.show.gallery import gallery
from evenhand.show.inline import inline_picture
from evenhand.show.judged import Judged, judge_run
from evenhand.show.page import Page, page_of, render
from evenhand.show.seal import broken_seal
from evenhand.show.style import save
from evenhand.show.table import SIMULATED, Table, as_csv, as_markdown, escape
from evenhand.show.verdict_md import fenced, verdict_markdown
from evenhand.store import StoreError, open_run, safe_name, write_atomic


def report(runs: Sequence[Path], out: Path, fixed_arms: Sequence[str] = ()) -> list[Path]:
    """Write `out/RUN/` for every run: report.html (needs no network), report.md, CSV tables, SVG and PNG pictures.

    Returns the HTML files. Raises StoreError, JudgeError or RuleError in one sentence. An interrupted run is marked partial.
    """
    pages = []
    for path in runs:
        run = open_run(path)
        folder = out / safe_name(path.resolve().name)
        if folder.resolve() == path.resolve():
            raise StoreError(f"{folder} is the run itself; choose another folder with --out")
        broken = broken_seal(run)
        judged = judge_run(run, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), fixed_arms, broken)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            pages.append(write_report(judged, page_of(judged, broken), folder))
        except OSError as error:
            raise StoreError(f"cannot write a report to {folder}: {error.strerror or error}") from error
    return pages


def write_report(judged: Judged, page: Page, folder: Path) -> Path:
    """All files of one report; returns the HTML file."""
    pictures: dict[str, tuple[str, str, str]] = {}
    for shown in gallery(judged):
        svg, png = save(shown.figure, folder / shown.slug)
        alt = f"{shown.title}. {shown.caption}" + (f" {SIMULATED}." if judged.simulated else "")
        pictures[shown.slug] = (shown.title, shown.caption, inline_picture(svg, png, shown.slug, alt))
    names: dict[str, int] = {}
    for section in page.sections:
        for table in section.tables:
            write_atomic(folder / f"{_file_name(table, names)}.csv", as_csv(table).encode())
    write_atomic(folder / "report.md", markdown(judged, page, pictures).encode())
    html = folder / "report.html"
    write_atomic(html, render(page, pictures).encode())
    return html


def _file_name(table: Table, names: dict[str, int]) -> str:
    stem = "-".join("".join(c if c.isalnum() else " " for c in table.title.lower()).split())
    names[stem] = names.get(stem, 0) + 1
    return stem if names[stem] == 1 else f"{stem}-{names[stem]}"


def markdown(judged: Judged, page: Page, pictures: dict[str, tuple[str, str, str]]) -> str:
    """The report as Markdown; pictures are linked as files beside it. A gate begins with its comment."""
    if judged.verdict is not None:
        parts = [verdict_markdown(judged.verdict, judged.run.manifest, judged.run.legs).rstrip()]
    else:
        parts = [f"## evenhand: {escape(page.scenario)}", f"**{escape(page.line)}**"]
        parts += [f"*{SIMULATED}*"] if page.simulated else []
        parts += [_list([*page.found, *page.reasons])] if page.found or page.reasons else []
    parts[1:1] = [f"**{escape(alarm)}**" for alarm in page.alarms]
    for section in page.sections:
        if judged.verdict is None:
            parts += [as_markdown(table) for table in section.tables]
        for slug in section.pictures:
            if slug in pictures:
                title, caption, _ = pictures[slug]
                mark = f" *{SIMULATED}*" if page.simulated else ""
                parts.append(f"![{title}]({slug}.svg)\n\n{caption}{mark}")
    if judged.verdict is None:
        parts += ["### What was not measured", _list(page.not_measured), "### How to repeat"]
        parts += [fenced(page.commands), f"{escape(page.scenario_note)}."]
    return "\n\n".join(parts) + "\n"


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"- {escape(item)}" for item in items)
