"""Progress on the way: one live line on a terminal, a line per cell elsewhere, Prometheus where asked."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator

import msgspec

from evenhand.progress import Event, Listener
from evenhand.show.table import clean
from evenhand.store import StoreError

QUIET_S = 60.0
"""Off a terminal: a sign of life when nothing was said for so many seconds."""


class Plain:
    """For logs and pipes: one line per cell, begun when it starts and completed when it ends, and few others."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._said = self._start
        self._begun = False
        """A cell's line waits for its end."""

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if event.what == "requests" and now - self._said < QUIET_S:
            return
        if event.what == "cell_end" and self._begun:
            self._begun = False
            print(f": {outcome(event)}", file=sys.stderr, flush=True)
        elif text := describe(event):
            self.line(now, text, begun=event.what == "cell")
        else:
            return
        self._said = now

    def line(self, now: float, text: str, begun: bool = False) -> None:
        """A new line with its time; `begun` leaves it open for the end of the cell."""
        lead = "\n" if self._begun else ""
        self._begun = begun
        print(f"{lead}[{now - self._start:7.1f} s] {text}", end="" if begun else "\n", file=sys.stderr, flush=True)


class Terminal(Plain):
    """The same lines at a cell's end, with the running cell redrawn in place below them."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn = False
        self._cell = 0.0

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if event.what == "cell":
            self._cell = now
        if event.what in ("cell", "requests"):
            left = ""
            if event.done and event.total and event.done < event.total:
                left = f", about {(now - self._cell) / event.done * (event.total - event.done):.0f} s left"
            text = describe(msgspec.structs.replace(event, what="requests"))
            width = shutil.get_terminal_size().columns
            print(f"\r\x1b[K{f'  {bar(event)} {text}{left}'[: width - 1]}", end="", file=sys.stderr, flush=True)
            self._drawn = True
            return
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr)
            self._drawn = False
        super().__call__(event)


def bar(event: Event, width: int = 20) -> str:
    """Requests done as a bar."""
    share = (event.done or 0) / event.total if event.total else 0.0
    return "█" * round(share * width) + "░" * (width - round(share * width))


def describe(event: Event) -> str:
    """One line; "" for what need not be said."""
    place = f"leg {(event.leg or 0) + 1}/{event.legs} {event.arm}" if event.legs else event.arm
    text = clean(event.text)
    match event.what:
        case "start":
            return f"run folder {text}"
        case "leg" | "ready" | "note":
            return f"{place}: {text}".lstrip(": ")
        case "cell":
            return f"{place}: {event.cell} starts ({event.total} request{'s' * (event.total != 1)})"
        case "requests":
            pool = "" if event.usage is None else f", pool {event.usage * 100:.1f} %"
            running = "" if event.running is None else f", {event.running:.0f} running"
            failed = f", {event.failed} failed" if event.failed else ""
            return f"{event.cell}: {event.done}/{event.total} requests{failed}{running}{pool}"
        case "cell_end":
            return f"{place}: {event.cell} {outcome(event)}"
        case "leg_end":
            return "" if event.outcome == "ok" else f"{place}: {event.outcome}{': ' + text if text else ''}"
        case "end":
            return f"{event.outcome}: {text}"
    return ""


def outcome(event: Event) -> str:
    """How a cell ended."""
    text = clean(event.text)
    return f"{event.outcome}, {event.ok} ok, {event.failed} failed{': ' + text if text else ''}"


class Live:
    """Progress and latest figures for Prometheus, on loopback."""

    def __init__(self, port: int) -> None:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        registry = CollectorRegistry()
        self._requests = Gauge(
            "evenhand_requests_done", "requests of the running cell that ended", ["arm", "cell"], registry=registry
        )
        self._planned = Gauge("evenhand_requests_planned", "requests of the running cell", ["arm", "cell"], registry=registry)
        self._usage = Gauge("evenhand_pool_usage_ratio", "share of the pool in use, latest sample", ["arm"], registry=registry)
        self._leg = Gauge("evenhand_leg", "number of the running leg, from 1", registry=registry)
        self._legs = Gauge("evenhand_legs", "legs of the run", registry=registry)
        self._server, _ = start_http_server(port, addr="127.0.0.1", registry=registry)

    def __call__(self, event: Event) -> None:
        if event.legs:
            self._leg.set((event.leg or 0) + 1)
            self._legs.set(event.legs)
        if event.what in ("cell", "requests"):
            self._requests.labels(event.arm, event.cell).set(event.done or 0)
            self._planned.labels(event.arm, event.cell).set(event.total or 0)
            if event.usage is not None:
                self._usage.labels(event.arm).set(event.usage)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()


@contextlib.contextmanager
def listener(live: int | None = None) -> Iterator[Listener]:
    """Who is told: the terminal or the log, and Prometheus when a port is given."""
    screen: Listener = Terminal() if sys.stderr.isatty() else Plain()
    if live is None:
        yield screen
        return
    try:
        served = Live(live)
    except (OSError, OverflowError) as error:
        raise StoreError(f"--live {live}: progress cannot be served there ({error}); choose a free port") from error

    def both(event: Event) -> None:
        screen(event)
        served(event)

    try:
        yield both
    finally:
        served.close()
