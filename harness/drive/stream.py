"""The measured HTTP client: one connection on kernel stamps.

A `Link` owns a non-blocking socket with SO_TIMESTAMPNS, sends pre-encoded requests and keeps what recvmsg gives: own stamp,
kernel stamp, bytes. It finds the end of the message and nothing else; `decode` reads the rest when the rung is over. A link
knows no policy: it tells its owner when it is ready, when an exchange is over, and when it could not connect.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

from evenhand.drive.ends import MessageEnd
from evenhand.drive.spill import Exchange

SO_TIMESTAMPNS = 35
"""Linux's number on every architecture Python runs engines on; the control message has the same one."""

IN, OUT, ERR, HUP = 1, 4, 8, 16
"""epoll's and poll's event bits (equal on Linux)."""

READ_BYTES = 16384
ANCILLARY_BYTES = 64
NO_STAMP = bytes(16)
"""In place of a kernel stamp where a read came without one."""

State = Literal["down", "connecting", "handshake", "idle", "sending", "waiting"]


class Target(NamedTuple):
    """Where requests go, resolved once, never through a proxy."""

    family: int
    address: Any
    host_header: str
    prefix: str
    """Path of the base URL, without a trailing slash."""
    tls: ssl.SSLContext | None
    server_name: str


def resolve(base_url: str) -> Target:
    """Look the host up once. Raises OSError (gaierror) or ValueError for an address that cannot be used."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{base_url}: needs http://HOST:PORT or https://HOST:PORT")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    family, _, _, _, address = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)[0]
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    netloc = parts.netloc.rpartition("@")[2]
    return Target(family, address, netloc, parts.path.rstrip("/"), tls, parts.hostname)


def encode_request(target: Target, path: str, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> bytes:
    """A whole POST, ready for one send."""
    if target.prefix and path.startswith(target.prefix + "/"):
        path = path[len(target.prefix) :]
    lines = [
        f"POST {target.prefix}{path} HTTP/1.1",
        f"Host: {target.host_header}",
        "User-Agent: evenhand",
        "Accept: text/event-stream, application/json",
        "Accept-Encoding: identity",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers),
        "\r\n",
    ]
    return "\r\n".join(lines).encode("latin-1") + body


_stamping: socket.socket | None = None


def kernel_stamps() -> bool:
    """Whether this kernel stamps what arrives. Keeps one stamped socket open, so that stamping is on before it matters:
    Linux switches it on a moment after the first socket asks."""
    global _stamping
    if _stamping is not None:
        return True
    if not hasattr(socket.socket, "recvmsg"):
        return False
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(1.0)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(50):
                before = time.time_ns()
                sender.sendto(b"x", receiver.getsockname())
                _, ancillary, _, _ = receiver.recvmsg(16, ANCILLARY_BYTES)
                if ancillary and abs(stamp_ns(ancillary) - before) < 1_000_000_000:
                    _stamping = receiver
                    return True
                time.sleep(0.001)
    except OSError:
        pass
    receiver.close()
    return False


def stamp_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The kernel's stamp in a control message, real-time nanoseconds; 0 when it holds none."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == 16:
            seconds, nanoseconds = struct.unpack("=qq", data)
            return int(seconds * 1_000_000_000 + nanoseconds)
    return 0


class Owner(Protocol):
    """Who runs links. Called from inside event handling; must be quick."""

    def ready(self, link: Link) -> None:
        """Connected and idle: give it a request, or leave it."""
        ...

    def over(self, link: Link, exchange: Exchange) -> None:
        """An exchange ended, well or not. `link.state` is already "idle" or "down"."""
        ...

    def no_connection(self, link: Link, reason: str) -> None:
        """Could not connect (or the deadline passed)."""
        ...

    def watch(self, link: Link, mask: int, *, new: bool) -> None:
        """Wait for these events on link.fd."""
        ...

    def unwatch(self, link: Link) -> None:
        """link.fd is about to close."""
        ...


class Link:
    """One connection of one slot."""

    __slots__ = (
        "_end", "_fed", "_in", "_out", "_owner", "_parked", "_pending", "_stamps", "_target", "_tls",
        "exchange", "fd", "lazy", "reads", "recvmsg", "since_ns", "slot", "sock", "state", "used",
    )  # fmt: skip

    def __init__(self, target: Target, slot: int, owner: Owner, stamps: bool) -> None:
        self._target = target
        self._owner = owner
        self._stamps = stamps
        self.slot = slot
        self.sock: socket.socket | None = None
        self.fd = -1
        self.state: State = "down"
        self.since_ns = 0
        """When connecting started, or the request was sent: what the deadlines count from."""
        self.lazy = False
        """The rung's loop may append reads to `reads` itself as long as they do not end in `END`."""
        self.reads: list[Any] = []
        """Own stamp, kernel stamp, bytes; own stamp, kernel stamp, bytes; ... (a third cheaper than tuples)."""
        self.recvmsg: Any = None
        self.exchange: Exchange | None = None
        self.used = False
        """A request was answered on this connection before."""
        self._end = MessageEnd()
        self._fed = 0
        """How much of `reads` the message end has seen."""
        self._parked: tuple[Exchange, bytes | memoryview] | None = None
        """A request of which the old connection took nothing: it goes out on the next one."""
        self._pending: memoryview | None = None
        self._tls: ssl.SSLObject | None = None
        self._in = self._out = ssl.MemoryBIO() if target.tls else None

    # --- connecting ---

    def connect(self) -> None:
        """Start a fresh connection; the owner hears `ready` or `no_connection`."""
        self.close()
        self.since_ns = time.monotonic_ns()
        try:
            sock = socket.socket(self._target.family, socket.SOCK_STREAM)
        except OSError as error:
            self._unreachable(f"client limit: {error.strerror or error}")
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._stamps:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            self.recvmsg = sock.recvmsg
        else:
            self.recvmsg = _Unstamped(sock).recvmsg
        self.sock, self.fd, self.state, self.used = sock, sock.fileno(), "connecting", False
        self._owner.watch(self, OUT, new=True)
        code = sock.connect_ex(self._target.address)
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self._unreachable(f"connect: {os.strerror(code)}")

    def _unreachable(self, reason: str) -> None:
        """No connection came about: the fate of the parked request, or of the owner's next one."""
        self.close()
        if self._parked is not None:
            (self.exchange, _), self._parked = self._parked, None
            self.reads, self._fed = [], 0
            self._finish(reason, complete=False)
        else:
            self._owner.no_connection(self, reason)

    def close(self) -> None:
        """Drop the connection."""
        if self.sock is not None:
            self._owner.unwatch(self)
            self.sock.close()
            self.sock, self.fd = None, -1
        self.state, self.lazy, self._pending, self._tls = "down", False, None, None

    def _connected(self) -> None:
        assert self.sock is not None
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._unreachable(f"connect: {os.strerror(code)}")
            return
        self._owner.watch(self, IN, new=False)
        if self._target.tls is None:
            self._idle()
            return
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = self._target.tls.wrap_bio(self._in, self._out, server_hostname=self._target.server_name)
        self.state = "handshake"
        self._handshake()

    def _handshake(self) -> bool:
        """One round of it. True when it is done."""
        assert self._tls is not None
        try:
            self._tls.do_handshake()
            if self._flush(self._ciphertext()):
                self._idle()
            return True
        except ssl.SSLWantReadError:
            self._flush(self._ciphertext())
        except OSError as error:  # ssl.SSLError is one
            self._unreachable(f"TLS: {error}")
        return False

    def _idle(self) -> None:
        self.state, self.lazy, self.exchange = "idle", False, None
        if self._parked is not None:
            (exchange, request), self._parked = self._parked, None
            self.fire(exchange, request)
        else:
            self._owner.ready(self)

    # --- sending ---

    def fire(self, exchange: Exchange, request: bytes | memoryview) -> None:
        """Send a request on an idle link."""
        self.exchange, self.reads, self._fed = exchange, [], 0
        self._end = MessageEnd()
        data: bytes | memoryview = request
        if self._tls is not None:
            self._tls.write(request)
            data = self._ciphertext()
        self.state = "sending"
        try:
            if self._flush(data):
                self.state = "waiting"
        except OSError as error:
            if self.used:  # the server had closed the kept connection and took nothing: not a retry
                self.exchange, self._parked = None, (exchange, request)
                self.connect()
            else:
                self._broken(f"send: {error.strerror or error}")

    def _flush(self, data: bytes | memoryview) -> bool:
        """Send as much as goes. True when all of it went; send time is just before the call that took the last byte."""
        assert self.sock is not None
        stamp = time.monotonic_ns()
        try:
            sent = self.sock.send(data) if data else 0
        except BlockingIOError:
            sent = 0
        if self.exchange is not None:
            self.exchange.send_ns = self.since_ns = stamp
        if sent == len(data):
            if self._pending is not None:
                self._pending = None
                self._owner.watch(self, IN, new=False)
            return True
        if self._pending is None:
            self._owner.watch(self, IN | OUT, new=False)
        self._pending = memoryview(data)[sent:]
        return False

    def _ciphertext(self) -> bytes:
        return self._out.read() if self._out is not None else b""

    # --- events ---

    def on_event(self, mask: int) -> None:
        """Anything but the plain read that the rung's loop does itself."""
        if self.state == "connecting":
            self._connected()
            return
        if mask & OUT and self._pending is not None:
            try:
                if self._flush(self._pending):
                    if self.state == "sending":
                        self.state = "waiting"
                    elif self.state == "handshake":
                        self._handshake()
            except OSError as error:
                self._broken(f"send: {error.strerror or error}")
                return
        if mask & ~OUT and self.sock is not None:
            self._read()

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.lost(error)
            return
        self.took(time.monotonic_ns(), ancillary[0][2] if ancillary else NO_STAMP, data)

    def lost(self, error: OSError) -> None:
        """A read failed."""
        self._broken(f"connection lost: {error.strerror or error}")

    def took(self, own_ns: int, stamp: bytes, data: bytes) -> None:
        """A read that may matter: the first ones, the last, or the end of the connection."""
        if not data:
            self._eof()
            return
        closed = False
        if self._tls is not None:
            data, closed = self._plain(data)
        if data:
            if self.exchange is None:
                self._broken("bytes without a request")
                return
            self.reads += own_ns, stamp, data
            self._feed()
        if closed and self.sock is not None:
            self._eof()

    def catch_up(self) -> None:
        """Let the message end see the reads that were only stored, so that little is left for the moment it comes."""
        if self.lazy and self._fed < len(self.reads):
            self._feed()

    def _feed(self) -> None:
        """Let the message end see what it has not seen."""
        end = self._end
        fresh = self.reads[self._fed + 2 :: 3]
        self._fed = len(self.reads)
        if end.feed(b"".join(fresh)):
            self._finish(end.error, complete=end.complete)
        else:
            self.lazy = end.lazy and self._tls is None

    def _plain(self, data: bytes) -> tuple[bytes, bool]:
        """Ciphertext -> (plaintext, whether the peer closed)."""
        tls = self._tls
        assert tls is not None
        assert self._in is not None
        self._in.write(data)
        if self.state == "handshake" and (not self._handshake() or self._tls is not tls):
            return b"", False
        pieces: list[bytes] = []
        try:
            while piece := tls.read(65536):
                pieces.append(piece)
            return b"".join(pieces), True
        except ssl.SSLWantReadError:
            return b"".join(pieces), False
        except OSError:  # broken records: what came before them counts, then the connection is over
            return b"".join(pieces), True

    def _eof(self) -> None:
        exchange = self.exchange
        if exchange is None:
            if self.state == "handshake":
                self._broken("TLS: the server closed the connection")
            else:
                self.connect()
            return
        if self._fed < len(self.reads):
            self._feed()
            if self.exchange is not exchange:
                return
        if self.reads:
            self._finish(None, complete=self._end.until_eof)
        else:
            self._broken("the server closed the connection before the first byte")

    def _broken(self, reason: str) -> None:
        if self.exchange is not None:
            self._finish(reason, complete=False)
            return
        if self.state in ("connecting", "handshake"):
            self._unreachable(reason)
        else:
            self.connect()

    def give_up(self, reason: str, *, interrupted: bool = False) -> None:
        """A deadline passed, the engine died, or the run was interrupted."""
        if self._parked is not None:
            (self.exchange, _), self._parked = self._parked, None
            self.reads, self._fed = [], 0
        exchange = self.exchange
        if exchange is None:
            self._unreachable(reason)
            return
        if self._fed < len(self.reads):
            self._feed()
            if self.exchange is not exchange:
                return
        exchange.interrupted = interrupted
        self._finish(reason, complete=False)

    def _finish(self, reason: str | None, *, complete: bool) -> None:
        exchange = self.exchange
        assert exchange is not None
        exchange.end_ns = time.monotonic_ns()
        exchange.reason, exchange.complete = reason, complete
        reusable = complete and reason is None and self._end.keep_alive and self._pending is None
        self.exchange, self.lazy = None, False
        if reusable:
            self.state, self.used = "idle", True
        else:
            self.close()
        self._owner.over(self, exchange)


class _Unstamped:
    """recvmsg for systems that give no kernel stamps."""

    def __init__(self, sock: socket.socket) -> None:
        self._recv = sock.recv

    def recvmsg(self, size: int, _ancillary: int) -> tuple[bytes, list[Any], int, None]:
        return self._recv(size), [], 0, None
