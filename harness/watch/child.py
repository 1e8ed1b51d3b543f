"""The sampler's own process (`python -m evenhand.watch.child`): scrape, scan, write a row, sleep to the next deadline.

One JSON line on stdin configures it; end of file on stdin ends it, so it cannot outlive the harness. It imports nothing beyond
the standard library (NVML's binding only where a GPU is watched). Every row is one write to a file opened for append, so a kill
loses nothing that was written. What it has to say goes to stdout as a few JSON lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any

from evenhand.boot.environment import redact
from evenhand.watch.fetch import Fetcher, Reply
from evenhand.watch.scan import Scan, Want, scan

GIVE_UP = 3
"""Failed scrapes in a row, none ever good, after which an HTTP refusal is taken as final."""
BACKOFF_MAX_S = 5.0
RAW_INTERVAL_S = 0.25
"""Raw bodies are kept at most this often: at 0.02 s compressing them all would cost more than the scrape."""
RAW_BODY_BYTES = 4 << 20
"""A longer body is not kept: to search it for secrets would take seconds."""


class Appender:
    """A file of whole rows: one write each; never through a link that stands there."""

    def __init__(self, path: str, lines: bool = True) -> None:
        """`lines`: a torn last line, left by a full disk before a resume, is cut off so that it spoils no new row."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        size = os.fstat(self._fd).st_size if lines else 0
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            tail = os.pread(self._fd, 1 << 20, max(0, size - (1 << 20)))
            os.ftruncate(self._fd, size - len(tail) + tail.rfind(b"\n") + 1)

    def write(self, data: bytes) -> None:
        """All of `data`; OSError (a full disk) reaches the caller."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def row(self, row: dict[str, Any]) -> None:
        """One JSON line; raises ValueError for NaN rather than writing what is no JSON."""
        self.write(json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n")


def say(**event: Any) -> None:
    """One line for the parent."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


class Grid:
    """Absolute deadlines start + n x interval: a late one moves no other, a missed one is skipped and counted."""

    def __init__(self, start_ns: int, interval_ns: int) -> None:
        self.due_ns = start_ns
        self.interval_ns = interval_ns
        self.skipped = 0

    def next(self, now_ns: int, wait_ns: int = 0) -> int:
        """First deadline after the last one that is not past, and at least `wait_ns` away."""
        steps = max(1, -(-(now_ns + wait_ns - self.due_ns) // self.interval_ns))
        self.due_ns += steps * self.interval_ns
        self.skipped += steps - 1 if not wait_ns else 0
        return self.due_ns


class RawBodies:
    """Bodies without secrets, as gzip members of one JSON line each, so that the file is whole after every write; bounded."""

    def __init__(self, path: str, limit_bytes: int, secrets: Sequence[str] = ()) -> None:
        self._file = Appender(path, lines=False)
        self._left = limit_bytes
        self._secrets = secrets
        self._next_ns = 0
        self.kept = self.dropped = 0

    def add(self, reply: Reply) -> None:
        """Keep this body if it is due and fits."""
        if reply.end_ns < self._next_ns:
            return
        self._next_ns = reply.end_ns + int(RAW_INTERVAL_S * 0.9e9)
        if self._left <= 0 or len(reply.body) > RAW_BODY_BYTES:
            self.dropped += 1
            return
        row = {"t_ns": reply.end_ns, "code": reply.code, "error": reply.error}
        row["type"] = redact(reply.content_type, self._secrets)
        row["body"] = redact(reply.body.decode("utf-8", "backslashreplace"), self._secrets)
        pack = zlib.compressobj(1, zlib.DEFLATED, 31)
        data = pack.compress(json.dumps(row).encode() + b"\n") + pack.flush()
        self._left -= len(data)
        self._file.write(data)
        self.kept += 1


class Scraper:
    """Scrapes one exposition and turns each answer into a row."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.leg: int = config["leg"]
        self.wants = [Want(**{**gauge, "metrics": tuple(gauge["metrics"])}) for gauge in config["gauges"]]
        self.sizes: dict[str, float] = config.get("pool_sizes") or {}
        self.key: str | None = config.get("api_key")
        self.interval_s: float = config["interval_s"]
        self.fetcher = Fetcher(config["url"], config.get("timeout_s") or 5.0)
        self.good = self.bad = self.bad_in_a_row = 0
        self.final: str | None = None
        """Why scraping ended for good."""

    def scrape(self, stop_fd: int) -> tuple[Reply, Scan | None, str]:
        """One scrape -> answer, scan (None when there is nothing to scan), status."""
        reply = self.fetcher.get(stop_fd)
        if reply.code in (401, 403) and self.key and self.fetcher.key is None:
            self.fetcher.key = self.key
            reply = self.fetcher.get(stop_fd)
            if reply.code in (401, 403):
                self.fetcher.key, self.key = None, None  # once: it is the wrong key
        if reply.error is not None:
            return reply, None, reply.error
        if reply.code != 200:
            return reply, None, f"unavailable ({reply.code})"
        found = scan(reply.body, self.wants, reply.content_type, self.sizes)
        if found.status == "ok" and not found.sources and b"\n" not in reply.body.strip():
            return reply, None, "junk (no exposition)"
        return reply, found, found.status

    def settle(self, reply: Reply, status: str) -> int:
        """Count this scrape; ns to hold off before the next (0: none). Sets `final` when it is no use to go on."""
        if status == "ok":
            self.good += 1
            self.bad_in_a_row = 0
            return 0
        self.bad += 1
        self.bad_in_a_row += 1
        if self.bad_in_a_row < GIVE_UP:
            return 0
        if not self.good and reply.code is not None and reply.code != 200:
            self.final = status
            return 0
        return int(1e9 * min(BACKOFF_MAX_S, self.interval_s * 2 ** min(self.bad_in_a_row - GIVE_UP + 1, 12)))


def _row(leg: int, due_ns: int, reply: Reply, found: Scan | None, status: str) -> dict[str, Any]:
    """A SampleRow as JSON."""
    return {
        "leg": leg,
        "due_ns": due_ns,
        "start_ns": reply.start_ns,
        "first_byte_ns": reply.first_byte_ns,
        "end_ns": reply.end_ns,
        "status": status,
        "values": found.values if found else {},
        "by_engine": found.by_engine if found else {},
        "flags": found.flags if found else [],
    }


def _stopped(fd: int, until_ns: int | None) -> bool:
    """Sleep to `until_ns` (None: for ever); True as soon as stdin ends."""
    while True:
        wait_s = None if until_ns is None else max(0.0, (until_ns - time.monotonic_ns()) / 1e9)
        ready, _, _ = select.select([fd], [], [], wait_s)
        if ready:
            return True
        if until_ns is not None and time.monotonic_ns() >= until_ns:
            return False


def prompt(on: bool) -> bool:
    """Ask the kernel to run this thread as soon as it wakes (else a busy client makes it 20 ms late); False where refused.

    A scrape takes under 1 % of a core, so nobody is starved; what can take long (compressing) is done without it.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR if on else os.SCHED_OTHER, os.sched_param(1 if on else 0))
    except (OSError, AttributeError):
        return False
    return True


def sample(config: dict[str, Any], fd: int) -> None:
    """Scrape on the grid until stdin ends or scraping is of no use."""
    rows = Appender(os.path.join(config["out_dir"], "samples.jsonl"))  # noqa: PTH118 (pathlib costs a third of start-up)
    kept = os.path.join(config["out_dir"], "scrapes.jsonl.gz")  # noqa: PTH118
    raw = RawBodies(kept, config["raw_limit_bytes"], config["secrets"])
    scraper = Scraper(config)
    realtime = prompt(True)
    grid = Grid(time.monotonic_ns(), int(config["interval_s"] * 1e9))
    due_ns = grid.due_ns
    while not _stopped(fd, due_ns):
        reply, found, status = scraper.scrape(fd)
        if status == "stopped":
            break
        rows.row(_row(scraper.leg, due_ns, reply, found, status))
        hold_ns = scraper.settle(reply, status)
        if realtime:
            prompt(False)
        raw.add(reply)
        if realtime:
            prompt(True)
        if scraper.final:
            say(what="final", status=scraper.final)
            _stopped(fd, None)
            break
        due_ns = grid.next(time.monotonic_ns(), hold_ns)
    say(what="raw", kept=raw.kept, dropped=raw.dropped)
    say(what="grid", skipped=grid.skipped, realtime=realtime)
    say(what="key", used=scraper.fetcher.key is not None)


def _peak_rss_bytes() -> int | None:
    """Highest resident memory; not getrusage, whose figure starts at the parent's."""
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as file:  # noqa: PTH123
        for line in file:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def main() -> int:
    """Entry of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the harness decides when sampling ends
    fd, line = 0, b""
    while not line.endswith(b"\n"):
        data = os.read(fd, 1 << 20)
        if not data:
            return 2
        line += data
    config = json.loads(line)
    # a thread that reads the GPU must not hold a deadline up for Python's default 5 ms
    sys.setswitchinterval(0.0005)
    stop = threading.Event()
    watch = None
    if config.get("gpu"):
        from evenhand.watch.gpu import GpuLoop

        watch = GpuLoop(config, Appender(os.path.join(config["out_dir"], "gpu.jsonl")).row, stop, say)  # noqa: PTH118
        watch.start()
    say(what="ready", pid=os.getpid())
    try:
        if config.get("url"):
            sample(config, fd)
        else:
            _stopped(fd, None)
    except OSError as error:
        say(what="error", text=f"sampling ended: {error}")
        return 1
    finally:
        stop.set()
        if watch is not None:
            watch.join(2.0)
        say(what="cost", cpu_s=time.process_time(), rss_bytes=_peak_rss_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
