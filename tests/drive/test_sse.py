"""The splitter against httpx-sse, for every way of cutting a stream into reads."""

from __future__ import annotations

import itertools

import httpx
import pytest
from httpx_sse import EventSource
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.drive.sse import Splitter

LINES = st.one_of(
    st.just(""),
    st.builds(
        lambda field, colon, value: field + colon + value,
        st.sampled_from(["data", "data", "data", "event", "id", "retry", "", "x"]),
        st.sampled_from([":", ": ", ":  ", ""]),
        st.text(st.sampled_from("ab:\u2028\u2029\x85\x0b\x0c\u4e2d\U0001f600 {}"), max_size=5),
    ),
)


def oracle(body: bytes) -> list[bytes]:
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    return [sse.data.encode() for sse in EventSource(response).iter_sse() if sse.data]


def split(pieces: list[bytes]) -> list[bytes]:
    splitter = Splitter()
    events = [payload for piece in pieces for payload in splitter.feed(piece)]
    return events + splitter.close()


def cut(body: bytes, marks: list[int]) -> list[bytes]:
    places = sorted({0, len(body), *(mark % (len(body) + 1) for mark in marks)})
    return [body[a:b] for a, b in itertools.pairwise(places)]


@given(
    st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r", "\r\n"])), max_size=12), st.lists(st.integers(0, 999), max_size=8)
)
@settings(max_examples=300, deadline=None)
def test_like_httpx_sse_however_it_is_cut(lines: list[tuple[str, str]], marks: list[int]) -> None:
    body = "".join(line + end for line, end in lines).encode()
    # At the end of a body we give out what lacks only its blank line, the oracle does not: give it one. A lone CR before it
    # would swallow half of an LF.
    assert split(cut(body, marks)) == oracle(body + b"\r\n\r\n")


@given(st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r", "\r\n"])), max_size=8))
@settings(max_examples=50, deadline=None)
def test_one_byte_at_a_time(lines: list[tuple[str, str]]) -> None:
    body = "".join(line + end for line, end in lines).encode()
    assert split([body[i : i + 1] for i in range(len(body))]) == oracle(body + b"\r\n\r\n")


@pytest.mark.parametrize("tail", [b"", b"\n", b"\r", b"\r\n"])
def test_the_last_blank_line_may_be_missing(tail: bytes) -> None:
    assert split([b"data: a\n\ndata: b" + tail]) == [b"a", b"b"]


def test_several_data_lines_are_joined_with_lf() -> None:
    assert split([b"data: a\ndata:b\ndata\n\n"]) == [b"a\nb\n"]


def test_a_cr_ends_an_event_without_waiting_for_its_lf() -> None:
    splitter = Splitter()
    assert splitter.feed(b"data: a\r\n\r") == [b"a"]
    assert splitter.feed(b"\n") == []
    assert splitter.feed(b"data: b\n\n") == [b"b"]


def test_only_lines_that_start_with_a_colon_are_comments() -> None:
    splitter = Splitter()
    assert splitter.feed(b":\n\n: a\r\n\r\ndata: :b\n\n event: x\n") == [b":b"]
    assert splitter.comments == 2


def test_a_byte_order_mark_is_no_data() -> None:
    assert split([b"\xef", b"\xbb\xbfdata: a\n\n"]) == [b"a"]
    assert split([b"\xef\xbb\xbfdata: a\n\n"]) == [b"a"]


def test_pending_says_whether_an_event_is_half_there() -> None:
    splitter = Splitter()
    splitter.feed(b"data: a\n\n")
    assert not splitter.pending
    splitter.feed(b"da")
    assert splitter.pending
    splitter.feed(b"ta: b\n")
    assert splitter.pending
