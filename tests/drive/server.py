"""A server for tests that says exactly what its script says, one thread per connection."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

from wire import HEAD, LAST, chunk, event, text, usage

Script = Callable[[socket.socket, int, bytes], bool | None]
"""(connection, number of the request over all connections, request) -> False to close the connection afterwards."""


class Server:
    """Counts requests and connections; `peak` is the most requests that were open at once."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self._script, self._tls = script, tls
        self._lock = threading.Lock()
        self.requests: list[bytes] = []
        self.connections = 0
        self.open = self.peak = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            self._sockets.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            buffer = b""
            while True:
                while (end := buffer.find(b"\r\n\r\n")) < 0 or len(buffer) < end + 4 + _length(buffer[:end]):
                    piece = sock.recv(65536)
                    if not piece:
                        return
                    buffer += piece
                size = end + 4 + _length(buffer[:end])
                request, buffer = buffer[:size], buffer[size:]
                with self._lock:
                    number = len(self.requests)
                    self.requests.append(request)
                    self.open += 1
                    self.peak = max(self.peak, self.open)
                try:
                    if self._script(sock, number, request) is False:
                        sock.shutdown(socket.SHUT_RDWR)
                        sock.close()
                        return
                finally:
                    with self._lock:
                        self.open -= 1

    def close(self) -> None:
        """Stop, and drop what is open."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line[15:])
    return 0


@contextlib.contextmanager
def serving(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A running server."""
    server = Server(script, tls)
    try:
        yield server
    finally:
        server.close()


def tokens(count: int, prompt: int = 3) -> bytes:
    """A whole answer of `count` tokens."""
    pieces = [event(text("x", "length" if n == count - 1 else None, token_ids=[n])) for n in range(count)]
    body = b"".join(chunk(piece) for piece in [*pieces, event(usage(prompt, count)), event("[DONE]")])
    return HEAD + body + LAST


def answers(count: int = 4) -> Script:
    """Every request gets the same answer."""

    def script(sock: socket.socket, number: int, request: bytes) -> None:
        sock.sendall(tokens(count))

    return script
