"""The control client: questions to an engine outside measured streams, bounded in time and size whatever the server does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

ANSWER_BYTES = 16 << 20
TIMEOUT_S = 5.0


def control_client(
    url: str, timeout_s: float = TIMEOUT_S, limit_bytes: int = ANSWER_BYTES, headers: Mapping[str, str] | None = None
) -> httpx.Client:
    """A client bound to the server's root: no proxies, no redirects, no compression, and no answer longer than either limit."""
    import httpx

    class Bounded(httpx.SyncByteStream):
        def __init__(self, inner: httpx.SyncByteStream, deadline: float) -> None:
            self.inner, self.deadline = inner, deadline

        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for part in self.inner:
                size += len(part)
                if size > limit_bytes:
                    raise httpx.ReadError(f"the answer is longer than {limit_bytes} bytes")
                if time.monotonic() > self.deadline:
                    raise httpx.ReadTimeout(f"the answer took longer than {timeout_s:g} s")
                yield part

        def close(self) -> None:
            self.inner.close()

    class Transport(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            deadline = time.monotonic() + timeout_s
            # httpx bounds each read, so a head that comes byte by byte would take for ever
            timer = threading.Timer(timeout_s, self.close)
            timer.daemon = True
            timer.start()
            try:
                response = super().handle_request(request)
            except httpx.TransportError as error:
                if time.monotonic() < deadline:
                    raise
                raise httpx.ReadTimeout(f"the answer took longer than {timeout_s:g} s") from error
            finally:
                timer.cancel()
            if response.headers.get("content-encoding", "identity") != "identity":
                # a few kilobytes could become gigabytes
                response.close()
                raise httpx.ReadError("the answer is compressed although that was not asked for")
            assert isinstance(response.stream, httpx.SyncByteStream)
            response.stream = Bounded(response.stream, deadline)
            return response

    return httpx.Client(
        base_url=url,
        trust_env=False,
        timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 2.0)),
        headers={"accept-encoding": "identity", **(headers or {})},
        transport=Transport(trust_env=False),
    )
