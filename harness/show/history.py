"""One metric over the runs of a folder, oldest first, with the changes that leave the noise marked.

Noise is what boots of one and the same build differ by: the pooled standard deviation of log figures over groups of boots with
equal arm, engine files, configuration, cell and machine, within runs and between them. A change from one run to the next leaves
it when |log(after/before)| > t(97.5 %, freedom) x sd x sqrt(1/n + 1/m), n and m being the boots behind both figures. Where no
build was booted twice the noise is not known, and nothing is marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from evenhand.judge.columns import Reader
from evenhand.judge.fairness import arm_of
from evenhand.judge.ladder import LadderRow, ladder_rows
from evenhand.judge.pressure import PressureRow, pressure_rows
from evenhand.judge.student import t_quantile
from evenhand.judge.view import JudgeError
from evenhand.records import LegRow, Manifest
from evenhand.show.pictures import HistoryPoint
from evenhand.show.table import SIMULATED, Column, Table, number
from evenhand.store import Run, StoreError

CONFIDENCE = 0.975


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of a row, and how it is read."""

    label: str
    unit: str
    pressure: bool
    of: Callable[[LadderRow | PressureRow], float | None]


def _ladder(name: str, scale: float = 1.0) -> Callable[[LadderRow | PressureRow], float | None]:
    def read(row: LadderRow | PressureRow) -> float | None:
        value = getattr(row, name, None)
        return None if value is None else float(value) * scale

    return read


METRICS: dict[str, Metric] = {
    "throughput": Metric(label="throughput", unit="tokens/s", pressure=False, of=_ladder("tokens_per_s")),
    "ttft_p50": Metric(label="TTFT p50", unit="ms", pressure=False, of=_ladder("ttft_p50_s", 1e3)),
    "ttft_p95": Metric(label="TTFT p95", unit="ms", pressure=False, of=_ladder("ttft_p95_s", 1e3)),
    "tpot_p50": Metric(label="TPOT p50", unit="ms", pressure=False, of=_ladder("tpot_p50_s", 1e3)),
    "peak_pool": Metric(label="peak pool", unit="blocks", pressure=True, of=_ladder("blocks")),
}
"""Name on the command line -> metric. A new one is one more entry."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """The metric of one boot."""

    run: str
    arm: str
    cell: str
    build: str
    """What makes boots comparable as repeats: engine, version, files, patch, configuration and machine."""
    value: float


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One run in the list."""

    run: str
    started_utc: str
    kind: str
    status: str
    label: str
    """Commit, or version, of the arm that is drawn."""
    setting: str
    """Machine, model and workload: figures of two settings are never compared."""
    simulated: bool
    figures: list[Figure] = []
    """Of the arm and cell that are drawn, one per boot."""

    @property
    def value(self) -> float | None:
        """Geometric mean over boots."""
        logs = [math.log(f.value) for f in self.figures]
        return math.exp(math.fsum(logs) / len(logs)) if logs else None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a folder of runs: one metric of one arm and cell over the runs of one scenario."""

    metric: str
    scenario: str
    arm: str
    cell: str
    others: list[str]
    """What else could have been followed, one sentence each: scenarios, arms, cells."""
    entries: list[Entry]
    sd: float | None
    """Pooled sd of log figures between boots of one build; None where no build was booted twice."""
    freedom: int
    changed: list[bool]
    """Per entry: its change against the run before it leaves the noise."""
    unreadable: list[str] = []
    """Folders left out, each with its reason."""


def history(
    results: Path, metric: str, arm: str | None = None, cell: str | None = None, scenario: str | None = None
) -> History:
    """Read the runs below `results` that are of one scenario, by default that of the newest run that has the metric. `arm` and
    `cell` default to the arm and the cell that most of them have it for.

    Raises StoreError in one sentence when there is nothing to draw.
    """
    chosen = METRICS.get(metric)
    if chosen is None:
        raise StoreError(f"no metric named {metric!r}; the metrics are {', '.join(METRICS)}")
    if not results.is_dir():
        raise StoreError(f"{results} is no folder; name the folder that holds runs, such as results")
    runs, unreadable = _runs(results)
    if not runs:
        raise StoreError(f"{results} holds no run folder")
    names = [_scenario(run.manifest) for run in runs]
    if scenario is not None and scenario not in names:
        raise StoreError(f"{results} holds no run of scenario {scenario!r}; it holds {', '.join(dict.fromkeys(names))}")
    figures: dict[Path, list[Figure]] = {}
    for run in runs:
        try:
            figures[run.path] = _figures(run, chosen)
        except (StoreError, JudgeError) as error:
            unreadable.append(str(error))
    known = [run for run in runs if run.path in figures]
    with_it = [run for run in known if figures[run.path]]
    scenario = scenario or _scenario((with_it or known or runs)[-1].manifest)
    mine = [run for run in known if _scenario(run.manifest) == scenario]
    every = [figure for run in mine for figure in figures[run.path]]
    arm = arm or _commonest(f.arm for f in every)
    cell = cell or _commonest(f.cell for f in every if f.arm == arm)
    entries = [_entry(run, [f for f in figures[run.path] if (f.arm, f.cell) == (arm, cell)], arm) for run in mine]
    sd, freedom = noise([figure for entry in entries for figure in entry.figures])
    return History(
        metric=metric,
        scenario=scenario,
        arm=arm,
        cell=cell,
        others=_others(names, scenario, every, arm, cell),
        entries=entries,
        sd=sd,
        freedom=freedom,
        changed=changes(entries, sd, freedom),
        unreadable=unreadable,
    )


def _others(names: Sequence[str], scenario: str, every: Sequence[Figure], arm: str, cell: str) -> list[str]:
    """What the runs hold beside what is followed, with the option that follows it."""
    runs = {name: f"{name} ({names.count(name)})" for name in names if name != scenario}
    arms = dict.fromkeys(f.arm for f in every if f.arm != arm)
    cells = dict.fromkeys(f.cell for f in every if f.arm == arm and f.cell != cell)
    said = [("scenarios (--scenario), with their runs", runs.values()), ("arms (--arm)", arms), ("cells (--cell)", cells)]
    return [f"other {what}: {', '.join(found)}" for what, found in said if found]


def _scenario(manifest: Manifest) -> str:
    return str(manifest.scenario.get("name", ""))


def noise(figures: Sequence[Figure]) -> tuple[float | None, int]:
    """(pooled sd of log figures between boots of one build, its degrees of freedom)."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for figure in figures:
        groups.setdefault((figure.arm, figure.cell, figure.build), []).append(math.log(figure.value))
    squares, freedom = 0.0, 0
    for logs in groups.values():
        mean = math.fsum(logs) / len(logs)
        squares += math.fsum((v - mean) ** 2 for v in logs)
        freedom += len(logs) - 1
    return (math.sqrt(squares / freedom), freedom) if freedom else (None, 0)


def changes(entries: Sequence[Entry], sd: float | None, freedom: int) -> list[bool]:
    """Which entries differ from the last one before them that has a figure, in the same setting, by more than the noise."""
    marked = [False] * len(entries)
    if sd is None or not freedom:
        return marked
    factor = t_quantile(CONFIDENCE, freedom)
    known = [(n, entry) for n, entry in enumerate(entries) if entry.value is not None]
    for (_, before), (n, after) in pairwise(known):
        if before.setting != after.setting or before.value is None or after.value is None:
            continue
        limit = factor * sd * math.sqrt(1 / len(before.figures) + 1 / len(after.figures))
        marked[n] = abs(math.log(after.value / before.value)) > limit + 1e-12
    return marked


def _runs(results: Path) -> tuple[list[Run], list[str]]:
    runs, unreadable = [], []
    for file in sorted(results.glob("*/manifest.json")):
        try:
            runs.append(Run(file.parent))
        except StoreError as error:
            unreadable.append(str(error))
    return sorted(runs, key=lambda run: (run.manifest.started_utc, run.manifest.run)), unreadable


def _figures(run: Run, metric: Metric) -> list[Figure]:
    reader = Reader(run)
    legs = {leg.leg: leg for leg in run.legs}
    rows: Sequence[LadderRow | PressureRow]
    rows = pressure_rows(run, reader) if metric.pressure else ladder_rows(run, reader)
    found = []
    for row in rows:
        number = row.leg if isinstance(row, PressureRow) else row.legs[0]
        # a leg that is still running, or was killed, has no row yet
        value = metric.of(row) if row.has_figures and row.repeat == 0 and number in legs else None
        if value is not None and value > 0:
            build = _build(run.manifest, legs[number])
            found.append(Figure(run=run.manifest.run, arm=row.arm, cell=row.cell, build=build, value=value))
    return found


def _build(manifest: Manifest, leg: LegRow) -> str:
    arm = arm_of(manifest.scenario, leg.arm)
    files = sorted((f.path, f.sha256) for f in leg.files)
    patched = sorted((p.path, p.loaded_sha256) for p in leg.patched)
    facts = (leg.engine, leg.version, arm.get("commit"), arm.get("patch"), arm.get("patches"), files, patched, leg.config)
    return msgspec.json.encode((facts, _setting(manifest)), order="sorted").decode()


def _setting(manifest: Manifest) -> str:
    scenario = manifest.scenario
    workload = [scenario.get(key) for key in ("model", "ladder", "pressure", "seats", "context", "draft", "pool", "prompts")]
    gpus = [gpu.get("name") for gpu in manifest.machine.get("gpus") or ()]  # not which one of them: a model is a machine
    machine = [*(manifest.machine.get(key) for key in ("cpu", "cores")), gpus]
    return msgspec.json.encode((scenario.get("name"), workload, machine), order="sorted").decode()


def _entry(run: Run, figures: list[Figure], arm: str) -> Entry:
    manifest = run.manifest
    commit = arm_of(manifest.scenario, arm).get("commit")
    version = next((leg.version for leg in run.legs if leg.arm == arm and leg.version), None)
    return Entry(
        run=manifest.run,
        started_utc=manifest.started_utc,
        kind=manifest.kind,
        status=manifest.status,
        label=str(commit)[:9] if commit else (version or manifest.started_utc[5:16].replace("T", " ")),
        setting=_setting(manifest),
        simulated=manifest.simulated,
        figures=figures,
    )


def _commonest(names: Iterable[str]) -> str:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    # of equals the last: the highest rung
    return max(counts, key=lambda name: (counts[name], list(counts).index(name)), default="")


# --- shown ----------------------------------------------------------------------------------------------------------------


def history_table(found: History) -> Table:
    """Every run, with the figure that is drawn and the change that leaves the noise."""
    metric = METRICS[found.metric]
    rows = []
    before: Entry | None = None
    for entry, changed in zip(found.entries, found.changed, strict=True):
        value = entry.value
        change = "-"
        if before is not None and before.value is not None and value is not None and before.setting == entry.setting:
            change = f"{(value / before.value - 1) * 100:+.1f}"
        rows.append(
            [entry.run, entry.kind, entry.status, entry.label, str(len(entry.figures)), number(value, 4), change,
             "leaves the noise" if changed else "-"]
        )  # fmt: skip
        before = entry if value is not None else before
    return Table(
        title=_title(found),
        columns=(
            Column("run", "", "left"),
            Column("kind", "", "left"),
            Column("status", "", "left"),
            Column("commit or version", "", "left"),
            Column("boots"),
            Column(metric.label, metric.unit),
            Column("change", "%"),
            Column("", "", "left"),
        ),
        rows=rows,
        notes=[_noise_words(found), *found.others, *found.unreadable],
        simulated=any(entry.simulated for entry in found.entries),
    )


def _title(found: History) -> str:
    what = f"arm {found.arm}, cell {found.cell}" if found.arm else "no run has it"
    return f"History of {METRICS[found.metric].label}: scenario {found.scenario}, {what}"


def _noise_words(found: History) -> str:
    if found.sd is None:
        return "noise is not known: no build was booted twice, so no change is marked"
    return (
        f"noise: boots of one build differ by {100 * math.expm1(found.sd):.2g} % (sd, {found.freedom} degrees of freedom); "
        "runs with another machine, model or workload are not compared"
    )


def draw(found: History, stem: Path) -> list[Path]:
    """stem.svg and stem.png of the metric over the runs.

    Raises StoreError where no run has it.
    """
    from evenhand.show import plots, style

    metric = METRICS[found.metric]
    if not any(entry.figures for entry in found.entries):
        where = f"{found.arm or 'any arm'} {found.cell}".rstrip()
        raise StoreError(f"no run of scenario {found.scenario} has {metric.label} of {where}")
    settings = [entry.setting for entry in found.entries]
    drawn = zip(found.entries, found.changed, strict=True)
    points = [_point(entry, changed, bool(n) and settings[n] != settings[n - 1]) for n, (entry, changed) in enumerate(drawn)]
    notes = [f"Scenario {found.scenario}, {found.arm} {found.cell}.", f"{_noise_words(found)}.".capitalize()]
    if any(entry.simulated for entry in found.entries):
        notes.append(SIMULATED)
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        return style.save(plots.history(metric.label, metric.unit, points, notes=notes), stem)
    except OSError as error:
        raise StoreError(f"cannot write {stem}: {error.strerror or error}") from error


def _point(entry: Entry, changed: bool, apart: bool) -> HistoryPoint:
    values = [figure.value for figure in entry.figures]
    several = len(values) > 1
    return HistoryPoint(
        commit=entry.label,
        value=entry.value,
        low=min(values) if several else None,
        high=max(values) if several else None,
        changed=changed,
        apart=apart,
    )
