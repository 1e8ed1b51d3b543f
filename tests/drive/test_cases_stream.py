"""The public cases about streams and tokens: each test carries its case's values."""

from __future__ import annotations

import msgspec
import pytest
from wire import HEAD, LAST, answer, chunk, delta, event, row, stream, text, usage

from evenhand.records import RequestRow

DONE = "[DONE]"


def gaps(found: RequestRow) -> list[float]:
    """Seconds between token events."""
    return [round((b - a) / 1e9, 9) for a, b in zip(found.event_ns, found.event_ns[1:], strict=False)]


def test_b01_a_role_chunk_is_no_token() -> None:
    found = answer(
        [
            (0.10, delta(role="assistant", content="")),
            (0.50, delta(content="Hi")),
            (0.60, delta(content="!")),
            (0.70, delta("stop")),
            (0.80, usage(4, 2)),
            (0.80, DONE),
        ]
    )
    assert found.outcome == "ok"
    assert found.ttft_s == pytest.approx(0.50)
    assert gaps(found) == [0.10]
    assert found.tpot_s == pytest.approx(0.10)
    assert found.output_tokens == 2
    assert found.text == "Hi!"
    assert found.event_ns == [500_000_000, 600_000_000]


def test_b02_a_stream_without_a_token_has_no_times() -> None:
    found = row(stream([(0.3, b"data: [DONE]\n\n")]))
    assert (found.outcome, found.reason) == ("failed", "no token received")
    assert found.ttft_s is None
    assert found.tpot_s is None
    assert found.first_token_ns is None


@pytest.mark.parametrize(
    "error",
    [{"message": "engine stopped", "type": "InternalServerError", "code": 500}, "engine stopped"],
    ids=["object", "string"],
)
def test_b03_an_error_in_a_200_stream_is_a_failure(error: object) -> None:
    found = answer([(0.20, text("one")), (0.30, text(" two")), (0.35, {"error": error}), (0.35, DONE)])
    assert found.outcome == "failed"
    assert found.error_code == (500 if isinstance(error, dict) else None)
    assert found.error_text is not None
    assert "engine stopped" in found.error_text
    assert found.text == "one two"
    assert (found.ttft_s, found.tpot_s, found.output_tokens) == (None, None, None)


def test_b04_a_clean_close_without_finish_is_truncated() -> None:
    found = answer([(0.1, text("alpha")), (0.2, text(" beta"))])
    assert (found.outcome, found.reason) == ("failed", "truncated stream: no finish_reason and no [DONE]")


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7])
def test_b05_a_character_split_over_reads_stays_whole(size: int) -> None:
    first = b'data: {"choices":[{"index":0,"text":"\xe4'
    second = b'\xb8\xad"}]}\n\ndata: [DONE]\n\n'
    body = first + second
    pieces = [first, second] if not size else [body[i : i + size] for i in range(0, len(body), size)]
    found = row(stream([(0.1 * n, piece) for n, piece in enumerate(pieces, 1)]))
    assert found.outcome == "ok"
    assert found.text == "\u4e2d"
    assert len(found.text) == 1
    assert len(found.text.encode()) == 3


def test_b07_comments_change_nothing_but_their_count() -> None:
    last = [(0.50, text("x", "length")), (0.50, DONE)]
    with_comments = answer([(0.10, b":\n\n"), (0.20, b": still here\n\n"), *last])
    without = answer(last)
    assert with_comments.outcome == "ok"
    assert with_comments.ttft_s == pytest.approx(0.50)
    assert with_comments.chunks == 1
    assert with_comments.text == "x"
    assert (with_comments.keepalive_comments, without.keepalive_comments) == (2, 0)
    assert msgspec.structs.replace(with_comments, keepalive_comments=0) == without


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("cut", range(0, 110, 3))
def test_b08_every_line_end_and_data_without_a_space(end: bytes, cut: int) -> None:
    lines = [b'data:{"choices":[{"index":0,"text":"Hi"}]}', b"", b'data: {"choices":[{"index":0,', b'data: "text":"!"}]}', b""]
    body = end.join([*lines, b"data:[DONE]", b"", b""])
    pieces = [(0.1, body[:cut]), (0.2, body[cut:])]
    found = row(stream([(at, piece) for at, piece in pieces if piece]))
    assert found.outcome == "ok"
    assert found.text == "Hi!"
    assert found.chunks == 2


def test_b08_a_boundary_between_cr_and_lf() -> None:
    body = b'data:{"choices":[{"index":0,"text":"Hi"}]}\r\n\r\ndata:[DONE]\r\n\r\n'
    cut = body.index(b"\r\n") + 1
    found = row(stream([(0.1, body[:cut]), (0.2, body[cut:])]))
    assert (found.outcome, found.text, found.chunks) == ("ok", "Hi", 1)


def test_b10_the_usage_chunk_is_counted_and_not_timed() -> None:
    events = [(0.50, {**text("a"), "usage": None}), (0.60, {**text("b", "length"), "usage": None})]
    found = answer([*events, (0.90, usage(5, 2)), (0.90, DONE)])
    assert (found.prompt_tokens, found.output_tokens) == (5, 2)
    assert found.last_token_ns is not None
    assert found.send_ns is not None
    assert (found.last_token_ns - found.send_ns) / 1e9 == pytest.approx(0.60)
    assert found.tpot_s == pytest.approx(0.10)
    variant = answer([*events, (0.90, DONE)])
    assert variant.outcome == "ok"
    assert (variant.output_tokens, variant.token_source, variant.chunks) == (None, "none", 2)
    assert (variant.tpot_s, variant.tpot_reason) == (None, "no token count")


def test_b11_reasoning_tokens_start_the_clock() -> None:
    found = answer(
        [
            (0.20, delta(reasoning_content="th")),
            (0.30, delta(reasoning="ink")),
            (0.90, delta("stop", content="42")),
            (0.90, usage(1, 3)),
            (0.90, DONE),
        ]
    )
    assert found.ttft_s == pytest.approx(0.20)
    assert found.first_answer_ns is not None
    assert found.send_ns is not None
    assert (found.first_answer_ns - found.send_ns) / 1e9 == pytest.approx(0.90)
    assert found.output_tokens == 3
    assert found.tpot_s == pytest.approx(0.35)
    assert (found.reasoning, found.text) == ("think", "42")


def test_b12_tokens_without_text_count_and_texts_without_tokens_do_not() -> None:
    with_ids = answer(
        [
            (0.1, text("", token_ids=[])),
            (0.3, text("", token_ids=[11])),
            (0.4, text("", token_ids=[12])),
            (0.5, text("\u00e9", "length", token_ids=[13])),
            (0.5, usage(3, 3)),
            (0.5, DONE),
        ]
    )
    assert with_ids.outcome == "ok"
    assert with_ids.ttft_s == pytest.approx(0.30)
    assert with_ids.ttft_kind == "first token"
    assert (with_ids.output_tokens, with_ids.token_ids) == (3, [11, 12, 13])
    assert with_ids.gaps_kind == "itl"
    without = answer(
        [(0.1, text("")), (0.3, text("")), (0.4, text("")), (0.5, text("\u00e9", "length")), (0.5, usage(3, 3)), (0.5, DONE)]
    )
    assert without.ttft_s == pytest.approx(0.50)
    assert without.ttft_kind == "first text"
    assert (without.output_tokens, without.token_source) == (3, "usage")


def test_b15_answers_of_one_token_have_no_tpot() -> None:
    def one(ttft: float, last: float, tokens: int) -> RequestRow:
        events = [(ttft, text("a", None if tokens > 1 else "length", token_ids=[1]))]
        if tokens > 1:
            events.append((last, text("bcde", "length", token_ids=[2, 3, 4, 5])))
        return answer([*events, (last, usage(5, tokens)), (last, DONE)])

    rows = [one(0.5, 0.5, 1), one(0.4, 0.8, 5), one(0.3, 0.3, 1)]
    assert [r.outcome for r in rows] == ["ok"] * 3
    assert [r.tpot_s for r in rows] == [None, pytest.approx(0.10), None]
    assert sum(r.ttft_s or 0 for r in rows) / 3 == pytest.approx(0.40)
    assert rows[0].tpot_reason == "fewer than two token events"


def test_b16_tokens_are_what_came_not_what_was_asked() -> None:
    rows = [answer([(0.1, text("a")), (0.2, text("b", "stop")), (0.2, usage(5, n)), (0.2, DONE)]) for n in (100, 100, 20, 20)]
    assert [r.output_tokens for r in rows] == [100, 100, 20, 20]
    assert {r.token_source for r in rows} == {"usage"}


def test_b18_the_prompt_length_is_the_servers() -> None:
    a, b = (answer([(0.1, text("same", "stop")), (0.1, usage(n, 1)), (0.1, DONE)]) for n in (5, 6))
    assert a.text == b.text
    assert (a.prompt_tokens, b.prompt_tokens) == (5, 6)
    assert a.prompt_tokens_asked == 5


def test_b20_a_request_that_hung_is_a_failed_row_with_its_deadline() -> None:
    found = row([(0.2, HEAD + chunk(event(text("a"))))], complete=False, reason="total timeout: not finished within 60 s")
    assert (found.outcome, found.reason) == ("failed", "total timeout: not finished within 60 s")
    assert found.output_tokens is None
    assert found.ttft_s is None
    assert found.text == "a"


def test_b21_failures_are_rows_too() -> None:
    good = answer([(1.0, text("a", "stop")), (1.0, usage(1, 1)), (1.0, DONE)])
    bad = row([], complete=False, reason="connect: Connection refused", send_ns=None)
    assert (good.outcome, bad.outcome) == ("ok", "failed")
    assert bad.ttft_s is None


def test_the_last_chunk_may_come_alone() -> None:
    found = row([*stream([(0.1, event(text("a", "stop")))], end=b""), (0.9, LAST)])
    assert found.outcome == "ok"
    assert found.end_ns is not None
    assert found.send_ns is not None
    assert found.end_ns - found.send_ns == 900_000_000
