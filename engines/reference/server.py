"""The server: routes, requests into the engine, faults where they meet the wire."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

import msgspec

from evenhand.engines.reference import api
from evenhand.engines.reference.api import ApiError
from evenhand.engines.reference.dialects.base import JSON, TEXT, Answer, Dialect
from evenhand.engines.reference.engine import Engine
from evenhand.engines.reference.reply import FaultyReply, Reply
from evenhand.engines.reference.resolve import Setup
from evenhand.engines.reference.vocabulary import Vocabulary
from evenhand.engines.reference.wire import Request, Wire

BACKLOG = 4096
HUGE_BYTES = 10 << 20
COMPLETIONS = {"/v1/completions": False, "/v1/chat/completions": True}


def log(*lines: str) -> None:
    """Lines to stdout at once."""
    sys.stdout.write("".join(line + "\n" for line in lines))
    sys.stdout.flush()


class Server:
    """One engine behind one port."""

    def __init__(self, setup: Setup, dialect: Dialect) -> None:
        self.setup = setup
        self.dialect = dialect
        self.version = setup.config.options.version or dialect.version
        self.served = setup.config.served_name or setup.config.model
        self.created = int(time.time())
        self.began = time.monotonic()
        self.counter_base: dict[str, float] = {}
        self._faults = setup.config.options.faults
        self._routes = dict(dialect.routes())
        self._wires: set[Wire] = set()
        self._open: set[Reply] = set()
        self._tasks: list[asyncio.Task[None]] = []
        vocabulary = Vocabulary(setup.shape.vocab, setup.shape.eos, setup.config.model)
        self.engine = Engine(setup, vocabulary)

    # --- what dialects ask

    @property
    def up_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def lists_models(self) -> bool:
        return self.up_s >= self._faults.models_after_s

    @property
    def generates(self) -> bool:
        return self.up_s >= self._faults.generate_after_s

    def own_config(self) -> dict[str, Any]:
        """Effective configuration of the reference model itself: what bears on results."""
        options = self.setup.config.options
        rules = self.setup.rules
        faults = {
            key: value
            for key in ("batch_dependent", "leak_blocks", "plant_token", "eos_share")
            if (value := getattr(options.faults, key))
        }
        return {
            "dialect": options.dialect,
            "unified_pool": self.setup.unified,
            "null_gap_fix": self.setup.null_gap_fix,
            "in_flight": rules.in_flight,
            "depth": rules.depth,
            "acceptance": rules.acceptance if rules.depth else None,
            "fast": self.setup.config.fast,
            "clock": msgspec.to_builtins(options.clock),
            **({"faults": faults} if faults else {}),
        }

    # --- life

    async def serve(self) -> int:
        """Serve until a signal; the exit code."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            if number == signal.SIGTERM and self._faults.ignore_sigterm:
                signal.signal(number, signal.SIG_IGN)
            else:
                loop.add_signal_handler(number, stop.set)
        config = self.setup.config
        if self._faults.bind_after_s:
            await asyncio.sleep(self._faults.bind_after_s)
        try:
            listener = await loop.create_server(
                lambda: Wire(self.handle, self._wires),
                config.host,
                config.port,
                backlog=BACKLOG,
                reuse_port=self._faults.reuse_port,
            )
        except OSError:
            told = self.dialect.bind_failed(self.setup)
            log(*told.lines)
            return told.exit_code
        log(*self.dialect.ready_lines(self.setup, os.getpid()))
        self._tasks = [loop.create_task(self._run_engine())]
        if self._faults.keepalive_s:
            self._tasks.append(loop.create_task(self._keep_alive(self._faults.keepalive_s)))
        if self._faults.flood_lines_per_s:
            self._tasks.append(loop.create_task(self._flood(self._faults.flood_lines_per_s)))
        await stop.wait()
        listener.close()
        self.engine.vitals.flush()
        for task in self._tasks:
            task.cancel()
        for wire in list(self._wires):
            wire.cut()
        return 0

    async def _run_engine(self) -> None:
        try:
            await self.engine.run()
        except asyncio.CancelledError:
            raise
        except Exception as err:
            import traceback

            traceback.print_exc()
            self.kill_engine(repr(err))

    def kill_engine(self, message: str) -> None:
        """The engine dies, the server answers on."""
        log(*self.dialect.dead_lines(message))
        self.engine.die(message)

    async def _keep_alive(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            for reply in self._open:
                if reply.ask.stream and reply.open:
                    reply.wire.chunk(b": keep-alive\n\n")

    async def _flood(self, lines_per_s: int) -> None:
        line = "DEBUG " + "reference model floods its log " * 6
        while True:
            await asyncio.sleep(0.05)
            log(*([line] * max(1, lines_per_s // 20)))

    # --- requests

    def handle(self, wire: Wire, request: Request) -> None:
        """Answer one request."""
        if request.method == "POST" and request.path in COMPLETIONS:
            self._generate(wire, request.body, COMPLETIONS[request.path])
            return
        if request.path == "/metrics" and self._faults.metrics != "ok":
            self._broken_metrics(wire)
            return
        route = self._routes.get((request.method, request.path)) or _OWN.get((request.method, request.path))
        answer: Answer = route(self) if route else (404, b'{"detail":"Not Found"}', JSON)
        if request.path == "/metrics" and self._faults.metrics_delay_s:
            asyncio.get_running_loop().call_later(self._faults.metrics_delay_s, wire.answer, *answer)
            return
        wire.answer(*answer)

    def _generate(self, wire: Wire, body: bytes, chat: bool) -> None:
        vitals = self.engine.vitals
        number = vitals.arrived()
        faults = self._faults
        try:
            if faults.always_500 or not self.generates:
                raise ApiError("not ready", 500)
            if self.engine.dead is not None:
                vitals.left()
                wire.answer(*self.dialect.engine_dead(self, self.engine.dead))
                return
            ask = api.read(body, chat=chat, vocabulary=self.engine.vocabulary, default_model=self.served)
            self._check(ask)
        except ApiError as err:
            vitals.left()
            wire.answer(*self.dialect.error(err, self))
            return
        if faults.restart_counters_at_request == number:
            from evenhand.engines.reference.dialects.vllm import counters

            self.counter_base = counters(self)
        wire.split_bytes = faults.split_bytes
        frame = self.dialect.frame(ask, number, int(time.time()), ask.model, self)
        reply = self._reply(wire, ask, frame, number)
        self._open.add(reply)
        reply.start()
        reply.seq = self.engine.submit(ask, f"r{number}", reply)

    def _check(self, ask: api.Ask) -> None:
        context = self.dialect.longest(self.setup)
        if not self.dialect.any_model and ask.model != self.served:
            raise ApiError("model", 404, asked=ask.model, served=self.served)
        if ask.max_tokens < 1:
            raise ApiError("body", 400, why=f"max_tokens must be at least 1, got {ask.max_tokens}")
        facts = {"prompt": len(ask.prompt), "wanted": ask.max_tokens, "context": context}
        if not self.dialect.checks_length:
            if len(ask.prompt) > context:
                self.kill_engine("EngineCore busy loop threw: cannot create std::vector larger than max_size()")
                raise ApiError("dead", 500)
            return
        if len(ask.prompt) > context:
            raise ApiError("too long", 400, **facts)
        if len(ask.prompt) + ask.max_tokens > context:
            raise ApiError("max tokens", 400, **facts)

    def _reply(self, wire: Wire, ask: api.Ask, frame: Any, number: int) -> Reply:
        act = self._fault_of(number)
        if act is None:
            return Reply(wire, self.engine, ask, frame, self._done)
        return FaultyReply(wire, self.engine, ask, frame, self._done, self._faults.after_tokens, act)

    def _done(self, reply: Reply) -> None:
        self.engine.vitals.left()
        self._open.discard(reply)

    def _fault_of(self, number: int) -> Any:
        """What happens to this request, if anything."""
        faults = self._faults

        def meant(at: int | None) -> bool:
            return at is not None and at in (0, number)

        if meant(faults.die_at_request):
            return self._die
        if meant(faults.engine_dies_at_request):
            return self._engine_dies
        if meant(faults.stall_at_request):
            return FaultyReply.stall
        if meant(faults.error_at_request):
            return FaultyReply.error
        if meant(faults.truncate_at_request):
            return FaultyReply.truncate
        if meant(faults.reset_at_request):
            return FaultyReply.reset
        return None

    def _die(self, reply: FaultyReply) -> bool:
        self.engine.vitals.flush()
        if self._faults.die_signal:
            os.kill(os.getpid(), self._faults.die_signal)
        os._exit(1)

    def _engine_dies(self, reply: FaultyReply) -> bool:
        asyncio.get_running_loop().call_soon(self.kill_engine, "EngineCore busy loop threw: told to die")
        return True

    def _broken_metrics(self, wire: Wire) -> None:
        kind = self._faults.metrics
        if kind == "never":
            return
        if kind == "absent":
            wire.answer(404, b'{"detail":"Not Found"}')
        elif kind == "denied":
            wire.answer(401, b'{"error":"Unauthorized"}')
        elif kind == "junk":
            wire.answer(200, b"<html>\x00\xff\x1b[31mnot an exposition {{{ 1 2 3\n", TEXT)
        else:
            route = self._routes.get(("GET", "/metrics"))
            body = route(self)[1] if route else b""
            if kind == "nan":
                lines = [line if line.startswith(b"#") else line.rsplit(b" ", 1)[0] + b" NaN" for line in body.splitlines()]
                body = b"\n".join(lines) + b"\n"
            elif kind == "huge":
                filler = b'evenhand_filler{n="%07d"} 1.0\n'
                body += b"".join(filler % n for n in range(HUGE_BYTES // len(filler % 0)))
            elif kind == "truncated":
                body = body[: len(body) * 2 // 3]
            wire.answer(200, body, TEXT)


def _state(server: Server) -> Answer:
    return 200, msgspec.json.encode(server.engine.vitals.report()), JSON


def _config(server: Server) -> Answer:
    return 200, msgspec.json.encode(server.own_config()), JSON


def _reset_peaks(server: Server) -> Answer:
    server.engine.vitals.reset_peaks()
    return 200, b"{}", JSON


_OWN = {
    ("GET", "/evenhand/state"): _state,
    ("GET", "/evenhand/config"): _config,
    ("POST", "/evenhand/reset_peaks"): _reset_peaks,
}
