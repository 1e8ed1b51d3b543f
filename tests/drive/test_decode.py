"""Times, counts and failures of one request, and that no way of cutting its stream changes what it says."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire import CELL, HEAD, LAST, OFFSET_NS, SEND_NS, answer, chunk, event, exchange, row, stream, text, usage

from evenhand.drive.decode import decode, take_apart
from evenhand.engines.base import Chunk
from evenhand.engines.openai import OpenAIDialect

DONE = "[DONE]"


def ids(*tokens: int, finish: str | None = None) -> dict[str, object]:
    return text("x" * len(tokens), finish, token_ids=list(tokens))


def test_events_of_one_read_share_its_stamp_and_all_but_the_last_leave_the_gaps() -> None:
    reads = stream(
        [(0.1, event(ids(1))), (0.2, event(ids(2)) + event(ids(3))), (0.3, event(ids(4, finish="stop"))), (0.4, event(DONE))]
    )
    found = row(reads)
    assert found.event_ns == [100_000_000, 200_000_000, 200_000_000, 300_000_000]
    assert found.event_coalesced == [1]
    assert found.tpot_s == pytest.approx(0.2 / 3)


def test_a_token_that_shares_its_read_with_usage_is_coalesced() -> None:
    found = row(stream([(0.1, event(ids(1))), (0.2, event(ids(2, finish="stop")) + event(usage(5, 2)) + event(DONE))]))
    assert found.event_coalesced == [1]


def test_an_event_followed_by_the_start_of_the_next_is_coalesced() -> None:
    second = event(ids(2, finish="stop"))
    found = row(stream([(0.1, event(ids(1)) + second[:9]), (0.2, second[9:]), (0.3, event(DONE))]))
    assert found.event_coalesced == [0]
    assert found.event_ns == [100_000_000, 200_000_000]


def test_several_tokens_in_one_chunk_are_icl_and_spread_over_tpot() -> None:
    found = answer([(0.1, ids(1, 2, 3)), (0.5, ids(4, 5, finish="stop")), (0.5, usage(5, 5)), (0.5, DONE)])
    assert found.gaps_kind == "icl"
    assert found.event_tokens == [3, 2]
    assert found.tpot_s == pytest.approx(0.4 / 2)
    assert not found.tpot_marked


def test_without_ids_tpot_is_marked() -> None:
    found = answer([(0.1, text("a")), (0.5, text("b", "stop")), (0.5, usage(5, 5)), (0.5, DONE)])
    assert found.tpot_s == pytest.approx(0.4 / 4)
    assert found.tpot_marked
    assert found.gaps_kind == "icl"


def test_a_stream_in_one_read_has_no_tpot() -> None:
    body = event(ids(1)) + event(ids(2, finish="stop")) + event(DONE)
    found = row([(0.3, HEAD + chunk(body) + LAST)])
    assert found.outcome == "ok"
    assert (found.tpot_s, found.tpot_reason) == (None, "all token events came in one read")


def test_ids_that_disagree_with_usage_fail() -> None:
    found = answer([(0.1, ids(1)), (0.2, ids(2, finish="stop")), (0.2, usage(5, 3)), (0.2, DONE)])
    assert found.reason == "token count disagrees: 2 ids, usage says 3"


def test_finish_without_done_is_enough_and_done_without_finish_is_too() -> None:
    assert answer([(0.1, ids(1)), (0.2, ids(2, finish="length"))]).outcome == "ok"
    found = answer([(0.1, ids(1)), (0.2, DONE)])
    assert (found.outcome, found.finish_reason) == ("ok", None)


def test_an_empty_answer_that_the_engine_vouches_for_is_ok_and_has_no_ttft() -> None:
    found = answer([(0.2, text("", "stop")), (0.2, usage(5, 0)), (0.2, DONE)])
    assert (found.outcome, found.output_tokens, found.ttft_s) == ("ok", 0, None)


def test_an_aborted_answer_is_a_failure() -> None:
    found = answer([(0.1, ids(1, finish="abort")), (0.2, DONE)])
    assert found.reason == "the engine gave the request up (finish_reason abort)"


def test_a_connection_lost_after_finish_is_not_a_clean_end() -> None:
    found = row([(0.1, HEAD + chunk(event(ids(1, finish="stop"))))], complete=False)
    assert found.reason == "truncated stream: the connection closed before the message ended"


def test_a_body_that_ends_with_the_connection() -> None:
    plain = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    found = row([(0.1, plain + event(ids(1))), (0.2, event(ids(2, finish="stop")) + b"data: [DONE]")])
    assert (found.outcome, found.token_ids) == ("ok", [1, 2])


def test_an_http_error_keeps_its_words() -> None:
    body = b'{"error":{"message":"max_tokens is too large","type":"BadRequestError","code":400}}'
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    found = row([(0.1, head + body)])
    assert (found.outcome, found.reason, found.http_status, found.error_code) == ("failed", "HTTP 400", 400, 400)
    assert found.error_text is not None
    assert "max_tokens is too large" in found.error_text


def test_an_unstreamed_answer_is_not_a_measurement() -> None:
    body = b'{"choices":[{"index":0,"text":"x","finish_reason":"stop"}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert row([(0.1, head + body)]).reason == "no event stream in a 200 answer"


def test_bytes_that_are_not_http() -> None:
    found = row([(0.1, b"SSH-2.0-OpenSSH_9.6\r\n")], complete=False)
    assert found.outcome == "failed"
    assert found.reason is not None
    assert found.reason.startswith("malformed HTTP")


def test_a_payload_that_is_not_json_fails_the_request() -> None:
    found = answer([(0.1, b"data: {nonsense\n\n"), (0.2, ids(1, finish="stop")), (0.2, DONE)])
    assert found.outcome == "failed"
    assert found.reason is not None
    assert found.reason.startswith("malformed event")


def test_an_adapter_that_raises_fails_the_request_only() -> None:
    class Broken(OpenAIDialect):
        def decode(self, payload: bytes) -> Chunk:
            raise KeyError("choices")

    found = decode(CELL, exchange(stream([(0.1, event(ids(1)))])), Broken(returns_ids=True)).row
    assert found.reason == "malformed event: KeyError: 'choices'"


def test_an_interrupted_request_says_so_and_keeps_its_text() -> None:
    found = row([(0.1, HEAD + chunk(event(ids(1))))], complete=False, reason="interrupted", interrupted=True)
    assert (found.outcome, found.reason, found.text) == ("interrupted", "interrupted", "x")


def test_the_own_lag_is_kept_and_is_not_in_the_times() -> None:
    found = row(stream([(0.1, event(ids(1))), (0.2, event(ids(2, finish="stop")))]), lag_s=0.004)
    assert found.stamp == "kernel"
    assert found.ttft_s == pytest.approx(0.1)
    assert found.lag_max_s == pytest.approx(0.004)


def test_without_kernel_stamps_the_row_says_user() -> None:
    item = exchange(stream([(0.1, event(ids(1))), (0.2, event(ids(2, finish="stop")))]), lag_s=0.004)
    item.kernel = bytes(len(item.kernel))
    found = decode(CELL, item, OpenAIDialect(returns_ids=True)).row
    assert (found.stamp, found.lag_max_s) == ("user", None)
    assert found.ttft_s == pytest.approx(0.104)


def test_a_clock_step_during_the_request_voids_its_times_only() -> None:
    reads = stream([(0.1, event(ids(1))), (0.5, event(ids(2, finish="stop")))])
    item = exchange(reads)
    item.steps = [(SEND_NS + 50_000_000, SEND_NS + 200_000_000, OFFSET_NS, OFFSET_NS + 7_000_000_000)]
    item.offset_ns = OFFSET_NS + 7_000_000_000
    found = decode(CELL, item, OpenAIDialect(returns_ids=True)).row
    assert (found.outcome, found.token_ids) == ("ok", [1, 2])
    assert (found.ttft_s, found.tpot_s) == (None, None)
    assert found.tpot_reason == "the real-time clock was set during the request"
    assert found.stamp == "user"


def test_logprob_margins_of_a_replay() -> None:
    logprobs = {"tokens": ["x"], "token_logprobs": [-0.5], "top_logprobs": [{"x": -0.5, "y": -0.75}]}
    found = answer([(0.1, text("x", "stop", token_ids=[1], logprobs=logprobs)), (0.1, DONE)])
    assert found.top2_margin_nats == [pytest.approx(0.25)]


WORDS = st.text(st.sampled_from('ab\u4e2d\u2028\u2029\x85\U0001f600 :\\"\n\r'), max_size=6)


@given(
    st.lists(WORDS, min_size=1, max_size=4),
    st.sampled_from(["\n", "\r", "\r\n"]),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 10_000), max_size=12),
)
@settings(max_examples=150, deadline=None)
def test_no_cut_changes_the_answer(words: list[str], end: str, chunked: bool, blank: bool, cuts: list[int]) -> None:
    """LF, CR, CRLF, split UTF-8, U+2028, comments, missing last blank line; chunked and plain bodies; every cut."""
    import json

    lines: list[str] = []
    for number, word in enumerate(words):
        payload = json.dumps(text(word, None if number < len(words) - 1 else "stop", token_ids=[number]), ensure_ascii=False)
        lines += [": keep-alive", f"data: {payload}", ""]
    body = end.join([*lines, "data: [DONE]" + (end + end if blank else "")]).encode()
    if chunked:
        middle = len(body) // 2
        whole = HEAD + chunk(body[:middle]) + chunk(body[middle:]) + LAST
    else:
        whole = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    marks = sorted({0, len(whole), *(cut % len(whole) for cut in cuts)})
    reads = [(float(n), whole[a:b]) for n, (a, b) in enumerate(itertools.pairwise(marks), 1)]
    found = row(reads)
    assert found.outcome == "ok"
    assert found.text == "".join(words)
    assert found.token_ids == list(range(len(words)))
    assert found.keepalive_comments == len(words)
    assert found.event_ns == sorted(found.event_ns)


def test_every_single_cut_of_a_stream() -> None:
    whole = b"".join(
        data for _, data in stream([(0, event(ids(1)) + b": hi\r\n"), (0, event(ids(2, finish="stop"))), (0, event(DONE))])
    )
    for cut in range(1, len(whole)):
        found = row([(0.1, whole[:cut]), (0.2, whole[cut:])])
        assert (found.outcome, found.token_ids, found.chunks) == ("ok", [1, 2], 2)


def test_take_apart_stamps_an_event_with_the_read_that_completes_it() -> None:
    from evenhand.drive.decode import Read

    body = event(ids(1))
    reads = [Read(10, 1, HEAD + chunk(body)[:20]), Read(20, 2, chunk(body)[20:]), Read(30, 3, LAST)]
    assert [(e.at_ns, e.read) for e in take_apart(reads, True).events] == [(2, 1)]
