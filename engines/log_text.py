"""Reading an engine's log: control characters out, exceptions found, sizes in bytes. Pure functions of text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

GIB = 2**30

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_EXCEPTION = re.compile(r"(?:^|\s)((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt)): (\S.*)$")
_QUIET = re.compile(r"\b(?:WARNING|INFO|DEBUG)\b|Ignore import error|FutureWarning|UserWarning")
_CACHE_WORDS = re.compile(
    r"\b(?:cache|memory|blocks?|state|pool)\b.*?(?:larger than|needs more|not enough|insufficient|too small|exceeds|less than)"
    r"|(?:needs more|not enough|insufficient|larger than|exceeds).*?\b(?:cache|memory|blocks?|state|pool)\b",
    re.IGNORECASE,
)


def clean(text: str) -> str:
    """Text without colour codes and control characters (line ends and tabs stay)."""
    return _CONTROL.sub("", _ANSI.sub("", text.replace("\r", "\n")))


def gib(figure: str) -> int:
    """ "43.40" GiB -> bytes, rounded to a whole byte."""
    return round(float(figure) * GIB)


def exceptions(log: str, wrappers: Sequence[str] = ()) -> list[str]:
    """ "Type: words" of every exception in the log, in order, without repeats and without those that hold a wrapper's words.

    Warnings that print an exception are left out.
    """
    found: dict[str, None] = {}
    for line in log.splitlines():
        if _QUIET.search(line):
            continue
        match = _EXCEPTION.search(line)
        if match and not any(words in line for words in wrappers):
            found.setdefault(f"{match[1]}: {match[2].strip()}")
    return list(found)


def lines_with(log: str, words: Iterable[str]) -> list[str]:
    """Lines that hold any of the words, stripped."""
    wanted = tuple(words)
    return [line.strip() for line in log.splitlines() if any(word in line for word in wanted)]


def last_line(log: str) -> str | None:
    """The last line that is not blank."""
    return next((line.strip() for line in reversed(log.splitlines()) if line.strip()), None)


def speaks_of_cache(line: str) -> bool:
    """Whether an error is about too little cache or memory, in whatever words."""
    return _CACHE_WORDS.search(line) is not None


def number(pattern: str, log: str) -> float | None:
    """The figure (first group, thousands separators allowed) of the pattern's last match; None when it never matches."""
    matches = re.findall(pattern, log)
    if not matches:
        return None
    figure = matches[-1][0] if isinstance(matches[-1], tuple) else matches[-1]
    return float(figure.replace(",", ""))


def numbers(patterns: Mapping[str, str], log: str) -> dict[str, float]:
    """`number` for each of the named patterns; those that never match are left out."""
    found = {name: number(pattern, log) for name, pattern in patterns.items()}
    return {name: value for name, value in found.items() if value is not None}
