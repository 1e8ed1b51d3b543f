"""One request's answer: tokens in, server-sent events (or one JSON body) out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from evenhand.engines.reference.vocabulary import Detokenizer

if TYPE_CHECKING:
    from evenhand.engines.reference.api import Ask
    from evenhand.engines.reference.dialects.base import Frame
    from evenhand.engines.reference.engine import Engine
    from evenhand.engines.reference.sequences import Seq
    from evenhand.engines.reference.wire import Wire

_encode = msgspec.json.encode


class Reply:
    """Where the engine puts a request's tokens."""

    def __init__(self, wire: Wire, engine: Engine, ask: Ask, frame: Frame, done: Callable[[Reply], None]) -> None:
        self.wire = wire
        self.engine = engine
        self.ask = ask
        self.frame = frame
        self.seq: Seq | None = None
        self._done = done
        self._text = Detokenizer(engine.vocabulary)
        self._whole: list[bytes] = []
        self._ids: list[int] = []
        self._logprobs: list[bytes] = []
        self._offset = 0
        self.open = True
        wire.gone = self._gone

    def start(self) -> None:
        """Headers, and the event that carries no token where the dialect begins with one."""
        if self.ask.stream:
            self.wire.begin_stream()
            head = self.frame.head()
            if head:
                self.wire.chunk(head)

    def push(self, ids: list[int], finish: str | None) -> None:
        """Tokens of one step."""
        if not self.open:
            return
        text = self._text.escaped(ids, finish is not None)
        logprobs = self._make_logprobs(ids) if self.ask.logprobs else None
        if self.ask.stream:
            usage = self._usage() if self.ask.usage_each else None
            data = self.frame.event(text, ids if self.ask.ids else None, finish, usage, logprobs)
            if finish is None:
                self.wire.write(b"%x\r\n%b\r\n" % (len(data), data))
            else:
                self._end(data)
            return
        self._whole.append(text)
        self._ids += ids
        if logprobs is not None:
            self._logprobs.append(logprobs)
        if finish is not None:
            self._close()
            merged = self.frame.merge_logprobs(self._logprobs) if self._logprobs else None
            body = self.frame.whole(b"".join(self._whole), self._ids if self.ask.ids else None, finish, self._usage(), merged)
            self.wire.gone = None
            self.wire.answer(200, body)

    def _end(self, data: bytes) -> None:
        self._close()
        if self.ask.usage:
            tail = self.frame.usage_event(self._usage())
            data = b"%x\r\n%b\r\n%x\r\n%b\r\n" % (len(data), data, len(tail), tail)
        else:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self.wire.end_stream(data + b"e\r\ndata: [DONE]\n\n\r\n")

    def fail(self, message: str) -> None:
        """The engine gave the request up."""
        if not self.open:
            return
        self._close()
        if self.ask.stream:
            self.wire.chunk(b"data: " + self.frame.error(message) + b"\n\n")
            self.wire.chunk(b"data: [DONE]\n\n")
            self.wire.end_stream()
        else:
            self.wire.gone = None
            self.wire.answer(500, self.frame.error(message))

    def _close(self) -> None:
        self.open = False
        self._done(self)

    def _gone(self) -> None:
        if self.open:
            self._close()
            if self.seq is not None:
                self.engine.abort(self.seq)

    def _usage(self) -> bytes:
        seq = self.seq
        assert seq is not None
        return self.frame.usage(len(seq.prompt), len(seq.output), seq.cached_first or 0)

    def _make_logprobs(self, ids: list[int]) -> bytes:
        seq = self.seq
        assert seq is not None
        first = len(seq.output) - len(ids)
        rows = []
        vocabulary, stream = self.engine.vocabulary, seq.stream
        for offset, token in enumerate(ids):
            best = stream.top(first + offset)
            other = stream.neighbour(token)
            rows.append(
                (
                    vocabulary.bytes_of(token).decode("utf-8", "replace"),
                    best,
                    vocabulary.bytes_of(other).decode("utf-8", "replace"),
                    best - stream.margin(first + offset),
                )
            )
        made = self.frame.logprobs(rows, self.ask.logprobs, self._offset)
        self._offset += sum(len(row[0]) for row in rows)
        return made


class FaultyReply(Reply):
    """An answer that goes wrong after some tokens."""

    def __init__(
        self,
        wire: Wire,
        engine: Engine,
        ask: Ask,
        frame: Frame,
        done: Callable[[Reply], None],
        after: int,
        act: Callable[[FaultyReply], bool],
    ) -> None:
        super().__init__(wire, engine, ask, frame, done)
        self._after = after
        self._act = act
        self._acted = False

    def push(self, ids: list[int], finish: str | None) -> None:
        seq = self.seq
        if self._acted or seq is None:
            return
        if len(seq.output) - len(ids) >= self._after:
            self._acted = True
            if self._act(self):
                return
            self._acted = False
            self._after = 1 << 60
        super().push(ids, finish)

    def stall(self) -> bool:
        """Say nothing more; the socket stays open."""
        return True

    def error(self) -> bool:
        """An error object inside the stream."""
        self._give_up()
        self.fail("engine stopped")
        return True

    def truncate(self) -> bool:
        """A clean end without finish_reason."""
        self._give_up()
        self._close()
        self.wire.end_stream()
        return True

    def reset(self) -> bool:
        """A cut connection."""
        self._give_up()
        self._close()
        self.wire.gone = None
        self.wire.cut()
        return True

    def _give_up(self) -> None:
        if self.seq is not None:
            seq = self.seq
            asyncio.get_running_loop().call_soon(self.engine.abort, seq)
