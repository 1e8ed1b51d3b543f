"""What two arms declare to differ in, and the proof that the running engines did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evenhand.records import LegRow

_THINGS = {
    "patch": "patch",
    "patches": "patch",
    "source": "build",
    "commit": "build",
    "build": "build",
    "executable": "build",
    "environment": "build",
    "engine": "engine",
    "url": "url",
    "args": "argument",
    "env": "environment variable",
    "options": "option",
    "pool": "pool",
    "draft": "draft",
    "seats": "seats",
    "model": "model",
}
"""Field of an arm -> the one thing it changes."""


def declared(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> dict[str, str]:
    """Thing -> "x against y" for everything in which two arms of a scenario differ."""
    found: dict[str, str] = {}
    for field, thing in _THINGS.items():
        a, b = baseline.get(field), candidate.get(field)
        if (a or None) != (b or None):
            text = f"{field} {_short(a)} against {_short(b)}"
            found[thing] = f"{found[thing]}, {text}" if thing in found else text
    return found


def void_as_declared(things: Mapping[str, str], compare: str) -> str | None:
    """Why no measurement could decide a gate whose arms are declared to differ in `things`; None where one can."""
    if compare == "same":
        return f'compare = "same" declares an A/A gate, but the arms differ: {"; ".join(things.values())}' if things else None
    if not things:
        return 'A/A: arms do not differ; declare it with compare = "same", or give the candidate its change'
    if len(things) > 1:
        return f"arms differ in {len(things)} things, so no verdict could say which: {'; '.join(things.values())}"
    return None


def _short(value: Any) -> str:
    text = "none" if value in (None, "", [], {}) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def config_differences(a: LegRow, b: LegRow) -> dict[str, tuple[Any, Any]]:
    """Keys of the effective configuration with different values; a key that one side lacks counts when builds are the same."""
    keys = sorted(a.config.keys() | b.config.keys())
    same_build = a.version == b.version
    found = {}
    for key in keys:
        x, y = a.config.get(key), b.config.get(key)
        if x != y and (same_build or (key in a.config and key in b.config)):
            found[key] = (x, y)
    return found


def proofs(
    things: Mapping[str, str], a_legs: Sequence[LegRow], b_legs: Sequence[LegRow], patched: tuple[bool, bool]
) -> list[str]:
    """Why the declared difference is not proved from the running engines; empty when it is.

    `patched`: which arms name a patch.
    """
    reasons = []
    for legs, wanted in ((a_legs, patched[0]), (b_legs, patched[1])):
        for leg in legs:
            reasons += patch_proof(leg, wanted)
    others = sorted(set(things) - {"patch"})
    if others and not reasons and not any(_visible(a, b) for a, b in zip(a_legs, b_legs, strict=False)):
        reasons.append(
            f"A/A: arms do not differ: {'; '.join(things[t] for t in others)} is declared, but the engines report the same "
            "effective configuration, version and files"
        )
    return reasons


def _visible(a: LegRow, b: LegRow) -> bool:
    """Whether anything read from the engines themselves differs."""
    return (
        bool(config_differences(a, b))
        or a.version != b.version
        or {(f.path, f.sha256) for f in a.files} != {(f.path, f.sha256) for f in b.files}
        or (a.seats_resolved, a.drafted_depth) != (b.seats_resolved, b.drafted_depth)
        or a.engine != b.engine
        or _build(a, b)
    )


def _build(a: LegRow, b: LegRow) -> bool:
    """Whether a source checkout's modules (an overlay without a patch) were loaded on one side only."""
    left, right = ({(p.path, p.loaded_sha256) for p in leg.patched if p.loaded_sha256} for leg in (a, b))
    return left != right


def patch_proof(leg: LegRow, wanted: bool) -> list[str]:
    """Why it is not proved that this leg ran its patch (or ran none)."""
    where = f"leg {leg.leg} ({leg.arm})"
    if not wanted:
        return []
    if not leg.patched:
        return [f"{where}: the patch left no proof that it was loaded"]
    reasons = []
    for file in leg.patched:
        if file.installed_sha256_before != file.installed_sha256_after:
            reasons.append(f"{where}: the installed {file.path} changed during the run")
        if file.action == "delete":
            if file.loaded_sha256 is not None:
                reasons.append(f"{where}: {file.path} was deleted by the patch but loaded from {file.loaded_from}")
        elif file.path.endswith(".py") and file.loaded_sha256 is None:
            reasons.append(f"{where}: {file.path} was not loaded by the engine, so the patch did nothing there")
        elif file.loaded_sha256 is not None and file.loaded_sha256 != file.overlay_sha256:
            reasons.append(f"{where}: {file.path} was loaded from {file.loaded_from}, which is not the patched file")
    changed = [file for file in leg.patched if file.overlay_sha256 != file.installed_sha256_before]
    if not reasons and not any(file.loaded_sha256 for file in changed):
        names = ", ".join(file.path for file in changed) or "no file"
        reasons.append(
            f"{where}: difference not proved: the patch changes {names}, of which the engine's processes load nothing"
        )
    return reasons


def unproved(legs: Sequence[LegRow]) -> list[str]:
    """Changed files that no process can be seen to load, since they are no Python modules."""
    changed = [file for leg in legs for file in leg.patched if file.overlay_sha256 != file.installed_sha256_before]
    return list(dict.fromkeys(file.path for file in changed if not file.path.endswith(".py")))


def width(scenario: Mapping[str, Any], a_legs: Sequence[LegRow], b_legs: Sequence[LegRow]) -> str:
    """What a claim about two arms is about: what they declare to differ in, what differed with it, and what is not proved."""
    if not a_legs or not b_legs:
        return ""
    arms = {arm.get("name"): arm for arm in scenario.get("arm", ())}
    things = declared(arms.get(a_legs[0].arm, {}), arms.get(b_legs[0].arm, {}))
    said = [f"arms differ by {'; '.join(things.values())}"] if things else []
    if changed := config_differences(a_legs[0], b_legs[0]):
        said.append(f"with it differ: {changes(changed)}")
    if files := unproved([*a_legs, *b_legs]):
        said.append(f"not proved to be loaded: {', '.join(files)}")
    return "; ".join(said)


def changes(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """ "key 1 and 2, other key 'x' and 'y'"."""
    return ", ".join(f"{key} {x!r} and {y!r}" for key, (x, y) in changed.items())
