"""One scrape on the control path, before and after a cell, and what a counter did in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from evenhand.watch.scan import scan

if TYPE_CHECKING:
    import httpx

    from evenhand.engines.base import Gauge


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one scrape; `values` is empty unless `status` is "ok"."""

    status: str
    """ "ok", "unavailable (404)", "truncated", "timeout", "failed (...)", "off" """
    values: dict[str, float | None] = {}
    by_engine: dict[str, dict[str, float]] = {}
    flags: list[str] = []
    text: str = ""
    """The body, for Facts.pool."""


def scrape(
    http: httpx.Client,
    path: str | None,
    gauges: Sequence[Gauge],
    *,
    sizes: Mapping[str, float] | None = None,
) -> Scrape:
    """GET the exposition once. Never raises for what a server does."""
    import httpx

    if path is None:
        return Scrape(status="off")
    try:
        reply = http.get(path)
    except httpx.TimeoutException:
        return Scrape(status="timeout")
    except httpx.RemoteProtocolError:
        return Scrape(status="truncated")
    except httpx.HTTPError as error:
        return Scrape(status=f"failed ({type(error).__name__})")
    if reply.status_code != 200:
        return Scrape(status=f"unavailable ({reply.status_code})")
    found = scan(reply.content, gauges, reply.headers.get("content-type", ""), sizes)
    if found.status != "ok":
        return Scrape(status=found.status, flags=found.flags)
    return Scrape(status="ok", values=found.values, by_engine=found.by_engine, flags=found.flags, text=reply.text)


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What the counters did over a cell."""

    counters: dict[str, float | None]
    """neutral counter -> increase; None where a reading is missing or it went backwards"""
    restarted: bool
    """A counter went backwards, on any engine: the server restarted and the cell is void."""
    reason: str | None = None
    """Why there are no counters at all, or which of them went backwards."""


def delta(before: Scrape, after: Scrape, gauges: Sequence[Gauge]) -> Delta:
    """Pure: increase of every counter between two scrapes, summed over engines."""
    names = [gauge.name for gauge in gauges if gauge.kind == "counter"]
    for when, reading in (("before", before), ("after", after)):
        if reading.status != "ok":
            return Delta(counters=dict.fromkeys(names), restarted=False, reason=f"metrics {reading.status} {when} the cell")
    counters: dict[str, float | None] = {}
    backwards: list[str] = []
    for name in names:
        first, last = before.values.get(name), after.values.get(name)
        counters[name] = None
        if first is None or last is None:
            continue
        old, new = before.by_engine.get(name, {}), after.by_engine.get(name, {})
        if last < first or any(new.get(engine, value) < value for engine, value in old.items()):
            backwards.append(name)
        else:
            counters[name] = last - first
    reason = f"went backwards, so the server restarted: {', '.join(backwards)}" if backwards else None
    return Delta(counters=counters, restarted=bool(backwards), reason=reason)
