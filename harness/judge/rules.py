"""The rules of a gate, from the scenario's data, and what their power will be before anything boots."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any, Literal

from evenhand.judge.view import JudgeRow

ALPHA = 0.05
"""Level of every test that can blame."""
OUTPUTS = ("identical", "identical text", "no worse than control")
TIMINGS: dict[str, str] = {
    "ttft_p50": "median time to first token",
    "ttft_p95": "95th percentile of time to first token",
    "tpot_p50": "median time per output token",
    "throughput": "output tokens per second of the rung",
}
MIN_BOOTS = 2
"""Boots per arm that outputs, errors and peaks need."""


class RuleError(ValueError):
    """One sentence: key, what was found, what would do."""


class Rule(JudgeRow, frozen=True, kw_only=True):
    """One parsed rule."""

    name: str
    kind: Literal["outputs", "pool", "timing", "errors", "engine_errors"]
    text: str
    """As people write it: `ttft_p50 not worse by 5 %`."""
    mode: str = ""
    """outputs: one of OUTPUTS"""
    margin: float | None = None
    """timing: a share; pool: blocks"""
    limit: int = 0
    """errors: how many are allowed"""


def parse_rules(rules: Mapping[str, Any]) -> list[Rule]:
    """Rules in the order written. Raises RuleError for anything that is not one of them."""
    return [_parse(name, value) for name, value in rules.items()]


def _parse(name: str, value: Any) -> Rule:
    if name == "outputs":
        if value not in OUTPUTS:
            raise _wrong(name, value, "write " + " or ".join(f'"{o}"' for o in OUTPUTS))
        return Rule(name=name, kind="outputs", text=f"outputs {value}", mode=value)
    if name == "peak_pool":
        blocks = 0.0 if value == "not worse" else _number(value, "blocks")
        if blocks is None or blocks < 0:
            raise _wrong(name, value, 'write "not worse" or { blocks = 1 }')
        text = "peak pool not worse" if not blocks else f"peak pool not worse by more than {blocks:g} blocks"
        return Rule(name=name, kind="pool", text=text, margin=blocks)
    if name in TIMINGS:
        margin = _number(value, "not_worse_by")
        if margin is None or not 0 < margin < 1:
            raise _wrong(name, value, "write { not_worse_by = 0.05 } for 5 %")
        return Rule(name=name, kind="timing", text=f"{name} not worse by {100 * margin:g} %", margin=margin)
    if name in ("errors", "engine_errors"):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _wrong(name, value, "write how many are allowed, such as 0")
        what = "failed requests" if name == "errors" else "ERROR lines in the engine's log"
        return Rule(name=name, kind="errors" if name == "errors" else "engine_errors", text=f"{what} <= {value}", limit=value)
    known = ["outputs", "peak_pool", *TIMINGS, "errors", "engine_errors"]
    close = difflib.get_close_matches(name, known, 1)
    remedy = f"did you mean {close[0]!r}?" if close else f"the rules are {', '.join(known)}"
    raise RuleError(f"key 'gate.rules.{name}': no such rule; {remedy}")


def _number(value: Any, key: str) -> float | None:
    """The number in `{key = number}`."""
    if not isinstance(value, dict) or set(value) != {key}:
        return None
    number = value[key]
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        return None
    return float(number)


def _wrong(name: str, found: Any, remedy: str) -> RuleError:
    return RuleError(f"key 'gate.rules.{name}': found {found!r}; {remedy}")


def pairs_needed(timing_rules: int) -> int:
    """Boot pairs with which a sign flip can reach ALPHA / rules: 1/2^n <= 0.05/rules. 5 for one rule, 6 for three."""
    return math.ceil(math.log2(timing_rules / ALPHA) - 1e-12) if timing_rules else 0


def plan_power(rules: Mapping[str, Any], pairs: int) -> list[str]:
    """What these rules can and cannot decide with so many pairs, one sentence each; to be said before booting."""
    parsed = parse_rules(rules)
    timing = [r for r in parsed if r.kind == "timing"]
    others = [r for r in parsed if r.kind != "timing"]
    said = []
    if others and pairs < MIN_BOOTS:
        names = ", ".join(r.name for r in others)
        said.append(f"{names} will be inconclusive: {MIN_BOOTS} boots per arm are needed, {pairs} planned")
    if timing:
        need = pairs_needed(len(timing))
        names = ", ".join(r.name for r in timing)
        count = f"{len(timing)} timing rules need {need}" if len(timing) != 1 else f"1 timing rule needs {need}"
        if pairs < need:
            said.append(
                f"{names} will be inconclusive: {count} boot pairs (1/2^n <= 0.05/{len(timing)}), "
                f"{pairs} planned; set gate.pairs = {need} or remove the rules"
            )
        else:
            said.append(f"{names}: {pairs} boot pairs can confirm a slow-down ({count})")
    if any(r.name == "ttft_p95" for r in timing):
        said.append("ttft_p95 needs at least 20 requests in every rung")
    return said
