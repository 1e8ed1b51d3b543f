"""Find the wanted series in an exposition by scanning its bytes: a 90 KB body costs microseconds, not a parse.

Rules, for every engine:
- names match whole: `x_created` and `x_cached` never count as `x`; a counter may be written with or without `_total`;
- of several names of one gauge the newest that is there wins, alone; an older one is named in `sources` and flagged;
- series that differ in a replica label (`pid`, ranks) are one gauge: the largest. Counters are added over pids;
- series that differ in the engine label (data parallel) stay apart in `by_engine` and become one figure as Gauge.pool says;
- a value that is not finite or outside [low, high] enters no figure and is flagged; the out-of-range one stays in `by_engine`;
- what is not there is None, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

ENGINE_LABELS = ("engine", "dp_rank")
REPLICA_LABELS = frozenset({"pid", "tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "attn_tp_rank"})

_LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,|(?=\}))', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_NUMBER = re.compile(rb"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|[iI]nf(?:inity)?|[nN]a[nN])\Z")


class Wanted(Protocol):
    """What the scan reads of a `Gauge` (engines/base.py); the sampler's process passes `Want` to stay small."""

    @property
    def name(self) -> str: ...
    @property
    def metrics(self) -> tuple[str, ...]: ...
    @property
    def kind(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def pool(self) -> str: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...
    @property
    def scale(self) -> float: ...


class Want(NamedTuple):
    """A `Gauge` as the sampler's process holds it."""

    name: str
    metrics: tuple[str, ...]
    kind: str
    labels: Mapping[str, str]
    pool: str
    low: float | None
    high: float | None
    scale: float


class Series(NamedTuple):
    """One sample line."""

    labels: dict[str, str]
    value: float


class Scan(NamedTuple):
    """What one body holds. `values` has every wanted name; None is absent unless a flag says why else."""

    values: dict[str, float | None]
    by_engine: dict[str, dict[str, float]]
    flags: list[str]
    """ "duplicate_series=3"; with a neutral name: "out_of_range:", "nonfinite:", "malformed:", "source:", "unweighted:" """
    sources: dict[str, str]
    """neutral name -> exposition name it was read from"""
    status: str
    """ "ok", or "truncated": then nothing of the body is used"""


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1] if match[1] in '"\\' else match[0]


def _series(line: bytes) -> Series | None:
    """The part of a sample line after its name -> Series, or None when it is malformed."""
    line = line.strip()
    labels: dict[str, str] = {}
    if line.startswith(b"{"):
        at = 1
        while found := _LABEL.match(line, at):
            labels[found[1].decode()] = _ESCAPE.sub(_unescape, found[2].decode("utf-8", "replace"))
            at = found.end()
        while line[at : at + 1] in (b" ", b"\t"):
            at += 1
        if line[at : at + 1] != b"}":
            return None
        line = line[at + 1 :]
    words = line.split(None, 1)
    # only the first word: what follows is a timestamp or an exemplar
    if not words or not _NUMBER.match(words[0]):
        return None
    return Series(labels, float(words[0]))


def find(body: bytes, name: str) -> Iterator[Series | None]:
    """Every sample of exactly this name, in order; None for a line that cannot be read."""
    wanted, at = name.encode(), 0
    while (at := body.find(wanted, at)) >= 0:
        before, at = at, at + len(wanted)
        while before and body[before - 1] in b" \t":
            before -= 1
        if (before and body[before - 1] != 10) or body[at : at + 1] not in (b"{", b" ", b"\t"):
            continue
        end = body.find(b"\n", at)
        yield _series(body[at:] if end < 0 else body[at:end])


def _spellings(want: Wanted) -> Iterator[tuple[str, bool]]:
    """(exposition name, is the newest) in order of preference."""
    for index, metric in enumerate(want.metrics):
        bare = metric.removesuffix("_total")
        names = (metric,) if want.kind != "counter" else (metric, bare if bare != metric else metric + "_total")
        for name in names:
            yield name, index == 0


def _engine(labels: Mapping[str, str]) -> str:
    return next((labels[key] for key in ENGINE_LABELS if key in labels), "")


class _Engine:
    """Series of one gauge on one engine, folded."""

    def __init__(self) -> None:
        self.rest: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
        self.count: dict[tuple[tuple[str, str], ...], int] = {}
        self.outside: float | None = None
        self.bad = False

    def add(self, series: Series, value: float, by_pid: bool) -> None:
        skip = REPLICA_LABELS.union(ENGINE_LABELS)
        rest = tuple(sorted((key, text) for key, text in series.labels.items() if key not in skip))
        copies = self.rest.setdefault(rest, {})
        pid = series.labels.get("pid", "") if by_pid else ""
        copies[pid] = max(value, copies.get(pid, value))
        self.count[rest] = self.count.get(rest, 0) + 1

    def value(self, add: bool) -> float | None:
        parts = [sum(copies.values()) for copies in self.rest.values()]
        if not parts:
            return None
        return sum(parts) if add else max(parts)


def _pool(engines: Mapping[str, float], want: Wanted, sizes: Mapping[str, float], flags: list[str]) -> float:
    """Several engines' figures as one."""
    if len(engines) == 1:
        return next(iter(engines.values()))
    if want.kind == "counter" or want.pool == "sum":
        return sum(engines.values())
    if want.pool == "pooled":
        if all(sizes.get(name) for name in engines):
            return sum(value * sizes[name] for name, value in engines.items()) / sum(sizes[name] for name in engines)
        # a plain mean would call a full engine half empty: say the worst one, and that it is not weighted
        flags.append(f"unweighted:{want.name}")
    return max(engines.values())


def scan(body: bytes, gauges: Iterable[Wanted], content_type: str = "", sizes: Mapping[str, float] | None = None) -> Scan:
    """Wanted series of one exposition, as neutral figures. Pure; never raises on any bytes.

    `sizes` is the pool of each engine label (any unit), for Gauge.pool == "pooled". An OpenMetrics body (by `content_type`)
    without its `# EOF` is truncated and yields nothing.
    """
    values: dict[str, float | None] = {}
    by_engine: dict[str, dict[str, float]] = {}
    sources: dict[str, str] = {}
    flags: list[str] = []
    if "openmetrics" in content_type.lower() and not body.rstrip().endswith(b"# EOF"):
        return Scan({want.name: None for want in gauges}, {}, ["truncated"], {}, "truncated")
    duplicates = 1
    for want in gauges:
        values[want.name] = None
        for metric, newest in _spellings(want):
            folded, malformed, nonfinite = _fold(body, metric, want)
            if malformed:
                flags.append(f"malformed:{want.name}")
            if nonfinite:
                flags.append(f"nonfinite:{want.name}")
            if not folded:
                continue
            sources[want.name] = metric
            if not newest:
                flags.append(f"source:{want.name}={metric}")
            add = want.kind == "counter" or want.pool == "sum"
            inside = {name: value for name, engine in folded.items() if (value := engine.value(add)) is not None}
            outside = {name: engine.outside for name, engine in folded.items() if engine.outside is not None}
            if outside:
                flags.append(f"out_of_range:{want.name}")
            if len(folded) > 1 or outside:
                by_engine[want.name] = {**outside, **inside}
            # a sum that lacks a term is no sum
            whole = not add or not any(engine.bad for engine in folded.values())
            if inside and whole:
                values[want.name] = _pool(inside, want, sizes or {}, flags)
            duplicates = max(duplicates, *(count for engine in folded.values() for count in engine.count.values()), 1)
            break
    if duplicates > 1:
        flags.append(f"duplicate_series={duplicates}")
    return Scan(values, by_engine, flags, sources, "ok")


def _fold(body: bytes, metric: str, want: Wanted) -> tuple[dict[str, _Engine], bool, bool]:
    """Series of one exposition name by engine label; whether a line was malformed; whether a value was not finite."""
    folded: dict[str, _Engine] = {}
    malformed = nonfinite = False
    for series in find(body, metric):
        if series is None:
            malformed = True
            continue
        if any(series.labels.get(key) != text for key, text in want.labels.items()):
            continue
        engine = folded.setdefault(_engine(series.labels), _Engine())
        value = series.value * want.scale
        if value - value != 0:  # NaN and both infinities
            nonfinite = engine.bad = True
        elif (want.low is not None and value < want.low) or (want.high is not None and value > want.high):
            engine.outside, engine.bad = value, True
        else:
            engine.add(series, value, want.kind == "counter")
    return folded, malformed, nonfinite
