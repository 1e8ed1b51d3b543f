"""The engine's loop: scheduler steps on a real clock, tokens handed to whoever asked."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol

from evenhand.engines.reference import scheduler, tokens
from evenhand.engines.reference.api import Ask
from evenhand.engines.reference.resolve import Setup
from evenhand.engines.reference.sequences import Output, Seq, State, Step
from evenhand.engines.reference.vitals import Vitals
from evenhand.engines.reference.vocabulary import Vocabulary

FAST_FACTOR = 0.5
STUCK_POLL_S = 0.02


class Sink(Protocol):
    """Takes one request's tokens."""

    def push(self, ids: list[int], finish: str | None) -> None: ...

    def fail(self, message: str) -> None: ...


class Engine:
    """One engine on one event loop."""

    def __init__(self, setup: Setup, vocabulary: Vocabulary) -> None:
        self.setup = setup
        self.vocabulary = vocabulary
        self.state: State = setup.state()
        self.vitals = Vitals(self.state, setup.config.options.probe_log)
        self.dead: str | None = None
        self.usage_blocks = 0
        """The gauges are refreshed when a step ends, not when they are read."""
        self.running = 0
        self.waiting = 0
        self.used_slots = 0
        self._every = max(1, setup.config.gauge_every)
        self._decode_steps = 0
        self._wake = asyncio.Event()
        clock = setup.config.options.clock
        self._factor = FAST_FACTOR if setup.config.fast else 1.0
        self._clock = clock
        self._flights: deque[tuple[Step, float]] = deque()

    def submit(self, ask: Ask, name: str, sink: Sink) -> Seq:
        """Queue a request."""
        faults = self.setup.config.options.faults
        key = tokens.digest(ask.prompt, ask.salt)
        number = int.from_bytes(key[:4], "little")
        plant = faults.plant_token if number % max(1, faults.plant_every) == 0 else None
        limit = ask.max_tokens
        eos = None
        if not ask.ignore_eos and (number >> 8) % 1000 < faults.eos_share * 1000:
            limit, eos = max(1, limit // 2), self.vocabulary.eos
        stream = tokens.Stream(key, self.vocabulary.ordinary, plant)
        seq = Seq(name=name, prompt=ask.prompt, limit=limit, stream=stream, digest=key, sink=sink)
        if eos is not None:
            seq.eos = eos
            stream.take(limit - 1, 1)
            stream.end(limit - 1, eos)
        scheduler.add(self.state, seq)
        self._wake.set()
        return seq

    def abort(self, seq: Seq, reason: str = "abort") -> None:
        """Give a request up."""
        scheduler.abort(self.state, seq, reason)
        seq.sink = None
        self._refresh()
        self._wake.set()

    def reset_cache(self) -> bool:
        """Forget every prefix; False while something runs."""
        return self.state.pool.forget_all()

    def die(self, message: str) -> None:
        """The engine is dead; the server may live on."""
        self.dead = message
        for seq in [*self.state.running, *self.state.waiting]:
            scheduler.abort(self.state, seq, "error")
            seq.sink.fail(message)  # type: ignore[attr-defined]
        self._wake.set()

    async def run(self) -> None:
        """Step for ever."""
        depth = self.setup.rules.in_flight
        state, flights = self.state, self._flights
        ends = 0.0
        while True:
            if not flights and not scheduler.busy(state):
                self._wake.clear()
                await self._wake.wait()
            step = None if self.dead else scheduler.schedule(state)
            if step is not None:
                self.vitals.scheduled(step)
                cost = self._factor * self._clock.step_s(step.prefill_tokens, step.decode_tokens)
                ends = max(time.perf_counter(), ends) + cost
                flights.append((step, ends))
                if len(flights) <= depth:
                    continue
            if not flights:
                self._refresh()
                await asyncio.sleep(STUCK_POLL_S)  # nothing fits: only an arrival or an end can help
                continue
            done, when = flights.popleft()
            await asyncio.sleep(max(0.0, when - time.perf_counter()))
            outputs = scheduler.commit(state, done)
            if self.setup.config.options.faults.batch_dependent:
                self._perturb(done, outputs)
            self._refresh(done)
            for output in outputs:
                output.seq.sink.push(output.ids, output.finish)  # type: ignore[attr-defined]
                if output.finish is not None:
                    output.seq.sink = None  # the two know each other: ended requests would wait for a rare collection

    def _refresh(self, step: Step | None = None) -> None:
        state = self.state
        self._decode_steps = 0 if step is None or step.prefill_tokens else self._decode_steps + 1
        if self._decode_steps % self._every and scheduler.busy(state):
            return  # stale gauges, as engines have them that report now and then
        self.usage_blocks = state.pool.used
        self.used_slots = state.slots.used if state.slots else 0
        self.running = len(state.running)
        self.waiting = len(state.waiting)
        self.vitals.committed()

    def _perturb(self, step: Step, outputs: list[Output]) -> None:
        """Batch-dependent numerics: near ties fall otherwise where others run in the same step."""
        company = len(step.items)
        if company < 2:
            return
        share = int(self.setup.config.options.faults.batch_dependent * 1000)
        for output in outputs:
            seq = output.seq
            first = len(seq.output) - len(output.ids)
            for offset, token in enumerate(output.ids):
                position = first + offset
                if seq.stream.margin(position) > 0.01 or hash((step.number, company, position)) % 1000 >= share:
                    continue
                output.ids[offset] = seq.output[position] = seq.stream.neighbour(token)
