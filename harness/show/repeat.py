"""How a stored run was made and how to make it again, as exact commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise

from evenhand.records import LegRow, Manifest


def commands(manifest: Manifest) -> list[str]:
    """Shell lines: run it again, judge the rows again, draw the report again. A folder of runs that the command named by its
    place on that machine is called RUNS.
    """
    out = _out(manifest.command)
    elsewhere = out.startswith("/")
    folder = shlex.quote(f"{'RUNS' if elsewhere else out}/{manifest.run}")
    again = manifest.command
    if elsewhere:
        again = ["RUNS" if word.rstrip("/") == out else "--out=RUNS" if word.startswith("--out=") else word for word in again]
    return [
        shlex.join(again) if again else f"evenhand {manifest.kind} {folder}/scenario.toml",
        f"evenhand judge {folder}",
        f"evenhand report {folder}",
    ]


def _out(command: Sequence[str]) -> str:
    """The folder of runs that the command named, else the default."""
    for word, following in pairwise([*command, ""]):
        if word == "--out" and following:
            return following.rstrip("/") or "/"
        if word.startswith("--out="):
            return word[6:].rstrip("/") or "/"
    return "results"


def scenario_note(manifest: Manifest) -> str:
    """Which scenario, and where it stands."""
    name = manifest.scenario_file or "no scenario file"
    overrides = f", overridden by {' '.join(manifest.overrides)}" if manifest.overrides else ""
    runs = ". RUNS is the folder of runs" if _out(manifest.command).startswith("/") else ""
    return (
        f"{name}{overrides}; as resolved it is in manifest.json, sha256 {manifest.scenario_sha256[:16]}, seed {manifest.seed}. "
        f"Judging and reporting need no engine{runs}"
    )


def engine_commands(legs: Sequence[LegRow]) -> list[tuple[str, str]]:
    """(leg in words, its exact command line); legs that share a command line but for the port stand together."""
    found: dict[tuple[str, str], list[int]] = {}
    for leg in legs:
        env = " ".join(f"{key}={shlex.quote(value)}" for key, value in sorted(leg.env.items()))
        argv = shlex.join(leg.argv) if leg.argv else "(attached: nothing was started)"
        if leg.port is not None:
            argv = argv.replace(str(leg.port), "PORT")
        found.setdefault((leg.arm, f"{env} {argv}".strip()), []).append(leg.leg)
    return [(f"{arm}, leg {', '.join(map(str, numbers))}", line) for (arm, line), numbers in found.items()]
