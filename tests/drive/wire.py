"""Streams written by hand: events with their arrival times -> an Exchange, as the client would have stored it."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

from evenhand.drive.decode import decode
from evenhand.drive.spill import Exchange, Head
from evenhand.engines.openai import OpenAIDialect
from evenhand.records import RequestRow

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
SEND_NS = 1_000_000_000
OFFSET_NS = 1_700_000_000_000_000_000
CELL = Head(leg=0, arm="a", cell="ladder/c=1", sampling={"temperature": 0.0})


def chunk(data: bytes) -> bytes:
    """One chunk of chunked framing."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(payload: Any) -> bytes:
    """One SSE event; anything but bytes and str is written as JSON."""
    if not isinstance(payload, (bytes, str)):
        payload = json.dumps(payload)
    data = payload.encode() if isinstance(payload, str) else payload
    return b"data: " + data + b"\n\n"


def exchange(
    reads: Sequence[tuple[float, bytes]], *, complete: bool = True, reason: str | None = None, lag_s: float = 0.0, **fields: Any
) -> Exchange:
    """Reads at seconds after the send; the kernel's stamps, and our own `lag_s` later."""
    kernel = [SEND_NS + OFFSET_NS + round(at * 1e9) for at, _ in reads]
    base: dict[str, Any] = {
        "index": 0,
        "key": "ladder/c=1#0",
        "prompt_sha256": "0" * 64,
        "prompt_tokens_asked": 5,
        "send_ns": SEND_NS,
        "end_ns": SEND_NS + round(reads[-1][0] * 1e9) if reads else SEND_NS,
        "complete": complete,
        "reason": reason,
        "offset_ns": OFFSET_NS,
    }
    return Exchange(
        **{**base, **fields},
        own=array("q", [stamp - OFFSET_NS + round(lag_s * 1e9) for stamp in kernel]).tobytes(),
        kernel=array("q", [part for stamp in kernel for part in divmod(stamp, 1_000_000_000)]).tobytes(),
        sizes=array("I", [len(data) for _, data in reads]).tobytes(),
        data=b"".join(data for _, data in reads),
    )


def stream(events: Sequence[tuple[float, bytes]], *, end: bytes = LAST) -> list[tuple[float, bytes]]:
    """Body pieces in chunked framing, the head with the first, the last chunk after the last."""
    reads = [(at, chunk(data)) for at, data in events]
    first, last = reads[0], reads[-1]
    reads[0] = (first[0], HEAD + first[1])
    reads.append((last[0], end))
    return [read for read in reads if read[1]]


def row(reads: Sequence[tuple[float, bytes]], **fields: Any) -> RequestRow:
    """Decode what was read."""
    return decode(CELL, exchange(reads, **fields), OpenAIDialect(returns_ids=True)).row


def answer(events: Sequence[tuple[float, Any]], **fields: Any) -> RequestRow:
    """Decode payloads at their times, one event per read; raw bytes starting with ':' are comments."""
    pieces = [(at, data if isinstance(data, bytes) else event(data)) for at, data in events]
    return row(stream(pieces), **fields)


def text(content: str, finish: str | None = None, **choice: Any) -> dict[str, Any]:
    """A completions chunk."""
    return {"choices": [{"index": 0, "text": content, "finish_reason": finish, **choice}]}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chat chunk."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """A usage chunk."""
    return {
        "choices": [],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    }
