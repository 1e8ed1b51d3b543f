"""Request bodies of /v1/completions and /v1/chat/completions -> Ask; what is wrong with one is an ApiError."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from evenhand.engines.reference.vocabulary import Vocabulary

_NULL = msgspec.Raw(b"null")


class ApiError(Exception):
    """A request that is answered with an error; `kind` picks the dialect's words."""

    def __init__(self, kind: str, status: int, **facts: Any) -> None:
        super().__init__(kind)
        self.kind = kind
        self.status = status
        self.facts = facts


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Message(msgspec.Struct):
    role: str = "user"
    content: Any = ""


class _Body(msgspec.Struct):
    model: str | None = None
    prompt: msgspec.Raw = _NULL
    messages: list[_Message] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    logprobs: int | bool | None = None
    top_logprobs: int | None = None


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request, understood."""

    chat: bool
    model: str
    prompt: array[int]
    max_tokens: int
    stream: bool
    usage: bool
    usage_each: bool
    ids: bool
    logprobs: int
    """Candidates per token; 0: none asked."""
    ignore_eos: bool
    salt: bytes
    """What sampling adds to the prompt: nothing when it is greedy."""


_decode = msgspec.json.Decoder(_Body).decode
_ids = msgspec.json.Decoder(list[int]).decode
_any = msgspec.json.Decoder().decode


def read(raw: bytes, *, chat: bool, vocabulary: Vocabulary, default_model: str) -> Ask:
    """Decode a body. Raises ApiError."""
    try:
        body = _decode(raw)
    except msgspec.DecodeError as err:
        raise ApiError("body", 400, why=str(err)) from err
    if body.n not in (None, 1):
        raise ApiError("body", 400, why="n must be 1")
    prompt = _chat_prompt(body, vocabulary) if chat else _prompt(bytes(body.prompt), vocabulary)
    wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    options = body.stream_options
    top = int(body.logprobs or 0) if not chat else ((body.top_logprobs or 1) if body.logprobs else 0)
    sampled = (body.temperature if body.temperature is not None else 1.0) > 0
    return Ask(
        chat=chat,
        model=body.model or default_model,
        prompt=prompt,
        max_tokens=16 if wanted is None else wanted,
        stream=bool(body.stream),
        usage=bool(options and options.include_usage),
        usage_each=bool(options and options.continuous_usage_stats),
        ids=bool(body.return_token_ids),
        logprobs=top,
        ignore_eos=bool(body.ignore_eos),
        salt=((body.seed or 0) & (2**64 - 1)).to_bytes(8, "little") if sampled else b"",
    )


def _prompt(raw: bytes, vocabulary: Vocabulary) -> array[int]:
    try:
        if raw[:1] == b"[":
            if raw[1:].lstrip()[:1] in (b"[", b'"'):
                outer = _any(raw)
                if len(outer) != 1:
                    raise ApiError("body", 400, why=f"{len(outer)} prompts in one request")
                return vocabulary.encode(outer[0]) if isinstance(outer[0], str) else _checked(outer[0], vocabulary)
            return _checked(_ids(raw), vocabulary)
        found = _any(raw)
    except msgspec.DecodeError as err:
        raise ApiError("body", 400, why=str(err)) from err
    if not isinstance(found, str):
        raise ApiError("body", 400, why="prompt must be text or a list of token ids")
    return vocabulary.encode(found)


def _checked(ids: list[int], vocabulary: Vocabulary) -> array[int]:
    if not ids:
        raise ApiError("body", 400, why="prompt is empty")
    if min(ids) < 0 or max(ids) >= vocabulary.size:
        bad = next(token for token in ids if token < 0 or token >= vocabulary.size)
        raise ApiError("body", 400, why=f"Token id {bad} is out of vocabulary")
    return array("I", ids)


def _chat_prompt(body: _Body, vocabulary: Vocabulary) -> array[int]:
    if not body.messages:
        raise ApiError("body", 400, why="messages is empty")
    text = ""
    for message in body.messages:
        content = message.content
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        text += f"<|{message.role}|>\n{content}\n"
    return vocabulary.encode(text + "<|assistant|>\n")
