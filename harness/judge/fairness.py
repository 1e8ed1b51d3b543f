"""Proof before comparison: every reason why two arms may not be compared, all at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from evenhand.judge.difference import changes, config_differences, declared, proofs, void_as_declared
from evenhand.judge.equality import Comparison
from evenhand.judge.ladder import LadderRow
from evenhand.judge.view import JudgeRow, RunView
from evenhand.records import HAS_FIGURES, FileHash, LegRow, Pool

CACHED_POINTS = 0.01
"""Cached shares of two arms may differ by one point in a cell."""


class Reason(JudgeRow, frozen=True, kw_only=True):
    """Why rules are void."""

    scope: Literal["all", "timing", "pool", "outputs"]
    """Rules that it voids; "outputs": outputs and errors."""
    text: str


def arm_of(scenario: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The arm as the scenario wrote it; empty when there is none of that name."""
    return next((arm for arm in scenario.get("arm", ()) if arm.get("name") == name), {})


def measured(run: RunView, arm: str) -> list[LegRow]:
    """Counted legs of an arm in a gate, by pair."""
    legs = [leg for leg in run.legs if leg.arm == arm and leg.role == "measure"]
    return sorted(legs, key=lambda leg: (leg.pair if leg.pair is not None else -1, leg.leg))


def proof(run: RunView, baseline: str, candidate: str, compare: str, pairs: int) -> list[Reason]:
    """Everything that must hold before two arms are compared and does not. Scope "all" voids every rule."""
    scenario = run.manifest.scenario
    a, b = measured(run, baseline), measured(run, candidate)
    reasons = [*_complete(run, a, b, baseline, candidate, pairs)]
    if a and b:
        reasons += _pools(a, b)
        things = declared(arm_of(scenario, baseline), arm_of(scenario, candidate))
        reasons += _files(run, a, b, things)
        reasons += _engines(scenario, a, b, things)
        reasons += _settings(a, b, things)
        reasons += _differ(scenario, a, b, things, compare)
    return [Reason(scope="all", text=text) for text in dict.fromkeys(reasons)]


def _complete(run: RunView, a: list[LegRow], b: list[LegRow], baseline: str, candidate: str, pairs: int) -> Iterable[str]:
    if run.partial:
        planned, done = _planned(run), sum(c.outcome in HAS_FIGURES for c in run.cells if c.kind != "warmup")
        yield f"the run is {run.manifest.status}: {done} of {planned} cells were measured"
    for name, legs in ((baseline, a), (candidate, b)):
        if len(legs) < pairs:
            yield f"{name} has {len(legs)} of {pairs} boots"
        for leg in legs:
            if leg.outcome not in HAS_FIGURES:
                yield f"leg {leg.leg} ({name}) {leg.outcome}: {leg.reason or 'no reason given'}"
            if leg.survivors:
                yield f"leg {leg.leg} ({name}) left processes behind: {', '.join(map(str, leg.survivors))}"


def _planned(run: RunView) -> int:
    legs = run.manifest.plan.get("legs", ())
    return sum(len(leg.get("cells", ())) for leg in legs)


def _pools(a: list[LegRow], b: list[LegRow]) -> Iterable[str]:
    unread = [leg for leg in (*a, *b) if _size(leg.pool) is None and leg.outcome in HAS_FIGURES]
    if unread:
        yield f"the pool of {', '.join(sorted({leg.arm for leg in unread}))} could not be read back"
    unit = "blocks" if all(leg.pool and leg.pool.blocks is not None for leg in (*a, *b)) else None
    sizes: dict[str, set[str]] = {}
    for leg in (*a, *b):
        size = _size(leg.pool, unit)
        if size is not None:
            sizes.setdefault(leg.arm, set()).add(size)
    if len({size for each in sizes.values() for size in each}) > 1:
        yield "pools differ: " + ", ".join(f"{arm} {' and '.join(sorted(each))}" for arm, each in sizes.items())


def _size(pool: Pool | None, unit: str | None = None) -> str | None:
    """The pool in blocks and their size, else bytes, else tokens."""
    if pool is None:
        return None
    for name in [unit] if unit else ["blocks", "bytes", "tokens"]:
        value = getattr(pool, name)
        if value is not None:
            each = f" of {pool.block_tokens} tokens" if name == "blocks" and pool.block_tokens is not None else ""
            slots = f" and {pool.state_slots} state slots" if pool.state_slots is not None else ""
            return f"{value} {name}{each}{slots}"
    return None


def model_files(leg: LegRow, model: str | None) -> dict[str, str]:
    """Path -> sha256 of the files below a model's folder (or of the model file itself)."""
    if not model:
        return {}
    name = model.rstrip("/").rpartition("/")[2]
    return {f.path: f.sha256 for f in leg.files if _below(f, name)}


def _below(file: FileHash, name: str) -> bool:
    return file.path == name or file.path.startswith(name + "/") or f"/{name}/" in file.path or file.path.endswith("/" + name)


def _files(run: RunView, a: list[LegRow], b: list[LegRow], things: Mapping[str, str]) -> Iterable[str]:
    scenario = run.manifest.scenario
    if "model" in things:
        yield f"models differ: {things['model']}; a converted model may run in a ladder, not in a gate"
        return
    draft = scenario.get("draft") or {}
    for what, path in (("model", scenario.get("model")), ("draft", draft.get("model"))):
        if not path:
            continue
        hashes = {tuple(sorted(model_files(leg, path).items())) for leg in (*a, *b)}
        if len(hashes) > 1:
            yield f"{what} files differ between boots (sha256)"
        elif hashes == {()} and what == "model" and not run.manifest.simulated:
            yield "the model's files were not hashed: it is not proved that both arms read the same"


_MAY_REBUILD = {"build", "engine", "url"}
"""Differences that may show in the engine's version and files."""


def _engines(scenario: Mapping[str, Any], a: list[LegRow], b: list[LegRow], things: Mapping[str, str]) -> Iterable[str]:
    """Engines that are not the same build over an arm's boots, or across arms that declare no other build."""
    for legs in (a, b):
        for leg in legs[1:]:
            changed = [text for text in (_versions(legs[0], leg), _engine_files(scenario, legs[0], leg)) if text]
            if changed:
                yield f"{leg.arm} changed its engine between boots: {'; '.join(changed)}"
    if _MAY_REBUILD & things.keys():
        return
    if _versions(a[0], b[0]):
        yield f"engine versions differ: {a[0].arm} {a[0].version}, {b[0].arm} {b[0].version}"
    if files := _engine_files(scenario, a[0], b[0]):
        yield f"engine {files}"


def _versions(a: LegRow, b: LegRow) -> str:
    """Versions that differ; what an engine did not tell is no difference."""
    return f"version {a.version} and {b.version}" if a.version and b.version and a.version != b.version else ""


def _engine_files(scenario: Mapping[str, Any], a: LegRow, b: LegRow) -> str:
    """Files of the engine itself that differ: all that were hashed but models and drafts."""
    places = [scenario, *scenario.get("arm", ())]
    names = [place.get("model") for place in places] + [(place.get("draft") or {}).get("model") for place in places]
    mine, other = (
        {f.path: f.sha256 for f in leg.files if not any(f.path in model_files(leg, name) for name in names)} for leg in (a, b)
    )
    differ = sorted(path for path in mine.keys() | other.keys() if mine.get(path) != other.get(path))
    more = f" and {len(differ) - 5} more" if len(differ) > 5 else ""
    return f"files differ (sha256): {', '.join(differ[:5])}{more}" if differ else ""


def _settings(a: list[LegRow], b: list[LegRow], things: Mapping[str, str]) -> Iterable[str]:
    for what, field in (
        ("drafted depth", "drafted_depth"),
        ("seats resolved", "seats_resolved"),
        ("seats requested", "seats_requested"),
    ):
        mine, other = {getattr(leg, field) for leg in a}, {getattr(leg, field) for leg in b}
        if len(mine | other) > 1:
            yield f"{what} differ: {a[0].arm} {_set(mine)}, {b[0].arm} {_set(other)}"
    for legs in (a, b):
        for leg in legs[1:]:
            changed = config_differences(legs[0], leg)
            if changed:
                yield f"{leg.arm} changed its configuration between boots: {changes(changed)}"


def _set(values: Iterable[Any]) -> str:
    return " and ".join(sorted("unknown" if v is None else str(v) for v in values))


def not_read_back(legs: Sequence[LegRow]) -> list[str]:
    """A note on what no engine told of itself, if anything: unknown on both arms is not equal, but voids nothing."""
    known = {"configuration": any(leg.config for leg in legs), "seats": any(leg.seats_resolved is not None for leg in legs)}
    unread = ", ".join(what for what, read in known.items() if not read)
    return [f"not read back from either arm's engine, so not proved equal: {unread}"] if unread else []


_MAY_CONFIGURE = {"argument", "environment variable", "option", "draft", "seats", "pool"}
"""Differences that may show in the effective configuration."""


def _differ(
    scenario: Mapping[str, Any], a: list[LegRow], b: list[LegRow], things: Mapping[str, str], compare: str
) -> Iterable[str]:
    if (void := void_as_declared(things, compare)) is not None:
        yield void
    changed = config_differences(a[0], b[0])
    if compare == "same":
        if changed:
            yield f"an A/A gate whose engines differ in configuration: {changes(changed)}"
        return
    if not things:
        return
    if changed and not (_MAY_CONFIGURE & things.keys()):
        yield f"effective configuration differs beyond what is declared: {changes(changed)}"
    arms = [arm_of(scenario, legs[0].arm) for legs in (a, b)]
    wanted = [bool(arm.get("patch") or arm.get("patches")) for arm in arms]
    yield from proofs(things, a, b, (wanted[0], wanted[1]))


def pairing(comparisons: Sequence[Comparison]) -> list[Reason]:
    """Voids of every rule that only the requests themselves show: unpaired ones, unlike prompts."""
    reasons = []
    unpaired = [p for c in comparisons for p in c.pairs if p.kind == "unpaired"]
    if unpaired:
        examples = ", ".join(f"{p.key} {p.detail}" for p in unpaired[:3])
        reasons.append(Reason(scope="all", text=f"unpaired requests: {len(unpaired)} ({examples})"))
    unlike = [p for c in comparisons for p in c.pairs if p.kind == "prompt differs"]
    if unlike:
        text = f"invalid pairing: {len(unlike)} requests, first {unlike[0].key}: {unlike[0].detail}"
        reasons.append(Reason(scope="all", text=text))
    if comparisons and not any(c.compared for c in comparisons) and not unpaired and not unlike:
        planned = sum(c.planned for c in comparisons)
        reasons.append(Reason(scope="all", text=f"no evidence: 0 of {planned} pairs could be compared"))
    return reasons


def cache_state(rows: Sequence[LadderRow], baseline: Sequence[LegRow], candidate: Sequence[LegRow]) -> list[Reason]:
    """A cell whose cache is warm for one arm and cold for the other voids times and pool; no rule on these looks at reuse."""
    shares: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        if row.cached_share is not None and row.kind != "reuse" and not row.repeat:
            for side, legs in enumerate((baseline, candidate)):
                if row.legs[0] in {leg.leg for leg in legs}:
                    shares.setdefault(row.cell, ([], []))[side].append(row.cached_share)
    means = {cell: (fmean(a), fmean(b)) for cell, (a, b) in shares.items() if a and b}
    unequal = [f"{cell} {100 * a:.1f} % and {100 * b:.1f} %" for cell, (a, b) in means.items() if abs(a - b) > CACHED_POINTS]
    if not unequal:
        return []
    text = f"unequal prefix-cache state: {', '.join(unequal)} of prompt tokens cached"
    return [Reason(scope=scope, text=text) for scope in ("timing", "pool")]
