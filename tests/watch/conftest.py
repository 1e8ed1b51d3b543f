"""A /metrics server whose every answer a test decides."""

import http.server
import threading
from collections.abc import Callable, Iterator

import pytest

Answer = Callable[[http.server.BaseHTTPRequestHandler, int], object]


class MetricsServer:
    """`answer(handler, n)` writes the n-th answer; `peak` is the most requests that were in flight at once."""

    def __init__(self) -> None:
        self.answer: Answer = lambda handler, n: handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ng 1\n")
        self.requests = 0
        self.in_flight = 0
        self.peak = 0
        self.connections = 0
        self.keys: list[str | None] = []
        self.lock = threading.Lock()
        self.release = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def do_GET(self) -> None:
                with outer.lock:
                    number = outer.requests
                    outer.requests += 1
                    outer.in_flight += 1
                    outer.peak = max(outer.peak, outer.in_flight)
                    outer.keys.append(self.headers.get("authorization"))
                try:
                    outer.answer(self, number)
                except OSError:
                    self.close_connection = True
                finally:
                    with outer.lock:
                        outer.in_flight -= 1

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    """A fresh server."""
    running = MetricsServer()
    yield running
    running.close()
