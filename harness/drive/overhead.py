"""`evenhand overhead`: what the client itself costs, against a server that stamps the kernel's clock into every event."""

from __future__ import annotations

import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from evenhand.drive.calibration import CalibrationDialect
from evenhand.drive.cell import CellResult, CellSpec, run_cell
from evenhand.drive.decode import reads_of, take_apart
from evenhand.drive.spill import exchanges, offsets
from evenhand.drive.worker import environment
from evenhand.engines.base import Gauge, Sampling
from evenhand.quantile import quantile
from evenhand.records import Lag

if TYPE_CHECKING:
    from evenhand.records import SamplerReport

_SERVER = (sys.executable, "-P", "-m", "evenhand.drive.calibration", "--until-eof")
_STAMP = re.compile(rb'"t":(\d+)')
_ASLEEP = 0.8
"""A lower ratio of own lags tells of cores that fall asleep without the sampler; idle-priority load has the same effect."""
_TRUTH = re.compile(rb'"arrived":(\d+),"first":(\d+)')
_GAUGES = (
    Gauge(name="running", metrics=("vllm:num_requests_running",), kind="gauge", meaning="sequences in the running batch"),
    Gauge(name="usage", metrics=("vllm:kv_cache_usage_perc",), kind="gauge", meaning="share of the KV pool in use"),
)


class Spread(msgspec.Struct, frozen=True):
    """Seconds; None where nothing was measured."""

    p50_s: float | None
    p99_s: float | None
    max_s: float | None


class RungOverhead(msgspec.Struct, frozen=True, kw_only=True):
    """One concurrency: errors against the server's own stamps, over events that were the last of their read."""

    concurrency: int
    per_write: int
    events: int
    events_per_s: float
    """While the rung ran."""
    stamp: Spread
    """arrival as reported - the server's send stamp"""
    own: Spread
    """time at which the client had read the event - the server's send stamp: what a client without kernel stamps reports"""
    ttft: Spread
    """reported - true time to first token; true: from the request's arrival at the server to its first event"""
    load_over_ideal: float
    """Wall time of the rung over requests/concurrency x steps x step time, minus 1."""
    lag: Lag


class SamplerEffect(msgspec.Struct, frozen=True, kw_only=True):
    """The sampler off, on, and on at ten times the rate: medians over interleaved rounds."""

    rounds: int
    own_lag_p50_s: dict[str, float]
    stamp_p99_s: dict[str, float]
    ratio: dict[str, float]
    """Median over rounds of own lag over that round's "off"; "off again" is the same without a sampler: the machine's noise."""
    jitter_p99_s: float | None
    """The sampler's own deadline error (on)."""
    jitter_full_p99_s: float | None
    """The same at ten times the rate, with the client's core full."""
    scrape_p50_s: float | None


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    rungs: list[RungOverhead]
    held: list[RungOverhead]
    """Rising event rates at 8 events a write, up to the first that was not held."""
    held_events_per_s: float | None
    """Highest rate at which the rung took at most 5 % over its ideal time. The server shares the machine: a lower bound."""
    sampler: SamplerEffect | None = None


@contextlib.contextmanager
def calibration_server(step_s: float, per_write: int = 1, *options: str) -> Iterator[str]:
    """Its base URL. The server ends with the block, or with this process."""
    process = subprocess.Popen(
        [*_SERVER, "--step-s", str(step_s), "--per-write", str(per_write), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def spread(values: Sequence[float]) -> Spread:
    """Quantiles of nanoseconds, in seconds."""
    ordered = sorted(value / 1e9 for value in values)
    return Spread(quantile(ordered, 0.5), quantile(ordered, 0.99), quantile(ordered, 1.0))


class Errors(NamedTuple):
    """Nanoseconds against the server's truth."""

    stamp: list[int]
    own: list[int]
    ttft: list[int]


def errors(spill: str | Path, result: CellResult) -> Errors:
    """Compare what was stored with what the server wrote into its events."""
    ttft_ns = {row.index: round(row.ttft_s * 1e9) for row in result.rows if row.ttft_s is not None}
    found = Errors([], [], [])
    marks = offsets(spill)
    for exchange in exchanges(spill, marks[1], marks[-1]):
        reads, _ = reads_of(exchange)
        last_of_read: dict[int, tuple[int, int]] = {}
        for event in take_apart(reads, exchange.complete).events:
            if (stamp := _STAMP.search(event.payload)) is not None:
                last_of_read[event.read] = (event.at_ns, int(stamp[1]) - exchange.offset_ns)
            elif (truth := _TRUTH.search(event.payload)) is not None and exchange.index in ttft_ns:
                found.ttft.append(ttft_ns[exchange.index] - (int(truth[2]) - int(truth[1])))
        for read, (at, sent) in last_of_read.items():
            found.stamp.append(at - sent)
            found.own.append(reads[read].own_ns - sent)
    return found


def measure_rung(
    url: str, concurrency: int, step_s: float, *, per_write: int = 1, tokens: int = 100, laps: int = 3
) -> RungOverhead:
    """One closed-loop rung of laps x concurrency requests against a calibration server."""
    with tempfile.TemporaryDirectory(prefix="evenhand-overhead-") as folder:
        spill = Path(folder) / "rung.spill"
        result = run_cell(
            CellSpec(
                leg=0,
                arm="calibration",
                cell=f"overhead/c={concurrency}",
                base_url=url,
                dialect=CalibrationDialect(),
                model="model",
                prompts=[[1, 2, 3]] * (laps * concurrency),
                sampling=Sampling(max_tokens=tokens),
                concurrency=concurrency,
                spill_path=spill,
                keep_spill=True,
                processes=1,
            )
        )
        found = errors(spill, result)
    wall = (result.end_ns - result.start_ns) / 1e9 if result.start_ns is not None and result.end_ns is not None else 0.0
    # A request waits for the next step, half a step on average when alone and a whole one in lock step, then takes its steps.
    steps = -(-tokens // per_write)
    ideal = laps * steps * step_s
    return RungOverhead(
        concurrency=concurrency,
        per_write=per_write,
        events=result.lag.events,
        events_per_s=result.lag.events / wall if wall else 0.0,
        stamp=spread(found.stamp),
        own=spread(found.own),
        ttft=spread(found.ttft),
        load_over_ideal=wall / ideal - 1 if wall else 0.0,
        lag=result.lag,
    )


def measure_held(
    say: Callable[[str], None], concurrency: int = 32, per_write: int = 8
) -> tuple[list[RungOverhead], float | None]:
    """Raise the rate until a rung takes more than 5 % over its ideal time."""
    tried: list[RungOverhead] = []
    best: float | None = None
    for step_ms in (8.0, 4.0, 2.0, 1.5, 1.2, 1.0, 0.8, 0.6, 0.5, 0.4, 0.35, 0.3):
        with calibration_server(step_ms / 1e3, per_write) as url:
            tokens = per_write * max(100, round(1000 / step_ms))
            rung = measure_rung(url, concurrency, step_ms / 1e3, per_write=per_write, tokens=tokens, laps=1)
        tried.append(rung)
        say(f"held? {concurrency * per_write / step_ms * 1e3:,.0f} events/s asked: {rung.load_over_ideal:+.1%} over ideal")
        if rung.load_over_ideal > 0.05:
            break
        best = concurrency * per_write / step_ms * 1e3
    return tried, best


_MODES: dict[str, float | None] = {"off": None, "on": 0.25, "on x10": 0.025, "off again": None}
"""The sampler's interval, s."""


def measure_sampler(say: Callable[[str], None], rounds: int = 15, concurrency: int = 32) -> SamplerEffect:
    """Interleaved rounds of off, on, on x10 and off again, and last the sampler beside a client whose core is full."""
    own: dict[str, list[float]] = {mode: [] for mode in _MODES}
    stamp: dict[str, list[float]] = {mode: [] for mode in _MODES}
    reports: list[SamplerReport] = []
    with calibration_server(0.01) as url:
        measure_rung(url, concurrency, 0.01, laps=1)
        for number in range(rounds):
            for mode in list(_MODES) if number % 2 == 0 else list(reversed(_MODES)):
                rung, report = _beside_sampler(url, _MODES[mode], concurrency, 0.01)
                if report is not None and mode == "on":
                    reports.append(report)
                own[mode].append(rung.lag.lag_p50_s or 0.0)
                stamp[mode].append(rung.stamp.p99_s or 0.0)
            say(f"sampler round {number + 1} of {rounds}")
    with calibration_server(0.0005, 8) as url:
        _, full = _beside_sampler(url, 0.025, concurrency, 0.0005, per_write=8, tokens=40_000)
    pairs = {mode: [a / b for a, b in zip(own[mode], own["off"], strict=True) if b] for mode in _MODES if mode != "off"}
    return SamplerEffect(
        rounds=rounds,
        own_lag_p50_s={mode: statistics.median(values) for mode, values in own.items()},
        stamp_p99_s={mode: statistics.median(values) for mode, values in stamp.items()},
        ratio={mode: statistics.median(values) for mode, values in pairs.items() if values},
        jitter_p99_s=_median_of(report.jitter_p99_s for report in reports),
        jitter_full_p99_s=None if full is None else full.jitter_p99_s,
        scrape_p50_s=_median_of(report.scrape_p50_s for report in reports),
    )


def _beside_sampler(
    url: str, interval_s: float | None, concurrency: int, step_s: float, *, per_write: int = 1, tokens: int = 100
) -> tuple[RungOverhead, SamplerReport | None]:
    """One rung, with a sampler where an interval is given."""
    from evenhand.watch.sampler import Sampler

    with tempfile.TemporaryDirectory(prefix="evenhand-overhead-") as folder:
        sampler = None
        if interval_s is not None:
            sampler = Sampler(0, url, _GAUGES, "/metrics", interval_s, Path(folder), nvml="off")
            sampler.start()
        rung = measure_rung(url, concurrency, step_s, per_write=per_write, tokens=tokens, laps=1)
        return rung, None if sampler is None else sampler.stop()


def _median_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def measure(
    concurrency: Sequence[int] = (1, 8, 32, 128, 256),
    *,
    sampler_rounds: int = 15,
    say: Callable[[str], None] = lambda line: None,
) -> Overhead:
    """The whole measurement, about two minutes. `say` hears a line per part."""
    rungs: list[RungOverhead] = []
    for count in concurrency:
        step_s = 0.01 if count <= 64 else 0.02
        with calibration_server(step_s) as url:
            rungs.append(measure_rung(url, count, step_s, laps=3 if count >= 8 else 5))
        say(f"c={count}: {rungs[-1].events:,} events")
    held, rate = measure_held(say)
    sampler = measure_sampler(say, sampler_rounds) if sampler_rounds else None
    return Overhead(rungs=rungs, held=held, held_events_per_s=rate, sampler=sampler)


def as_markdown(found: Overhead) -> str:
    """The tables, as plain text that is Markdown too."""
    lines = [
        "| c | events | stamp error p50 / p99 / max, us | own stamp p50 / p99 / max, us | TTFT error p50 / p99, us "
        "| CPU per event, us | turn-around p50, ms | coalesced | over ideal |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for rung in found.rungs:
        lag = rung.lag
        coalesced = lag.coalesced / lag.events if lag.events else 0.0
        lines.append(
            f"| {rung.concurrency} | {rung.events:,} | {_all_us(rung.stamp)} | {_all_us(rung.own)} "
            f"| {_us(rung.ttft.p50_s)} / {_us(rung.ttft.p99_s)} | {_us(lag.cpu_per_event_s, 1)} "
            f"| {_us(lag.turnaround_p50_s, 2, 1e3)} | {coalesced:.1%} | {rung.load_over_ideal:+.1%} |"
        )
    stamps = {rung.lag.stamp for rung in found.rungs}
    lines += ["", f"Stamps: {' and '.join(sorted(stamps))}. Errors are against the server's clock, read just before each send."]
    if found.held_events_per_s is not None:
        lines.append(
            f"Highest rate held (32 streams, 8 events a write): {found.held_events_per_s:,.0f} events/s, a lower bound:"
        )
        lines.append("the server shares this machine.")
    if found.sampler is not None:
        effect = found.sampler
        lines += ["", "| sampler | own lag p50, us | ratio to off | stamp error p99, us |", "|---|---:|---:|---:|"]
        for mode, own in effect.own_lag_p50_s.items():
            ratio = "1.00" if mode == "off" else f"{effect.ratio[mode]:.2f}" if mode in effect.ratio else "-"
            lines.append(f"| {mode} | {_us(own)} | {ratio} | {_us(effect.stamp_p99_s[mode])} |")
        lines += [
            "",
            f"Medians of {effect.rounds} interleaved rounds at c=32, ratios within a round. Sampler's deadline error p99 "
            f"{_us(effect.jitter_p99_s)} us, {_us(effect.jitter_full_p99_s)} us with the client's core full; "
            f"scrape p50 {_us(effect.scrape_p50_s)} us.",
        ]
        if min(effect.ratio.values(), default=1.0) < _ASLEEP:
            lines.append(
                "Ratios far below 1: between steps this machine's cores fall asleep, unless the sampler keeps one awake."
            )
    return "\n".join(lines)


def _all_us(found: Spread) -> str:
    return f"{_us(found.p50_s)} / {_us(found.p99_s)} / {_us(found.max_s)}"


def _us(seconds: float | None, digits: int = 0, scale: float = 1e6) -> str:
    return "-" if seconds is None else f"{seconds * scale:,.{digits}f}"
