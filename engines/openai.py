"""The OpenAI completions dialect that every engine speaks: requests with everything literal, events decoded without raising.

Sampling parameters are all sent, zeros included: an engine fills what is left out from the checkpoint's generation config.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from evenhand.engines.base import Chunk, EngineError, Post, Sampling

NO_RAW = msgspec.Raw(b"null")

NEUTRAL_EXTRAS: dict[str, Any] = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Extensions that vLLM, SGLang and vllm.cpp share, at the values that change nothing."""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: msgspec.Raw = NO_RAW


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    accepted_prediction_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = NO_RAW
    object: str | None = None
    message: msgspec.Raw = NO_RAW
    code: msgspec.Raw = NO_RAW


_EVENT = msgspec.json.Decoder(_Event)
_ANY = msgspec.json.Decoder()


class OpenAIDialect:
    """`/v1/completions` with ids or text.

    `takes_ids`: whether prompts may be ids. `returns_ids`: whether the build returns token ids; then they are asked for.
    `extras` are constant members of the body (None: NEUTRAL_EXTRAS), `logprob_extras` join them in replays.
    """

    def __init__(
        self,
        *,
        returns_ids: bool,
        takes_ids: bool = True,
        extras: Mapping[str, Any] | None = None,
        logprob_extras: Mapping[str, Any] | None = None,
        path: str = "/v1/completions",
    ) -> None:
        self.returns_ids = returns_ids
        self.takes_ids = takes_ids
        self._extras = dict(NEUTRAL_EXTRAS if extras is None else extras)
        self._logprob_extras = dict(logprob_extras or {})
        self._path = path

    def request(self, prompt: Sequence[int] | str, sampling: Sampling, model: str, *, stream: bool = True) -> Post:
        """Prompt ids or text -> POST. Pure. Raises EngineError for ids where the engine takes text only."""
        if not (self.takes_ids or isinstance(prompt, str)):
            raise EngineError("this engine takes prompts as text only: send the prompt's text instead of its token ids.")
        body: dict[str, Any] = {
            "model": model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "n": sampling.n,
            "seed": sampling.seed,
            "max_tokens": sampling.max_tokens,
            "ignore_eos": sampling.ignore_eos,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            **self._extras,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        if self.returns_ids:
            body["return_token_ids"] = True
        if sampling.logprobs is not None:
            body["logprobs"] = sampling.logprobs
            body.update(self._logprob_extras)
        return Post(path=self._path, body=body)

    def decode(self, payload: bytes) -> Chunk:
        """One SSE data payload, or the body of an unstreamed answer -> Chunk. Pure; never raises."""
        return decode(payload)


def decode(payload: bytes) -> Chunk:
    """One `data:` payload -> Chunk; what cannot be read is said in `malformed`, never raised."""
    if payload.strip() == b"[DONE]":
        return Chunk(done=True)
    try:
        event = _EVENT.decode(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return _unreadable(payload, str(error))
    if event.error is not NO_RAW or event.object == "error":
        failed = _error(event)
        if failed is not None:
            return failed
    try:
        return _chunk(event)
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError, AttributeError, ValueError) as error:
        return Chunk(malformed=f"cannot read the event's log-probabilities: {error}")


def _chunk(event: _Event) -> Chunk:
    usage = event.usage
    prompt = output = cached = accepted = None
    if usage is not None:
        prompt, output = usage.prompt_tokens, usage.completion_tokens
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
        accepted = usage.completion_tokens_details.accepted_prediction_tokens if usage.completion_tokens_details else None
    choices = event.choices
    if not choices:
        return Chunk(prompt_tokens=prompt, output_tokens=output, cached_tokens=cached, accepted_tokens=accepted)
    if len(choices) > 1:
        return Chunk(malformed=f"{len(choices)} choices in one event, although n = 1 was asked")
    choice = choices[0]
    text, reasoning, tool = choice.text or "", "", ""
    delta = choice.delta or choice.message
    if delta is not None:
        text = delta.content or text
        reasoning = delta.reasoning_content or delta.reasoning or ""
        if delta.tool_calls:
            tool = "".join(_tool(call) for call in delta.tool_calls)
    return Chunk(
        ids=None if choice.token_ids is None else tuple(choice.token_ids),
        text=text,
        reasoning=reasoning,
        tool=tool,
        finish_reason=choice.finish_reason,
        prompt_tokens=prompt,
        output_tokens=output,
        cached_tokens=cached,
        accepted_tokens=accepted,
        top_logprobs=() if choice.logprobs is NO_RAW else _logprobs(choice.logprobs),
    )


def _tool(call: _ToolCall) -> str:
    return "" if call.function is None else (call.function.name or "") + (call.function.arguments or "")


def _logprobs(raw: msgspec.Raw) -> tuple[tuple[float, ...], ...]:
    """Log-probabilities of the best candidates per token, best first: completions' `top_logprobs` or chat's `content`."""
    found = _ANY.decode(raw)
    if not found:
        return ()
    if found.get("content") is not None:
        rows = [[entry.get("logprob") for entry in token.get("top_logprobs") or [token]] for token in found["content"]]
    else:
        rows = [list((row or {}).values()) for row in found.get("top_logprobs") or []]
    return tuple(tuple(sorted((float(value) for value in row if value is not None), reverse=True)) for row in rows)


def _error(event: _Event) -> Chunk | None:
    """The event's error, whether an object, a plain string or SGLang's flat form; None when `error` is null."""
    found = _ANY.decode(event.error) if event.error is not NO_RAW else None
    if found is None:
        if event.object != "error":
            return None
        found = {"message": _ANY.decode(event.message), "code": _ANY.decode(event.code)}
    if isinstance(found, dict):
        message, code = found.get("message"), found.get("code")
        text = message if isinstance(message, str) and message else json.dumps(found)
        return Chunk(error=text, error_code=_code(code))
    return Chunk(error=found if isinstance(found, str) else json.dumps(found))


def _code(code: object) -> int | None:
    if isinstance(code, bool):
        return None
    if isinstance(code, int):
        return code
    return int(code) if isinstance(code, str) and code.isdigit() else None


def _unreadable(payload: bytes, why: str) -> Chunk:
    """An event that is not the expected JSON: a bare string is an error's text, everything else is malformed."""
    try:
        found = _ANY.decode(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        found = None
    if isinstance(found, str):
        return Chunk(error=found)
    return Chunk(malformed=f"cannot read the event: {why}; it begins with {payload[:80].decode('utf-8', 'replace')!r}")
