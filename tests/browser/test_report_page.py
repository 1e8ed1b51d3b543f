"""The report page in a real browser: it opens, sorts, expands, prints, fits a phone and the dark, and needs no network."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "show"))

pytestmark = pytest.mark.browser

CHROMIUM = Path("/usr/bin/chromium")
ARGS = ["--no-sandbox", "--headless=new", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
        "--no-first-run", "--disable-default-apps", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if os.environ.get("EVENHAND_NO_SKIP") != "1":
        pytest.skip("the page in Chromium: run by make test-browser")
    api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing: tests/browser/chromium.sh installs it")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> dict[str, Path]:
    """Reports of a gate and of an interrupted ladder whose engine speaks markup."""
    from show_runs import HOSTILE, ladder_run, rich_gate, store

    from evenhand.show.report import report

    folder = tmp_path_factory.mktemp("page")
    runs = [store(rich_gate(), folder / "rich"), store(ladder_run("interrupted"), folder / "ladder", {0: HOSTILE})]
    return dict(zip(("gate", "ladder"), report(runs, folder / "reports"), strict=True))


def opened(browser: Any, file: Path, width: int = 1280, scheme: str = "light") -> tuple[Any, list[str]]:
    """A page and what went wrong on it: console errors, exceptions, requests to anywhere."""
    wrong: list[str] = []
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda r: wrong.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
    page.set_default_timeout(10_000)
    page.goto(file.as_uri())
    return page, wrong


def column(page: Any, table: str, heading: str) -> list[str]:
    """Texts of one column of the table with that name."""
    return page.evaluate(
        """([name, heading]) => {
            const table = [...document.querySelectorAll("table")].find((t) => t.getAttribute("aria-label").startsWith(name));
            const at = [...table.tHead.rows[0].cells].findIndex((c) => c.textContent.trim().startsWith(heading));
            return [...table.tBodies[0].rows].map((row) => row.cells[at].textContent.trim());
        }""",
        [table, heading],
    )


@pytest.mark.parametrize("which", ["gate", "ladder"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opens_without_errors_and_without_network(browser, pages, which, scheme):
    page, wrong = opened(browser, pages[which], scheme=scheme)
    assert wrong == []
    assert page.locator("figure svg, figure img").count() >= 2
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    broken = page.evaluate(
        """[...document.querySelectorAll("figure use")].map((e) => e.getAttribute("xlink:href"))
            .filter((href) => !document.getElementById(href.slice(1)))"""
    )
    assert broken == []


def test_the_verdict_comes_first(browser, pages):
    page, _ = opened(browser, pages["gate"])
    assert page.locator("#verdict .status").inner_text().startswith("fail: new against base, 6 boots each (exit code 1)")
    assert page.evaluate("document.querySelector('#verdict').compareDocumentPosition(document.querySelector('table'))") & 4
    partial, _ = opened(browser, pages["ladder"])
    assert "Partial" in partial.locator("#verdict .alarm").inner_text()
    assert "reference model, not a measurement" in partial.locator("#verdict").inner_text()


def test_engines_words_are_words(browser, pages):
    page, wrong = opened(browser, pages["ladder"])
    assert wrong == []
    assert page.locator("img[src=x]").count() == 0
    assert "<script>alert(1)</script>" in page.locator("#refusals").inner_text()


def test_sorts_by_mouse_and_by_keyboard(browser, pages):
    page, _ = opened(browser, pages["ladder"])
    name, heading = "Concurrency ladder", "TTFT p50"
    before = column(page, name, heading)
    button = page.locator("#ladder table").get_by_role("button", name=heading)
    cell = page.locator("#ladder th").filter(has_text=heading)
    assert cell.get_attribute("aria-sort") == "none"
    button.click()
    assert cell.get_attribute("aria-sort") == "ascending"
    rising = column(page, name, heading)
    figures = [float(text) for text in rising if text != "-"]
    assert figures == sorted(figures)
    assert rising[-2:] == ["-", "-"]
    button.focus()
    page.keyboard.press("Enter")
    assert cell.get_attribute("aria-sort") == "descending"
    falling = column(page, name, heading)
    assert [float(text) for text in falling[:-2]] == sorted(figures, reverse=True)
    assert falling[-2:] == ["-", "-"]
    page.keyboard.press("Enter")
    assert column(page, name, heading) == before


def test_logs_open_by_keyboard(browser, pages):
    page, _ = opened(browser, pages["ladder"])
    log = page.locator("#logs details").first
    assert not log.locator("pre").is_visible()
    log.locator("summary").focus()
    page.keyboard.press("Enter")
    assert log.locator("pre").is_visible()
    assert "<img src=x" in log.locator("pre").inner_text()


def test_prints_with_everything_unfolded(browser, pages):
    page, _ = opened(browser, pages["gate"])
    data = page.pdf()
    assert data.startswith(b"%PDF")
    assert len(data) > 50_000
    folded = "document.querySelectorAll('details:not(.log):not([open])').length"
    assert page.evaluate(folded) > 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(folded) == 0


@pytest.mark.parametrize("which", ["gate", "ladder"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_a_phone(browser, pages, which, scheme):
    page, wrong = opened(browser, pages[which], width=390, scheme=scheme)
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert wrong == []


CONTRAST = """() => {
    const luminance = (color) => {
        const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
            .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const color = getComputedStyle(at).backgroundColor;
            if (color !== "rgba(0, 0, 0, 0)") return color;
        }
        return "rgb(255, 255, 255)";
    };
    let worst = 21;
    for (const element of document.querySelectorAll("p, li, td, th, h1, h2, a, small, summary, span, figcaption, pre")) {
        if (element.closest("svg") || !element.textContent.trim()) continue;
        const [a, b] = [luminance(getComputedStyle(element).color), luminance(ground(element))].sort((x, y) => y - x);
        worst = Math.min(worst, (a + 0.05) / (b + 0.05));
    }
    return worst;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_is_readable_in_light_and_dark(browser, pages, scheme):
    page, _ = opened(browser, pages["gate"], scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 20, 20)"}[scheme]
    assert page.evaluate(CONTRAST) >= 4.5
