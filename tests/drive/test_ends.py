"""The end of a message found lazily is the end that httptools finds when it is fed every read."""

from __future__ import annotations

import itertools

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.drive.ends import END, MessageEnd


def lazily(reads: list[bytes]) -> tuple[int | None, MessageEnd]:
    """As the rung's loop does: reads that cannot end a chunked message are kept. Index of the read that ended it."""
    end, kept = MessageEnd(), b""
    for number, data in enumerate(reads):
        kept += data
        if end.lazy and len(data) >= 4 and data[-4:] != END:
            continue
        if end.feed(kept):
            return number, end
        kept = b""
    return None, end


def eagerly(reads: list[bytes]) -> int | None:
    """The oracle: httptools, read by read."""

    class Seen:
        headed = complete = False

        def on_headers_complete(self) -> None:
            self.headed = not 100 <= parser.get_status_code() < 200

        def on_message_complete(self) -> None:
            self.complete = self.complete or self.headed

    seen = Seen()
    parser = httptools.HttpResponseParser(seen)
    for number, data in enumerate(reads):
        parser.feed_data(data)
        if seen.complete:
            return number
    return None


PIECES = st.lists(
    st.sampled_from([b"data: x\n\n", b"data: x\r\n\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"\r", b"\n", b"y" * 40, b"5\r\nhi\r\n"]),
    max_size=6,
)
TRAILERS = st.sampled_from([b"", b"X-A: b\r\n", b"X-A: b\r\nX-C: 0\r\n"])


@given(PIECES, TRAILERS, st.booleans(), st.booleans(), st.lists(st.integers(0, 9999), max_size=10))
@settings(max_examples=400, deadline=None)
def test_chunked_messages(pieces: list[bytes], trailers: bytes, extension: bool, interim: bool, marks: list[int]) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    if interim:
        head = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + head
    size = b"%x;a=b\r\n" if extension else b"%x\r\n"
    whole = head + b"".join(size % len(p) + p + b"\r\n" for p in pieces) + b"0\r\n" + trailers + b"\r\n"
    places = sorted({0, len(whole), *(mark % len(whole) for mark in marks)})
    reads = [whole[a:b] for a, b in itertools.pairwise(places)]
    found, end = lazily(reads)
    assert found == eagerly(reads) == len(reads) - 1
    assert end.complete
    assert end.keep_alive


@given(st.binary(max_size=60), st.lists(st.integers(0, 9999), max_size=6))
@settings(max_examples=100, deadline=None)
def test_messages_with_a_length(body: bytes, marks: list[int]) -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    places = sorted({0, len(whole), *(mark % len(whole) for mark in marks)})
    reads = [whole[a:b] for a, b in itertools.pairwise(places)]
    assert lazily(reads)[0] == eagerly(reads) == len(reads) - 1


def test_every_prefix_of_a_message_is_open() -> None:
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n\r\n\r\n\n\r\n0\r\n\r\n"
    for stop in range(len(whole)):
        found, end = lazily([whole[:stop]] if stop else [])
        assert found is None
        assert not end.complete


def test_a_body_without_length_ends_with_the_connection() -> None:
    found, end = lazily([b"HTTP/1.1 200 OK\r\n\r\n", b"data: x\n\n"])
    assert found is None
    assert end.until_eof
    assert not end.lazy


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"])
def test_a_server_that_will_close_is_not_reused(head: bytes) -> None:
    _, end = lazily([head + b"Content-Length: 0\r\n\r\n"])
    assert end.complete
    assert not end.keep_alive


def test_nonsense_is_an_error() -> None:
    _, end = lazily([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"])
    assert end.error is not None
    assert end.error.startswith("malformed HTTP")
