"""HTTP/1.1 on asyncio: httptools parses, responses are written as bytes.

Why no framework: uvicorn's raw ASGI, measured on this protocol's own traffic (512 streams), costs 14 µs of CPU an event, this
writer 7 µs, and the scheduler shares the core with it; and faults need the transport (cut connections, split writes).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import httptools
import msgspec

MAX_BODY_BYTES = 64 << 20
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: evenhand-reference\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


class Request(msgspec.Struct):
    """One request as it came."""

    method: str
    path: str
    body: bytes


class Wire(asyncio.Protocol):
    """One connection; requests are answered one after the other."""

    def __init__(self, handle: Callable[[Wire, Request], None], open_wires: set[Wire]) -> None:
        self._handle = handle
        self._wires = open_wires
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._parts: list[bytes] = []
        self._size = 0
        self._expects = False
        self.transport: asyncio.Transport | None = None
        self.gone: Callable[[], None] | None = None
        """Called when the client goes away while it is being answered."""
        self.split_bytes: int | None = None
        self._next_write = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._wires.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wires.discard(self)
        self.transport = None
        if self.gone is not None:
            gone, self.gone = self.gone, None
            gone()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.answer(400, b'{"error":"bad request"}')
            self.cut()

    def on_message_begin(self) -> None:
        self._url, self._parts, self._size, self._expects = b"", [], 0, False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"expect":
            self._expects = True

    def on_headers_complete(self) -> None:
        if self._expects:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= MAX_BODY_BYTES:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._size > MAX_BODY_BYTES:
            self.answer(413, b'{"error":"body too large"}')
            return
        path = self._url.split(b"?", 1)[0].decode("latin-1")
        self._handle(self, Request(self._parser.get_method().decode("latin-1"), path, b"".join(self._parts)))

    # --- answering

    def write(self, data: bytes) -> None:
        if self.transport is None:
            return
        if self.split_bytes:
            self._write_split(data)
        else:
            self.transport.write(data)

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        """A whole response."""
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = "Unknown"
        self.write(
            f"HTTP/1.1 {status} {phrase}\r\nserver: evenhand-reference\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )

    def begin_stream(self) -> None:
        self.write(STREAM_HEAD)

    def chunk(self, data: bytes) -> None:
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self, data: bytes = b"") -> None:
        """The last chunk, behind `data` that is framed already."""
        self.gone = None
        self.write(data + LAST_CHUNK)

    def cut(self) -> None:
        """Close without saying why."""
        if self.transport is not None:
            self.transport.abort()

    def _write_split(self, data: bytes) -> None:
        """In pieces, later pieces later: whoever reads gets them apart."""
        loop = asyncio.get_running_loop()
        size = self.split_bytes or len(data)
        now = max(loop.time(), self._next_write)
        for index in range(0, len(data), size):
            loop.call_at(now, self._late, data[index : index + size])
            now += 0.002
        self._next_write = now

    def _late(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)
