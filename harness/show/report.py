"""`evenhand report`: a stored run as one HTML file, Markdown, CSV and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evenhand.show.gallery import gallery
from evenhand.show.inline import inline_picture
from evenhand.show.judged import Judged, judge_folder
from evenhand.show.page import Page, page_of, render
from evenhand.show.sections import FOLDED
from evenhand.show.style import save
from evenhand.show.table import SIMULATED, as_csv, as_markdown, escape, file_names
from evenhand.show.verdict_md import fenced, folded, folded_table, placeless
from evenhand.store import StoreError, safe_name, write_atomic


def report(runs: Sequence[Path], out: Path, fixed_arms: Sequence[str] = ()) -> list[Path]:
    """Write `out/RUN/` for every run: report.html (needs no network), report.md, CSV tables, SVG and PNG pictures.

    Returns the HTML files. Raises StoreError, JudgeError or RuleError in one sentence. An interrupted run is marked partial.
    """
    pages = []
    for path in runs:
        folder = out / safe_name(path.resolve().name)
        if folder.resolve() == path.resolve():
            raise StoreError(f"{folder} is the run itself; choose another folder with --out")
        judged = judge_folder(path, fixed_arms)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            pages.append(write_report(judged, page_of(judged), folder))
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
    tables = [table for section in page.sections for table in section.tables]
    for name, table in zip(file_names(tables), tables, strict=True):
        write_atomic(folder / f"{name}.csv", as_csv(table).encode())
    write_atomic(folder / "report.md", markdown(page, pictures).encode())
    html = folder / "report.html"
    write_atomic(html, render(page, pictures).encode())
    return html


def markdown(page: Page, pictures: dict[str, tuple[str, str, str]]) -> str:
    """The page as Markdown but for its logs and command lines; pictures are linked as files beside it."""
    parts = [f"## evenhand: {escape(page.scenario)}", f"**{escape(page.line)}**"]
    parts += [f"*{SIMULATED}*"] if page.simulated else []
    parts += [f"**{escape(alarm)}**" for alarm in page.alarms]
    if page.found_for:  # what was found stands in the table of rules
        parts.append(f"{escape(page.found_for.removeprefix(f'{SIMULATED}: '))}.")
    said = [*([] if page.found_for else page.found), *page.reasons]
    parts += [_list(said)] if said else []
    for section in page.sections:
        parts += [folded_table(table) if table.title == FOLDED else as_markdown(table) for table in section.tables]
        for slug in section.pictures:
            if slug in pictures:
                title, caption, _ = pictures[slug]
                mark = f" *{SIMULATED}*" if page.simulated else ""
                parts.append(f"![{title}]({slug}.svg)\n\n{caption}{mark}")
    parts += ["### What was not measured", _list(page.not_measured)]
    parts += ["### What would widen the claim", _list(page.widen)] if page.widen else []
    parts += [folded("Notes", _list(page.notes))] if page.notes else []
    parts += ["### How to repeat", fenced(page.commands), f"{escape(page.scenario_note)}."]
    return placeless("\n\n".join([*parts, folded_table(page.box)])) + "\n"


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"- {escape(item)}" for item in items)
