"""Readiness: the child itself listens, lists the model, and has generated a token. Nothing less counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from evenhand.boot.client import control_client
from evenhand.boot.log import one_line
from evenhand.boot.port import holder_names
from evenhand.engines.base import Dialect, Facts, Sampling

if TYPE_CHECKING:
    import httpx

POLL_S = 0.1
RETRY_S = 0.25
"""Between two attempts to generate a token."""
ASK_S = 2.0
"""Deadline of one cheap question."""
PROMPT = "Ready?"
"""Shorter than a cache block and unrelated to every workload, so it warms nothing that is measured."""


class StopFlag(Protocol):
    """Something that says that the run was asked to end."""

    def is_set(self) -> bool: ...

    def wait(self, seconds: float, /) -> bool: ...


class Waited(msgspec.Struct, frozen=True, kw_only=True):
    """How a wait for readiness ended."""

    how: str
    """ "ready", "exited", "fatal", "foreign", "wrong model", "deadline", "interrupted" """
    reason: str = ""
    exit_code: int | None = None
    completion_s: float | None = None
    """How long the first token took, with the engine cold."""


def wait_ready(
    url: str,
    served_name: str,
    facts: Facts,
    dialect: Dialect,
    *,
    limit_s: float,
    exit_code: Callable[[], int | None],
    fatal: Callable[[], str | None],
    listening: Callable[[], tuple[bool, set[int]]],
    stop: StopFlag | None = None,
    headers: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Waited:
    """Wait until the engine at `url` serves `served_name` and has generated a token, or until that cannot happen any more.

    `listening` tells whether somebody listens on the port and which listeners are not ours. An exit, fatal words in the log and
    a request to stop are noticed within POLL_S, also while a completion is open.
    """
    deadline = clock() + limit_s
    blocked = "nothing listens on its port"
    asked: _Completion | None = None
    failure: str | None = None
    retry_at = 0.0
    with control_client(url, ASK_S, headers=headers) as http:
        try:
            while True:
                if (code := exit_code()) is not None:
                    return Waited(how="exited", exit_code=code)
                if stop is not None and stop.is_set():
                    return Waited(how="interrupted", reason=f"interrupted while starting: {blocked}")
                if (words := fatal()) is not None:
                    return Waited(how="fatal", reason=one_line(words))
                anybody, others = listening()
                if others:
                    return Waited(how="foreign", reason=f"its port is also listened on by {holder_names(others)}")
                if asked is not None and asked.done():
                    if asked.problem is None:
                        return Waited(how="ready", completion_s=asked.seconds)
                    asked.close()
                    blocked = failure = f"a 1-token completion fails: {asked.problem}"
                    asked, retry_at = None, clock() + RETRY_S
                elif asked is None and anybody and clock() >= retry_at:
                    names = _served(facts, http)
                    if names is None:
                        blocked = f"{url} does not answer yet"
                    elif not names:
                        blocked = "it lists no model yet"
                    elif served_name not in names:
                        listed = ", ".join(repr(one_line(name, 100)) for name in names[:10])
                        return Waited(how="wrong model", reason=f"it does not serve {served_name!r}; it serves {listed}")
                    else:
                        blocked = failure or "a 1-token completion has not ended"
                        asked = _Completion(url, served_name, dialect, max(ASK_S, deadline - clock()), headers)
                elif not anybody:
                    blocked = "nothing listens on its port"
                if clock() >= deadline:
                    return Waited(how="deadline", reason=f"not ready after {limit_s:g} s: {blocked}")
                _pause(stop)
        finally:
            if asked is not None:
                asked.close()


def _pause(stop: StopFlag | None) -> None:
    if stop is None:
        time.sleep(POLL_S)
    else:
        stop.wait(POLL_S)


def _served(facts: Facts, http: httpx.Client) -> list[str] | None:
    """Names the server lists; None while it is not alive. Whatever the server sends, it is "not yet"."""
    try:
        return facts.served(http) if facts.alive(http) else None
    except Exception:
        return None


class _Completion:
    """One 1-token completion, asked in a thread of its own so that an exit is noticed meanwhile."""

    def __init__(self, url: str, model: str, dialect: Dialect, limit_s: float, headers: Mapping[str, str] | None) -> None:
        self.problem: str | None = "it did not end"
        self.seconds: float | None = None
        self._http = control_client(url, limit_s, 1 << 20, headers)
        self._thread = threading.Thread(target=self._run, args=(model, dialect), daemon=True)
        self._thread.start()

    def _run(self, model: str, dialect: Dialect) -> None:
        begin = time.monotonic()
        try:
            self.problem = ask_token(self._http, model, dialect)
        except Exception as error:
            self.problem = one_line(f"{type(error).__name__}: {error}", 200)
        self.seconds = time.monotonic() - begin

    def done(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        self._http.close()


def ask_token(http: httpx.Client, model: str, dialect: Dialect) -> str | None:
    """Generate one token; None when one came, else what came instead. Raises httpx.HTTPError."""
    post = dialect.request(PROMPT, Sampling(max_tokens=1), model)
    answer = http.post(post.path, json=post.body, headers=post.headers)
    if answer.status_code != 200:
        return one_line(f"HTTP {answer.status_code} {answer.text[:2000]}", 300)
    token = False
    for line in answer.content.splitlines():
        name, _, payload = line.partition(b":")
        if name != b"data" or not payload.strip():
            continue
        chunk = dialect.decode(payload.strip())
        if chunk.error is not None or chunk.malformed is not None:
            return one_line(chunk.error or chunk.malformed or "", 300)
        # a token may be empty text, and a build may send no ids: then its own count says that there was one
        token = token or bool(chunk.ids or chunk.text or chunk.reasoning or chunk.tool or chunk.output_tokens)
    return None if token else "it sent no token"
