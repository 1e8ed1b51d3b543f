"""The OpenAI dialect: literal requests, and every shape of event that real engines send."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.engines.base import Chunk, Sampling
from evenhand.engines.openai import OpenAIDialect, decode

DATA = Path(__file__).parent / "data"


def events(name: str) -> list[bytes]:
    """The data payloads of a recorded stream."""
    lines = (DATA / name).read_bytes().splitlines()
    return [line[6:] for line in lines if line.startswith(b"data: ")]


def encoded(**event: object) -> bytes:
    return json.dumps(event).encode()


def test_b62_zeros_are_sent_literally() -> None:
    """B62: temperature 0 and seed 0 stand in the body, with top_p 1 and n 1."""
    post = OpenAIDialect(returns_ids=True).request([5, 6], Sampling(max_tokens=8), "m")
    body = json.loads(json.dumps(post.body))
    assert post.path == "/v1/completions"
    assert body["prompt"] == [5, 6]
    assert [body[key] for key in ("temperature", "seed", "top_p", "n", "max_tokens")] == [0, 0, 1, 1, 8]
    assert body["ignore_eos"] is True
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["return_token_ids"] is True
    assert body["repetition_penalty"] == 1.0
    assert "logprobs" not in body


def test_text_prompts_and_replays() -> None:
    dialect = OpenAIDialect(returns_ids=False, logprob_extras={"return_tokens_as_token_ids": True})
    body = dialect.request("hello", Sampling(max_tokens=1, logprobs=2, ignore_eos=False), "m", stream=False).body
    assert body["prompt"] == "hello"
    assert body["logprobs"] == 2
    assert body["return_tokens_as_token_ids"] is True
    assert body["ignore_eos"] is False
    assert "return_token_ids" not in body
    assert "stream_options" not in body


def test_b01_role_only_empty_and_usage_events_carry_no_token() -> None:
    """B01: the role-only first event, the finish event and the usage event carry no text."""
    role = decode(b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}')
    text = decode(b'{"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}')
    end = decode(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')
    usage = decode(b'{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6}}')
    assert (role.text, role.ids, role.reasoning) == ("", None, "")
    assert text.text == "Hi"
    assert (end.text, end.finish_reason) == ("", "stop")
    assert (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens) == (4, 2, None)
    assert decode(b"[DONE]").done


@pytest.mark.parametrize(
    ("payload", "text", "code"),
    [
        (b'{"error":{"message":"engine stopped","type":"InternalServerError","code":500}}', "engine stopped", 500),
        (b'{"error":"engine stopped"}', "engine stopped", None),
        (b'{"object":"error","message":"too long","code":400}', "too long", 400),
        (b'{"error":{"message":"m","code":"404"}}', "m", 404),
        (b'{"error":{"code":"invalid_key"}}', '{"code": "invalid_key"}', None),
        (b'"engine stopped"', "engine stopped", None),
        (b'{"error":{"message":"x","code":true},"choices":[]}', "x", None),
    ],
)
def test_b03_an_error_in_the_stream_is_an_error(payload: bytes, text: str, code: int | None) -> None:
    """B03: an error object, string or flat form in a 200 stream."""
    chunk = decode(payload)
    assert (chunk.error, chunk.error_code, chunk.malformed) == (text, code, None)


def test_b10_usage_null_and_empty_choices() -> None:
    """B10: "usage": null on some chunks, choices [] on the last."""
    assert decode(b'{"choices":[{"index":0,"text":"a"}],"usage":null}').text == "a"
    assert decode(b'{"choices":[{"index":0,"text":null}],"usage":null,"error":null}').text == ""
    last = decode(b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}')
    assert (last.prompt_tokens, last.output_tokens) == (5, 2)


def test_b11_reasoning_in_either_field() -> None:
    """B11: reasoning_content and reasoning are a channel of their own; content may be null."""
    assert decode(b'{"choices":[{"index":0,"delta":{"reasoning_content":"th","content":null}}]}').reasoning == "th"
    chunk = decode(b'{"choices":[{"index":0,"delta":{"reasoning":"ink"}}]}')
    assert (chunk.reasoning, chunk.text) == ("ink", "")


def test_tool_calls_are_a_channel() -> None:
    chunk = decode(encoded(choices=[{"delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}}]))
    assert (chunk.tool, chunk.text) == ("f{}", "")


def test_b12_ids_with_empty_text() -> None:
    """B12: an id may come without text, and an empty list of ids is no token."""
    assert decode(b'{"choices":[{"text":"","token_ids":[]}]}').ids == ()
    assert decode(b'{"choices":[{"text":"","token_ids":[11]}]}').ids == (11,)
    assert decode(b'{"choices":[{"text":"","token_ids":null}]}').ids is None


@pytest.mark.parametrize("payload", [b"", b"{", b"[1,2]", b"42", b'{"choices":[{"text":1}]}', b"\xff\xfe", b"<html>", b"null"])
def test_what_cannot_be_read_is_said(payload: bytes) -> None:
    assert decode(payload).malformed


def test_two_choices_are_malformed() -> None:
    assert "n = 1" in (decode(encoded(choices=[{"text": "a"}, {"text": "b"}])).malformed or "")


@settings(max_examples=200)
@given(st.binary(max_size=80))
def test_decode_never_raises_on_bytes(payload: bytes) -> None:
    assert isinstance(decode(payload), Chunk)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["content", "top_logprobs", "logprob"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(["choices", "usage", "error", "object", "message", "code"]), JSON), JSON)
def test_decode_never_raises_on_json(event: dict[str, object], logprobs: object) -> None:
    assert isinstance(decode(json.dumps(event).encode()), Chunk)
    assert isinstance(decode(json.dumps({"choices": [{"text": "a", "logprobs": logprobs}]}).encode()), Chunk)


@pytest.mark.parametrize(
    ("name", "tokens", "cached"),
    [
        ("vllm_sse_completions.txt", 12, None),
        ("vllm_sse_chat.txt", 12, None),
        ("sglang_sse_completions.txt", 12, None),
        ("sglang_sse_chat.txt", 12, None),
        ("vllmcpp_sse_completions.txt", 12, None),
        ("vllmcpp_sse_chat.txt", 12, None),
        ("llamacpp_sse_completions.txt", 12, 0),
        ("llamacpp_sse_chat.txt", 12, 0),
    ],
)
def test_recorded_streams(name: str, tokens: int, cached: int | None) -> None:
    chunks = [decode(payload) for payload in events(name)]
    assert chunks[-1].done
    assert not [chunk for chunk in chunks if chunk.malformed or chunk.error]
    usage = [chunk for chunk in chunks if chunk.output_tokens is not None][-1]
    assert (usage.output_tokens, usage.cached_tokens) == (tokens, cached)
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["length"]
    assert "".join(chunk.text for chunk in chunks).strip()


def test_recorded_logprobs() -> None:
    chunks = [decode(payload) for payload in events("vllm_sse_completions_logprobs.txt")]
    best = [row[0] for chunk in chunks for row in chunk.top_logprobs]
    assert len(best) == 12
    assert best[0] == pytest.approx(-4.9967017)
    chat = decode(
        encoded(
            choices=[
                {"delta": {"content": "a"}, "logprobs": {"content": [{"top_logprobs": [{"logprob": -2}, {"logprob": -1}]}]}}
            ]
        )
    )
    assert chat.top_logprobs == ((-1.0, -2.0),)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vllm_err_too_long.json", "maximum context length is 8192"),
        ("sglang_err_too_long.json", "longer than the model's context"),
    ],
)
def test_recorded_error_bodies(name: str, words: str) -> None:
    chunk = decode((DATA / name).read_bytes().split(b"\n", 1)[1])
    assert words in (chunk.error or "")
    assert chunk.error_code == 400
