"""What a dialect supplies, and what they all share: event framing in the form of vLLM's, logprobs, model listing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from evenhand.engines.reference.config import EngineConfig, Flag
from evenhand.engines.reference.options import Options
from evenhand.engines.reference.resolve import Defaults, Refused, Setup

if TYPE_CHECKING:
    from evenhand.engines.reference.api import ApiError, Ask
    from evenhand.engines.reference.server import Server

encode = msgspec.json.encode
Answer = tuple[int, bytes, str]
"""status, body, content type"""
Route = Callable[["Server"], Answer]


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """An end before serving: lines for stderr and the exit code (137: killed by itself)."""

    lines: list[str]
    exit_code: int


class Frame:
    """Bytes of one request's answer; subclasses know member names and their order."""

    def __init__(self, ask: Ask, name: str, created: int, model: str) -> None:
        self.ask = ask
        self.name = name
        self.created = created
        self.model = model
        self.first = True

    def head(self) -> bytes:
        """Event before the first token; empty when there is none."""
        return b""

    def event(
        self, text: bytes, ids: list[int] | None, finish: str | None, usage: bytes | None, logprobs: bytes | None
    ) -> bytes:
        """One event. `text` is JSON-escaped, without quotes."""
        raise NotImplementedError

    def usage_event(self, usage: bytes) -> bytes:
        raise NotImplementedError

    def usage(self, prompt: int, output: int, cached: int) -> bytes:
        raise NotImplementedError

    def whole(self, text: bytes, ids: list[int] | None, finish: str, usage: bytes, logprobs: bytes | None) -> bytes:
        raise NotImplementedError

    def error(self, message: str) -> bytes:
        """Error object in a stream that began with 200, or of a 500."""
        return encode({"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}})

    def logprobs(self, rows: list[tuple[str, float, str, float]], wanted: int, offset: int) -> bytes:
        """(token, log-probability, second candidate, its log-probability) per token, in the endpoint's form."""
        if self.ask.chat:
            content = []
            for token, best, other, second in rows:
                top = [
                    {"token": t, "logprob": p, "bytes": list(t.encode())} for t, p in ((token, best), (other, second))[:wanted]
                ]
                content.append({"token": token, "logprob": best, "bytes": list(token.encode()), "top_logprobs": top})
            return encode({"content": content})
        offsets, at = [], offset
        for row in rows:
            offsets.append(at)
            at += len(row[0])
        return encode(
            {
                "text_offset": offsets,
                "token_logprobs": [row[1] for row in rows],
                "tokens": [row[0] for row in rows],
                "top_logprobs": [dict(((row[0], row[1]), (row[2], row[3]))[:wanted]) for row in rows],
            }
        )

    def merge_logprobs(self, parts: list[bytes]) -> bytes:
        """Logprobs of a whole answer."""
        merged: dict[str, list[Any]] = {}
        for part in parts:
            for key, values in msgspec.json.decode(part).items():
                merged.setdefault(key, []).extend(values)
        return encode(merged)


def id_list(ids: list[int] | None) -> bytes:
    """JSON list of ids; null for None."""
    if ids is None:
        return b"null"
    if len(ids) == 1:
        return b"[%d]" % ids[0]
    return b"[" + b",".join([b"%d" % token for token in ids]) + b"]"


class Dialect:
    """One engine's manners."""

    name = ""
    program = ""
    version = ""
    defaults: Defaults
    any_model = False
    """Any model name is served."""
    checks_length = True

    def flags(self, options: Options) -> Mapping[str, Flag]:
        raise NotImplementedError

    def config(self, values: dict[str, Any], options: Options, env: Mapping[str, str]) -> EngineConfig:
        """Flag values -> EngineConfig."""
        return msgspec.convert({**values, "options": options}, EngineConfig)

    def longest(self, setup: Setup) -> int:
        """Longest prompt + output that is not turned away, tokens."""
        return setup.rules.context

    def usage_error(self, argument: str, text: str) -> Words:
        """An argument that is not known."""
        raise NotImplementedError

    def refusal(self, refused: Refused, setup: EngineConfig) -> Words:
        """Why it will not start."""
        raise NotImplementedError

    def boot_lines(self, setup: Setup, pid: int) -> list[str]:
        """Log lines of a start that works, before it listens."""
        raise NotImplementedError

    def ready_lines(self, setup: Setup, pid: int) -> list[str]:
        """Log lines once it listens."""
        raise NotImplementedError

    def bind_failed(self, setup: Setup) -> Words:
        place = f"('{setup.config.host}', {setup.config.port})"
        return Words(lines=[f"[Errno 98] error while attempting to bind on address {place}: in use"], exit_code=1)

    def frame(self, ask: Ask, number: int, created: int, model: str, server: Server) -> Frame:
        raise NotImplementedError

    def error(self, error: ApiError, server: Server) -> Answer:
        """A refused request."""
        raise NotImplementedError

    def engine_dead(self, server: Server, message: str) -> Answer:
        """A request to a dead engine."""
        return 500, encode({"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}}), JSON

    def dead_lines(self, message: str) -> list[str]:
        """What the log says when the engine dies."""
        return [f"ERROR {message}"]

    def routes(self) -> Mapping[tuple[str, str], Route]:
        raise NotImplementedError


JSON = "application/json"
TEXT = "text/plain; version=0.0.4; charset=utf-8"


def words(kind: str, facts: Mapping[str, Any]) -> str:
    """Plain words for errors that have no dialect of their own."""
    return str(facts.get("why", kind))
