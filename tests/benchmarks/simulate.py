"""Gates that never ran: made-up boots and requests with known truth, judged by the real judge.

A boot has one speed factor, a request one for its first token and one for its later tokens; every leg is a little slower than
the one before. A planted effect slows every request of the candidate. That is the model which the judge assumes; a machine that
stays slow for a while (`memory`) or a slow first boot (`first_boot`) break it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from evenhand.judge.gate import judge_gate
from evenhand.judge.timing import TimingResult, decide, spread
from evenhand.judge.verdict import Verdict, overall
from evenhand.judge.view import JudgeRow, MemoryRun
from evenhand.records import CellRow, LegRow, Manifest, Pool, RequestRow

CELL = "ladder/c=8"
SECOND = 1_000_000_000


class World(JudgeRow, frozen=True, kw_only=True):
    """What is true of the simulated machine."""

    boot_sd: float = 0.03
    request_sd: float = 0.15
    drift: float = 0.005
    """Slow-down from each leg to the next, as a share."""
    memory: float = 0.0
    """Correlation of a boot's luck with that of the boot before: AR(1)."""
    first_boot: float = 0.0
    """How much slower the very first boot is, as a share."""
    effect: float = 0.0
    """How much slower the candidate truly is, as a share."""
    pairs: int = 6
    requests: int = 400
    """Per leg: a ladder of 1, 2, 4, 8, 16, 32 has 340."""
    margin: float = 0.05
    rules: tuple[str, ...] = ("ttft_p50", "tpot_p50", "throughput")
    concurrency: int = 8
    output_tokens: int = 64


def simulated_gate(world: World, seed: int) -> MemoryRun:
    """One gate run in ABBA order."""
    rng = np.random.Generator(np.random.PCG64(seed))
    letters = "".join("AB" if pair % 2 == 0 else "BA" for pair in range(world.pairs))
    legs, cells, rows = [], [], []
    luck = rng.normal(0, world.boot_sd) if world.memory else 0.0
    for number, letter in enumerate(letters):
        arm = "base" if letter == "A" else "new"
        luck = world.memory * luck + math.sqrt(1 - world.memory**2) * rng.normal(0, world.boot_sd)
        speed = math.exp(luck) * (1 + world.drift) ** number
        if number == 0:
            speed *= 1 + world.first_boot
        if letter == "B":
            speed *= 1 + world.effect
        ttft = 0.2 * speed * np.exp(rng.normal(0, world.request_sd, world.requests))
        tpot = 0.02 * speed * np.exp(rng.normal(0, world.request_sd, world.requests))
        took = ttft + (world.output_tokens - 1) * tpot
        start = number * 10_000 * SECOND
        wall = float(took.sum()) / world.concurrency
        legs.append(_leg(number, arm, number // 2, world))
        cells.append(
            CellRow(
                leg=number,
                arm=arm,
                cell=CELL,
                kind="ladder",
                concurrency=world.concurrency,
                outcome="ok",
                planned=world.requests,
                start_ns=start,
                end_ns=start + round(wall * SECOND),
                output_tokens=world.output_tokens,
            )
        )
        rows += list(_requests(number, arm, start, ttft.tolist(), tpot.tolist(), took.tolist(), world))
    return MemoryRun(manifest=_manifest(world, seed), legs=legs, cells=cells, requests=rows, path=Path("simulated"))


def _requests(
    leg: int, arm: str, start: int, ttft: list[float], tpot: list[float], took: list[float], world: World
) -> Iterator[RequestRow]:
    for i, (first, later, whole) in enumerate(zip(ttft, tpot, took, strict=True)):
        yield RequestRow(
            leg=leg, arm=arm, cell=CELL, index=i, key=f"{CELL}#{i}", prompt_sha256="", prompt_tokens_asked=512,
            prompt_tokens=512, outcome="ok", stamp="kernel", slot=i % world.concurrency, send_ns=start,
            end_ns=start + round(whole * SECOND), ttft_s=first, tpot_s=later, finish_reason="length", text="x",
            output_tokens=world.output_tokens, token_source="usage", sampling={"temperature": 0},
        )  # fmt: skip


def _leg(number: int, arm: str, pair: int, world: World) -> LegRow:
    config = {"changed": arm == "new"} if world.effect else {}
    return LegRow(
        leg=number, arm=arm, engine="simulated", pair=pair, outcome="ok", seats_requested=8, seats_resolved=8,
        pool=Pool(blocks=100), config=config, log_errors=0,
    )  # fmt: skip


def _manifest(world: World, seed: int) -> Manifest:
    arms = [{"name": "base", "engine": "simulated"}, {"name": "new", "engine": "simulated"}]
    if world.effect:
        arms[1]["options"] = "changed"
    gate = {
        "baseline": "base", "candidate": "new", "compare": "differ" if world.effect else "same", "pairs": world.pairs,
        "rules": {name: {"not_worse_by": world.margin} for name in world.rules},
    }  # fmt: skip
    return Manifest(
        evenhand="simulated", run=f"simulated-{seed}", kind="gate", status="finished", started_utc="", anchor_monotonic_ns=0,
        scenario={"name": "simulated", "model": "simulated", "arm": arms, "gate": gate, "ladder": {"arrivals": "closed"}},
        scenario_sha256=f"{seed}", plan={}, machine={}, versions={}, command=[], seed=seed, simulated=True,
    )  # fmt: skip


class Tally(JudgeRow, frozen=True, kw_only=True):
    """What became of many simulated gates."""

    world: World
    gates: int
    statuses: dict[str, int] = msgspec.field(default_factory=dict)
    rules: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    pairs_only: dict[str, int] = msgspec.field(default_factory=dict)
    """The same gates, had the interval come from the n log ratios alone and the planted time been corrected for the rules."""
    too_noisy: int = 0
    """Gates in which a planted slow-down went unseen under some rule."""
    smallest_margin_p50: float | None = None
    """Median over gates of the smallest margin that the hardest rule could have passed."""

    def share(self, status: str) -> float:
        """Share of gates that ended so."""
        return self.statuses.get(status, 0) / self.gates


def play(world: World, gates: int, seed: int) -> Tally:
    """Judge so many gates with fixed seeds."""
    statuses: Counter[str] = Counter()
    rules: dict[str, Counter[str]] = {name: Counter() for name in world.rules}
    pairs_only: Counter[str] = Counter()
    noisy = 0
    margins = []
    for n in range(gates):
        verdict: Verdict = judge_gate(simulated_gate(world, seed * 1_000_003 + n), "")
        statuses[verdict.status] += 1
        pairs_only[overall(_by_pairs(t, len(verdict.timing)) for t in verdict.timing)[0]] += 1
        for rule in verdict.rules:
            rules[rule.rule][rule.status] += 1
        noisy += any(t.planted_seen is False for t in verdict.timing)
        found = [t.decision.smallest_margin for t in verdict.timing if t.decision and t.decision.smallest_margin is not None]
        if found:
            margins.append(max(found))
    return Tally(
        world=world,
        gates=gates,
        statuses=dict(sorted(statuses.items())),
        rules={name: dict(sorted(c.items())) for name, c in rules.items()},
        pairs_only=dict(sorted(pairs_only.items())),
        too_noisy=noisy,
        smallest_margin_p50=float(np.median(margins)) if margins else None,
    )


def _by_pairs(result: TimingResult, rules: int) -> str:
    """What the n log ratios alone would have concluded."""
    if result.decision is None:
        return result.status
    alone = spread(result.decision.spread.d, 0)
    status = decide(alone, result.margin, rules, result.decision.p_adjusted).status
    mean = alone.mean or 0.0
    planted = spread([d - mean + math.log1p(2 * result.margin) for d in alone.d], 0)
    seen = decide(planted, result.margin, rules).status == "fail"
    return "inconclusive" if status == "pass" and not seen else status
