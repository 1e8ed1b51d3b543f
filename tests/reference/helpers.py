"""Stepping the embedded engine's scheduler by hand."""

from __future__ import annotations

from array import array
from collections import deque
from pathlib import Path

from evenhand.engines.reference import scheduler
from evenhand.engines.reference.config import read_flags
from evenhand.engines.reference.dialects import dialect as find_dialect
from evenhand.engines.reference.options import convert
from evenhand.engines.reference.resolve import Setup, resolve
from evenhand.engines.reference.scheduler import make_state
from evenhand.engines.reference.sequences import Output, Rules, Seq, State, Step
from evenhand.engines.reference.tokens import Stream, digest


def prompt(length: int, key: int = 0) -> array[int]:
    """Ids that share no block between keys."""
    return array("I", ((i * 7919 + key * 104729 + 13) % 2000 + 3 for i in range(length)))


def request(ids: array[int], limit: int, name: str = "r") -> Seq:
    key = digest(ids)
    return Seq(name=name, prompt=ids, limit=limit, stream=Stream(key, range(3, 2048)), digest=key)


class Bench:
    """An engine without a clock: `step` schedules, and commits what is no longer in flight."""

    def __init__(
        self, rules: Rules, blocks: int, state_groups: int = 3, null_gap_fix: bool = False, slots: object = None
    ) -> None:
        self.state: State = make_state(rules, blocks, state_groups, null_gap_fix, slots)  # type: ignore[arg-type]
        self.flights: deque[Step] = deque()
        self.gauge: list[int] = []
        self.outputs: list[Output] = []
        self.scheduled: list[int] = []

    def add(self, seq: Seq) -> Seq:
        scheduler.add(self.state, seq)
        return seq

    def step(self) -> bool:
        """One turn of the engine's loop; False when there is nothing left to do."""
        step = scheduler.schedule(self.state)
        if step is not None:
            self.flights.append(step)
            self.scheduled.append(step.used)
            if len(self.flights) <= self.state.rules.in_flight:
                return True
        if not self.flights:
            return False
        self.outputs += scheduler.commit(self.state, self.flights.popleft())
        used = self.state.pool.used
        if not self.gauge or self.gauge[-1] != used:
            self.gauge.append(used)
        return True

    def run(self, limit: int = 100_000) -> Bench:
        for _ in range(limit):
            if not self.step():
                return self
        raise AssertionError("the engine did not come to rest")


def hybrid(block: int, budget: int, *, k: int = 0, in_flight: int = 1, drafter: bool = False, **more: object) -> Rules:
    return Rules(
        seats=8,
        batch_tokens=budget,
        block_tokens=block,
        depth=k,
        drafter=drafter,
        in_flight=in_flight,
        aligned=True,
        caching=True,
        **more,  # type: ignore[arg-type]
    )


def setup_of(*argv: str, dialect: str = "vllm", env: dict[str, str] | None = None, **options: object) -> Setup:
    """What a command line resolves to, without a server. Raises Refused."""
    told = convert({"dialect": dialect, **options})
    speaks = find_dialect(dialect)
    values, _ = read_flags(argv, speaks.flags(told))
    return resolve(speaks.config(values, told, env or {}), defaults=speaks.defaults)


MODELS = Path(__file__).parents[2] / "scenarios" / "models"
