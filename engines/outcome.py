"""How a start ended, from exit code and log: refused in the engine's own words, died after it had started, not launched."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from evenhand.engines import log_text
from evenhand.engines.base import Exit
from evenhand.records import Refusal


class Pattern:
    """Words of a refusal with named groups: needed and available (GiB), seats, slots, depth, context, max_context."""

    def __init__(self, pattern: str) -> None:
        self.regex = re.compile(pattern)

    def read(self, line: str) -> Refusal | None:
        """The refusal in a line, figures parsed, words kept from where they begin."""
        match = self.regex.search(line)
        if match is None:
            return None
        groups = match.groupdict()

        def whole(name: str) -> int | None:
            return int(groups[name]) if groups.get(name) else None

        return Refusal(
            text=line[match.start() :].strip(),
            needed_bytes=log_text.gib(groups["needed"]) if groups.get("needed") else None,
            available_bytes=log_text.gib(groups["available"]) if groups.get("available") else None,
            slots_per_seat=whole("slots"),
            seats=whole("seats"),
            depth=whole("depth"),
            max_context_tokens=whole("max_context"),
        )


def find_refusal(log: str, refusals: Sequence[Pattern]) -> Refusal | None:
    """The first line that a pattern recognises; of several equal lines the first."""
    for pattern in refusals:
        for line in log.splitlines():
            found = pattern.read(line)
            if found is not None:
                return found
    joined = re.sub(r"\s*\n\s*", " ", log)  # words that the engine wrapped over several lines
    for pattern in refusals:
        match = pattern.regex.search(joined)
        if match is not None:
            return pattern.read(match[0])
    return None


def exit_words(code: int | None) -> str:
    """ "exit code 1", "signal 9 (SIGKILL)", or that there is none."""
    if code is None:
        return "no exit code"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def judge_exit(
    code: int | None,
    log: str,
    *,
    refusals: Sequence[Pattern],
    ready: str,
    wrappers: Sequence[str] = (),
    notes: Sequence[str] = (),
    causes: Sequence[str] = (),
) -> Exit:
    """Outcome and reason. Pure.

    `ready` are words a log holds once the server had started: then an end is a death, whatever the words. `wrappers` are words
    of exceptions that only pass on another one. `causes` are words of lines that name the cause without being exceptions.
    `notes` are sentences added to the reason: what an exit code does not mean.
    """
    log = log_text.clean(log)
    started = ready in log
    if started:
        log = log[log.rindex(ready) + len(ready) :].partition("\n")[2]
    errors = log_text.exceptions(log, wrappers)
    if not errors:
        errors = log_text.lines_with(log, causes)
    cause = next((line for line in errors if log_text.speaks_of_cache(line)), None) or next(iter(errors), None)
    words = exit_words(code)
    if started:
        return Exit(outcome="died", reason=_sentence(next(iter(errors), None) or log_text.last_line(log), words, notes))
    refusal = find_refusal(log, refusals)
    if refusal is None and code is not None and cause is not None and log_text.speaks_of_cache(cause):
        refusal = Refusal(text=cause)
    if refusal is not None:
        return Exit(outcome="refused", reason=_sentence(refusal.text, words, notes), refusal=refusal)
    return Exit(outcome="launch_failed", reason=_sentence(cause or log_text.last_line(log), words, notes))


def _sentence(cause: str | None, words: str, notes: Sequence[str]) -> str:
    return "; ".join([*([cause] if cause else ["the log says nothing"]), words, *notes])
