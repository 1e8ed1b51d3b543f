"""Pure: a finished exchange (raw reads and stamps) and a dialect -> one RequestRow. The definitions of time live here."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import httptools

from evenhand.boot.environment import redact
from evenhand.drive.clock import Step, to_monotonic
from evenhand.drive.spill import Exchange, Head
from evenhand.drive.sse import Splitter
from evenhand.engines.base import Chunk, Dialect
from evenhand.records import RequestRow

NOT_ANSWERS = frozenset({"abort", "error"})
"""finish_reasons with which engines end a request that they did not answer."""

_EXCERPT = 2000


class Read(NamedTuple):
    """One read: when the client had it, when the kernel had it (None: no usable stamp), and its bytes."""

    own_ns: int
    kernel_ns: int | None
    data: bytes


class Decoded(NamedTuple):
    """A row, and what the cell's Lag is made of."""

    row: RequestRow
    lag_ns: list[int]
    """own - kernel per read that has a kernel stamp"""
    reads: int
    events: int
    coalesced: int
    last_ns: int | None
    """Stamp of the message's last byte, for turn-around; None unless the message was complete."""
    first_on_slot: bool


def reads_of(exchange: Exchange) -> tuple[list[Read], bool]:
    """Reads with kernel stamps on the monotonic line, and whether a clock step touched any of them."""
    own = array("q", exchange.own)
    kernel = array("q", exchange.kernel)
    sizes = array("I", exchange.sizes)
    steps = [Step(*step) for step in exchange.steps]
    reads: list[Read] = []
    touched = False
    start = 0
    for number, size in enumerate(sizes):
        real = kernel[2 * number] * 1_000_000_000 + kernel[2 * number + 1]
        at = to_monotonic(real, own[number], exchange.offset_ns, steps) if real else None
        touched |= bool(real) and at is None
        reads.append(Read(own[number], at, exchange.data[start : start + size]))
        start += size
    return reads, touched


class _Body:
    """Collects status, content type and body pieces of the response, read by read."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.pieces: list[bytes] = []
        self.status: int | None = None
        self.event_stream = False
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.event_stream = value.lower().startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        self.complete = self.status is not None and self.status >= 200


class Event(NamedTuple):
    """One payload and the read that completed it."""

    payload: bytes
    at_ns: int
    read: int
    coalesced: bool


class Stream(NamedTuple):
    """A response taken apart."""

    status: int | None
    events: list[Event]
    body: bytes
    """Only of answers that are not an event stream."""
    comments: int
    error: str | None
    first_ns: int | None


def take_apart(reads: Sequence[Read], complete: bool) -> Stream:
    """HTTP and SSE framing of the reads. `complete`: the message came to its clean end."""
    body, splitter = _Body(), Splitter()
    events: list[Event] = []
    plain: list[bytes] = []
    error: str | None = None
    for number, read in enumerate(reads):
        try:
            body.parser.feed_data(read.data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as problem:
            if not body.complete:
                error = f"malformed HTTP: {str(problem) or type(problem).__name__}"
        at = read.own_ns if read.kernel_ns is None else read.kernel_ns
        if body.pieces:
            piece = b"".join(body.pieces)
            body.pieces.clear()
            if body.status == 200:
                found = splitter.feed(piece)
                last = len(found) - 1
                for place, payload in enumerate(found):
                    events.append(Event(payload, at, number, place < last or splitter.pending))
            if not body.event_stream and sum(map(len, plain)) < 65536:
                plain.append(piece)
        if error is not None:
            break
    if complete and reads and body.status == 200:
        at = reads[-1].own_ns if reads[-1].kernel_ns is None else reads[-1].kernel_ns
        events += [Event(payload, at, len(reads) - 1, False) for payload in splitter.close()]
    first = (reads[0].own_ns if reads[0].kernel_ns is None else reads[0].kernel_ns) if reads else None
    return Stream(body.status, events, b"".join(plain), splitter.comments, error, first)


class _Tally:
    """What the chunks of one answer add up to."""

    def __init__(self) -> None:
        self.at: list[int] = []
        self.tokens: list[int] = []
        self.coalesced: list[int] = []
        self.reads: list[int] = []
        self.ids: list[int] = []
        self.has_ids = False
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.margins: list[float | None] = []
        self.first_answer_ns: int | None = None
        self.finish: str | None = None
        self.usage: int | None = None
        self.prompt: int | None = None
        self.cached: int | None = None
        self.accepted: int | None = None
        self.done = False
        self.chunks = 0
        self.error: Chunk | None = None
        self.malformed: str | None = None

    def add(self, chunk: Chunk, event: Event) -> None:
        if chunk.done:
            self.done = True
            return
        self.chunks += 1
        if chunk.malformed is not None:
            self.malformed = self.malformed or chunk.malformed
            return
        if chunk.error is not None:
            self.error = self.error or chunk
            return
        if chunk.ids is not None:
            self.has_ids = True
        carries = bool(chunk.ids) if chunk.ids is not None else bool(chunk.text or chunk.reasoning or chunk.tool)
        if carries:
            if event.coalesced:
                self.coalesced.append(len(self.at))
            self.at.append(event.at_ns)
            self.reads.append(event.read)
            self.tokens.append(len(chunk.ids) if chunk.ids is not None else 1)
            unlabelled = chunk.ids and not (chunk.reasoning or chunk.tool or self.reasoning)
            if self.first_answer_ns is None and (chunk.text or unlabelled):
                self.first_answer_ns = event.at_ns
        if chunk.ids:
            self.ids.extend(chunk.ids)
        if chunk.text:
            self.text.append(chunk.text)
        if chunk.reasoning:
            self.reasoning.append(chunk.reasoning)
        for best in chunk.top_logprobs:
            self.margins.append(best[0] - best[1] if len(best) > 1 else None)
        self.finish = chunk.finish_reason or self.finish
        self.usage = chunk.output_tokens if chunk.output_tokens is not None else self.usage
        self.prompt = chunk.prompt_tokens if chunk.prompt_tokens is not None else self.prompt
        self.cached = chunk.cached_tokens if chunk.cached_tokens is not None else self.cached
        self.accepted = chunk.accepted_tokens if chunk.accepted_tokens is not None else self.accepted


def _failure(exchange: Exchange, stream: Stream, tally: _Tally) -> str | None:
    """Why the request did not succeed, the most telling reason first; None when it did."""
    if tally.error is not None:
        return f"error in stream: {tally.error.error}"
    if stream.status is not None and stream.status != 200:
        return f"HTTP {stream.status}"
    if exchange.interrupted:
        return exchange.reason or "interrupted"
    if exchange.reason is not None:
        return exchange.reason
    if stream.error is not None:
        return stream.error
    if tally.malformed is not None:
        return f"malformed event: {tally.malformed}"
    if tally.finish is None and not tally.done:
        if stream.body and not stream.events:
            return "no event stream in a 200 answer"
        return "truncated stream: no finish_reason and no [DONE]"
    if not exchange.complete:
        return "truncated stream: the connection closed before the message ended"
    if tally.finish in NOT_ANSWERS:
        return f"the engine gave the request up (finish_reason {tally.finish})"
    if not tally.at and (tally.finish is None or tally.usage is None):
        return "no token received"
    if tally.has_ids and tally.usage is not None and tally.usage != len(tally.ids):
        return f"token count disagrees: {len(tally.ids)} ids, usage says {tally.usage}"
    return None


def _tpot(tally: _Tally, output_tokens: int | None) -> tuple[float | None, str | None]:
    """(last - first token event) / tokens after the first event, in seconds; or None and the reason."""
    if len(tally.at) < 2:
        return None, "fewer than two token events"
    if tally.reads[0] == tally.reads[-1]:
        return None, "all token events came in one read"
    if output_tokens is None:
        return None, "no token count"
    after = output_tokens - (tally.tokens[0] if tally.has_ids else 1)
    if after < 1:
        return None, "no token after the first event"
    return (tally.at[-1] - tally.at[0]) / after / 1e9, None


def decode(head: Head, exchange: Exchange, dialect: Dialect) -> Decoded:
    """One exchange -> its row. Never raises on what a server sent."""
    reads, touched = reads_of(exchange)
    stream = take_apart(reads, exchange.complete)
    tally = _Tally()
    for event in stream.events:
        tally.add(_chunk(dialect, event.payload), event)
    error_code, error_text = _error(stream, tally, dialect)
    reason = _failure(exchange, stream, tally)
    if reason is not None:  # an engine may quote its own keys
        reason, error_text = redact(reason), None if error_text is None else redact(error_text)
    outcome: Literal["ok", "failed", "interrupted"] = (
        "ok" if reason is None else "interrupted" if exchange.interrupted and tally.error is None else "failed"
    )
    ok = reason is None
    send = exchange.send_ns
    source: Literal["ids", "usage", "none"] = "ids" if tally.has_ids else "usage" if tally.usage is not None else "none"
    output_tokens = len(tally.ids) if tally.has_ids else tally.usage
    ttft: float | None = None
    tpot: float | None = None
    if not ok:
        tpot_reason: str | None = "the request failed" if outcome == "failed" else "the request was interrupted"
    elif touched:
        tpot_reason = "the real-time clock was set during the request"
    else:
        tpot, tpot_reason = _tpot(tally, output_tokens)
        ttft = (tally.at[0] - send) / 1e9 if tally.at and send is not None else None
    lag = [read.own_ns - read.kernel_ns for read in reads if read.kernel_ns is not None]
    stamped = bool(reads) and len(lag) == len(reads)
    last = _stamp(reads[-1]) if reads else None
    row = RequestRow(
        leg=head.leg,
        arm=head.arm,
        cell=head.cell,
        repeat=head.repeat,
        index=exchange.index,
        key=exchange.key,
        prompt_sha256=exchange.prompt_sha256,
        prompt_tokens_asked=exchange.prompt_tokens_asked,
        outcome=outcome,
        reason=reason,
        error_code=error_code,
        error_text=error_text,
        http_status=stream.status,
        stamp="kernel" if stamped else "user",
        slot=exchange.slot,
        scheduled_ns=exchange.scheduled_ns,
        send_ns=send,
        first_token_ns=tally.at[0] if tally.at else None,
        first_answer_ns=tally.first_answer_ns,
        last_token_ns=tally.at[-1] if tally.at else None,
        end_ns=last if exchange.complete and last is not None else exchange.end_ns or last,
        ttft_s=ttft,
        ttft_kind=("first token" if tally.has_ids else "first text") if tally.at else None,
        tpot_s=tpot,
        tpot_reason=tpot_reason,
        tpot_marked=tpot is not None and not tally.has_ids,
        gaps_kind=_gaps_kind(tally),
        event_ns=[at - send for at in tally.at] if send is not None else [],
        event_tokens=tally.tokens,
        event_coalesced=tally.coalesced,
        token_ids=tally.ids if tally.has_ids else None,
        text="".join(tally.text),
        reasoning="".join(tally.reasoning),
        finish_reason=tally.finish,
        output_tokens=output_tokens if ok else None,
        token_source=source,
        prompt_tokens=tally.prompt,
        cached_tokens=tally.cached,
        accepted_tokens=tally.accepted,
        chunks=tally.chunks,
        keepalive_comments=stream.comments,
        lag_max_s=max(lag) / 1e9 if lag else None,
        sampling=head.sampling,
        top2_margin_nats=tally.margins or None,
    )
    return Decoded(
        row,
        lag,
        len(reads),
        len(stream.events),
        sum(event.coalesced for event in stream.events),
        last if exchange.complete else None,
        exchange.first_on_slot,
    )


def _stamp(read: Read) -> int:
    return read.own_ns if read.kernel_ns is None else read.kernel_ns


def _gaps_kind(tally: _Tally) -> Literal["itl", "icl"] | None:
    if len(tally.at) < 2:
        return None
    return "itl" if tally.has_ids and all(count == 1 for count in tally.tokens) else "icl"


def _chunk(dialect: Dialect, payload: bytes) -> Chunk:
    try:
        return dialect.decode(payload)
    except Exception as error:  # a third party's adapter may break the promise; the row says so
        return Chunk(malformed=f"{type(error).__name__}: {error}")


def _error(stream: Stream, tally: _Tally, dialect: Dialect) -> tuple[int | None, str | None]:
    """Code and text of the engine's own error, from the stream or from the body of an error answer."""
    if tally.error is not None:
        return tally.error.error_code, tally.error.error
    if stream.status is None or stream.status == 200:
        return None, None
    chunk = _chunk(dialect, stream.body)
    if chunk.error is not None:
        return chunk.error_code if chunk.error_code is not None else stream.status, chunk.error
    return stream.status, stream.body[:_EXCERPT].decode("utf-8", "replace") or None


def decode_all(head: Head, exchanges: Iterable[Exchange], dialect: Dialect) -> list[Decoded]:
    """Every exchange of a file."""
    return [decode(head, exchange, dialect) for exchange in exchanges]


def sampling_dict(body: dict[str, object]) -> dict[str, object]:
    """The sampling parameters of a request body as they stand in it (everything but prompt, model and stream options)."""
    hidden = {"prompt", "messages", "model", "input_ids", "text"}
    return {name: value for name, value in body.items() if name not in hidden}
