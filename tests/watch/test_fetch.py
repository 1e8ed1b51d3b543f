"""The HTTP reader, for every way of cutting an answer into reads."""

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.watch.fetch import Fetcher, Parser

BODY = bytes(range(256)) * 3


def chunked(body: bytes, sizes: list[int]) -> bytes:
    out, at = b"", 0
    for size in sizes:
        piece = body[at : at + size]
        if piece:
            out += b"%X;ext=1\r\n%s\r\n" % (len(piece), piece)
        at += size
    if body[at:]:
        out += b"%x\r\n%s\r\n" % (len(body) - at, body[at:])
    return out + b"0\r\nTrailer: x\r\n\r\n"


def feed(raw: bytes, cuts: list[int]) -> Parser:
    parser, at = Parser(), 0
    for cut in [*sorted(cuts), len(raw)]:
        if cut > at:
            parser.feed(raw[at:cut])
            at = cut
    return parser


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["length", "chunked", "eof"]),
    st.lists(st.integers(1, 900), max_size=8),
    st.lists(st.integers(1, 300), max_size=4),
    st.booleans(),
)
def test_any_cut_gives_the_body(kind: str, cuts: list[int], sizes: list[int], interim: bool) -> None:
    head = b"HTTP/1.1 100 Continue\r\n\r\n" if interim else b""
    head += b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
    if kind == "length":
        raw = head + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    elif kind == "chunked":
        raw = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(BODY, sizes)
    else:
        raw = head + b"\r\n" + BODY
    parser = feed(raw, cuts)
    if kind == "eof":
        assert not parser.done
        parser.eof()
    assert parser.done
    assert parser.error is None
    assert parser.text() == BODY
    assert parser.keep == (kind != "eof")


@settings(max_examples=60, deadline=None)
@given(st.booleans(), st.integers(0, 700))
def test_a_cut_answer_is_truncated_never_whole(by_length: bool, keep: int) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + (
        b"Content-Length: %d\r\n\r\n" % len(BODY) if by_length else b"Transfer-Encoding: chunked\r\n\r\n"
    )
    raw = head + (BODY if by_length else chunked(BODY, [100, 50]))
    parser = feed(raw[:keep], [])
    parser.eof()
    assert parser.error == ("closed without an answer" if keep < len(head) else "truncated")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00 something else",
        b"HTTP/1.1 abc\r\n\r\n",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcXX",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70000,
    ],
)
def test_junk_is_called_junk(raw: bytes) -> None:
    parser = feed(raw, [])
    assert parser.done
    assert parser.error is not None
    assert parser.error.startswith("junk")


def test_a_body_without_end_is_bounded() -> None:
    parser = feed(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", [])
    assert parser.error == "too large"


def test_compression_that_nobody_asked_for() -> None:
    packed = gzip.compress(BODY)
    for body, error in ((packed, None), (packed[:-20], "truncated"), (b"not gzip", "junk (bad compression)")):
        parser = feed(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body, [])
        text = parser.text()
        assert parser.error == error
        assert text == BODY or error


def test_url_must_be_http() -> None:
    with pytest.raises(ValueError, match="is not an http URL"):
        Fetcher("ftp://x/metrics", 1.0)
