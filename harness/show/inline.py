"""A matplotlib figure as markup that can stand in a page beside others: SVG with its own ids, or PNG where that is smaller."""

from __future__ import annotations

import base64
import html
import re
from pathlib import Path

SVG_LIMIT = 200_000
"""Characters up to which SVG is taken even where PNG is smaller: it stays sharp in print."""

_ID = re.compile(r'(\bid="|xlink:href="#|\bhref="#|url\(#)')
_LONG = re.compile(r"(-?\d+\.\d{3})\d+")


def inline_picture(svg: Path, png: Path, slug: str, alt: str) -> str:
    """Markup of one picture. `slug` must be unique in the page."""
    markup = inline_svg(svg.read_text("utf-8"), slug, alt)
    if len(markup) <= SVG_LIMIT:
        return markup
    data = base64.b64encode(png.read_bytes()).decode()
    if len(data) >= len(markup):
        return markup
    return f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt, quote=True)}">'


def inline_svg(text: str, slug: str, alt: str) -> str:
    """The <svg> element alone, ids prefixed, without the style sheet (it would hold for the whole page), with a name."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = _ID.sub(lambda match: f"{match[1]}{slug}-", text)
    text = _LONG.sub(r"\1", text)
    text = re.sub(r"\n\s*", "\n", text)
    label = html.escape(alt, quote=True)
    return re.sub(r"<svg ", f'<svg role="img" aria-label="{label}" ', text, count=1)
