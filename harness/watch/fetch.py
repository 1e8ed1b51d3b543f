"""One HTTP GET on a raw kept-alive socket, stamped: the sampler's process must start fast and stay small."""

from __future__ import annotations

import contextlib
import select
import socket
import time
import zlib
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

MAX_BODY_BYTES = 64 << 20
MAX_HEAD_BYTES = 64 << 10
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)


class Reply(NamedTuple):
    """One answer. Stamps are monotonic ns; `error` says why there is no whole body ("timeout", "truncated", ...)."""

    start_ns: int
    first_byte_ns: int | None
    end_ns: int
    code: int | None
    content_type: str
    body: bytes
    error: str | None


class Parser:
    """Incremental reader of one HTTP/1.x response; correct for every way of cutting it into reads."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.error: str | None = None
        self.done = False
        self.keep = False
        self._raw = bytearray()
        self._left: int | None = None  # bytes still missing of the body, or of the chunk being read; None: until end of file
        self._state = "head"

    def feed(self, data: bytes) -> bool:
        """Take bytes; True once the response is complete or broken (then `error`)."""
        self._raw += data
        while not self.done and self._step():
            pass
        return self.done

    def eof(self) -> None:
        """The peer closed."""
        if not self.done:
            self.done, self.keep = True, False
            if self._state != "body" or self._left is not None:
                self.error = "truncated" if self._state != "head" else "closed without an answer"

    def text(self) -> bytes:
        """The body, inflated where the server compressed it unasked."""
        if self.headers.get("content-encoding", "") in ("gzip", "deflate"):
            inflate = zlib.decompressobj(47)  # gzip or zlib, by its header
            try:
                body = inflate.decompress(self.body, MAX_BODY_BYTES)
            except zlib.error:
                self.error = "junk (bad compression)"
                return b""
            self.error = None if inflate.eof else "truncated"
            return body
        return bytes(self.body)

    def _fail(self, why: str) -> bool:
        self.error, self.done, self.keep = why, True, False
        return False

    def _step(self) -> bool:
        """Consume one element of what lies in `_raw`; False when more bytes are needed."""
        if self._state == "head":
            return self._head()
        if self._state == "body":
            take = len(self._raw) if self._left is None else min(self._left, len(self._raw))
            self.body += memoryview(self._raw)[:take]
            del self._raw[:take]
            if len(self.body) > MAX_BODY_BYTES:
                return self._fail("too large")
            if self._left is not None:
                self._left -= take
                self.done = self._left == 0
            return False
        if self._state == "chunk":
            assert self._left is not None
            take = min(self._left, len(self._raw))
            self.body += memoryview(self._raw)[:take]
            del self._raw[:take]
            self._left -= take
            if len(self.body) > MAX_BODY_BYTES:
                return self._fail("too large")
            if self._left or len(self._raw) < 2:
                return False
            if self._raw[:2] != b"\r\n":
                return self._fail("junk (bad chunk)")
            del self._raw[:2]
            self._state = "size"
            return True
        end = self._raw.find(b"\r\n")
        if end < 0:
            return self._fail("junk (bad chunk)") if len(self._raw) > MAX_HEAD_BYTES else False
        line = bytes(self._raw[:end])
        del self._raw[: end + 2]
        if self._state == "trailer":
            self.done = not line
            return not self.done
        try:
            self._left = int(line.split(b";", 1)[0].strip() or b"-", 16)
        except ValueError:
            return self._fail("junk (bad chunk)")
        if self._left < 0:
            return self._fail("junk (bad chunk)")
        self._state = "chunk" if self._left else "trailer"
        return True

    def _head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            if len(self._raw) > MAX_HEAD_BYTES or (self._raw and not b"HTTP/1.".startswith(self._raw[:7])):
                return self._fail("junk (not HTTP)")
            return False
        lines = bytes(self._raw[:end]).decode("latin-1").split("\r\n")
        del self._raw[: end + 4]
        words = lines[0].split(None, 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not (words[1].isascii() and words[1].isdigit()):
            return self._fail("junk (not HTTP)")
        code = int(words[1])
        if 100 <= code < 200:
            return True
        self.code = code
        self.headers = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
        connection = self.headers.get("connection", "").lower()
        self.keep = "close" not in connection and (words[0] != "HTTP/1.0" or "keep-alive" in connection)
        if code in (204, 304):
            self.done = True
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._state = "size"
        elif (length := self.headers.get("content-length")) is not None:
            if not (length.isascii() and length.isdigit()):
                return self._fail("junk (bad content-length)")
            self._state, self._left = "body", int(length)
            if self._left > MAX_BODY_BYTES:
                return self._fail("too large")
            self.done = self._left == 0
        else:
            self._state, self._left, self.keep = "body", None, False
        return not self.done


class Fetcher:
    """GET one URL again and again, never two at a time. Not thread-safe."""

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http URL")
        self._address = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        self._tls = parts.scheme == "https"
        self._timeout_s = timeout_s
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._host = parts.netloc.rpartition("@")[2]
        self._sock: socket.socket | ssl.SSLSocket | None = None
        self.key: str | None = None

    def close(self) -> None:
        """Drop the connection."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _connect(self) -> None:
        sock = socket.create_connection(self._address, timeout=self._timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls:
            import ssl

            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=self._address[0])
        self._sock = sock

    def _request(self) -> bytes:
        lines = [
            f"GET {self._target} HTTP/1.1",
            f"Host: {self._host}",
            "Accept: text/plain;version=0.0.4",
            "User-Agent: evenhand",
        ]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")

    def get(self, stop_fd: int | None = None) -> Reply:
        """One request. Gives up at the timeout, or at once (error "stopped") when `stop_fd` becomes readable."""
        start_ns = time.monotonic_ns()
        reused = self._sock is not None
        reply = self._once(start_ns, stop_fd)
        if reused and reply.code is None and reply.first_byte_ns is None and reply.error == "closed without an answer":
            # the server dropped an idle connection as we wrote: that is no answer to this request
            reply = self._once(time.monotonic_ns(), stop_fd)
        return reply

    def _once(self, start_ns: int, stop_fd: int | None) -> Reply:
        parser, first_ns = Parser(), None
        deadline_ns = start_ns + int(self._timeout_s * 1e9)
        try:
            if self._sock is None:
                self._connect()
            assert self._sock is not None
            self._sock.settimeout(self._timeout_s)
            try:
                self._sock.sendall(self._request())
            except (BrokenPipeError, ConnectionResetError):
                parser.eof()
            self._sock.setblocking(False)
            while not parser.done:
                data = self._read(deadline_ns, stop_fd)
                first_ns = first_ns or (time.monotonic_ns() if data else None)
                if data:
                    parser.feed(data)
                else:
                    parser.eof()
        except _Stopped:
            parser.error, parser.keep = "stopped", False
        except TimeoutError:
            parser.error, parser.keep = "timeout", False
        except ConnectionRefusedError:
            parser.error, parser.keep = "refused", False
        except OSError as error:
            parser.error, parser.keep = f"failed ({error.strerror or type(error).__name__})", False
        end_ns = time.monotonic_ns()
        if not parser.keep:
            self.close()
        body = parser.text() if parser.error is None else bytes(parser.body)
        return Reply(start_ns, first_ns, end_ns, parser.code, parser.headers.get("content-type", ""), body, parser.error)

    def _read(self, deadline_ns: int, stop_fd: int | None) -> bytes:
        """Next bytes; b"" at end of file. Raises TimeoutError, _Stopped, OSError."""
        assert self._sock is not None
        while True:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                return self._recv()
            left_s = (deadline_ns - time.monotonic_ns()) / 1e9
            if left_s <= 0:
                raise TimeoutError
            fds: list[socket.socket | int] = [self._sock] if stop_fd is None else [self._sock, stop_fd]
            ready, _, _ = select.select(fds, [], [], left_s)
            if stop_fd in ready and self._sock not in ready:
                raise _Stopped

    def _recv(self) -> bytes:
        assert self._sock is not None
        if _QUICKACK is not None:
            # else a server that writes head and body apart waits 40 ms for our delayed acknowledgement; Linux forgets it
            self._sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
        if self._tls:
            import ssl

            try:
                return self._sock.recv(262144)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None
        try:
            return self._sock.recv(262144)
        except ConnectionResetError:
            return b""


class _Stopped(Exception):
    pass
