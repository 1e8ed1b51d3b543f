"""The little of an exposition that an adapter reads by itself: the labels of an info series, the value of a gauge. Pure."""

from __future__ import annotations

import re

_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


def _series(text: str, name: str) -> list[tuple[dict[str, str], str]]:
    found = []
    for line in text.splitlines():
        if not line.startswith(name):
            continue
        rest = line[len(name) :]
        labels: dict[str, str] = {}
        if rest.startswith("{"):
            end = rest.rfind("}")
            if end < 0:
                continue
            labels = {key: _ESCAPE.sub(_unescape, value) for key, value in _LABEL.findall(rest[1:end])}
            rest = rest[end + 1 :]
        elif not rest.startswith(" "):
            continue
        fields = rest.split()
        if fields:
            found.append((labels, fields[0]))
    return found


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def info(text: str, name: str) -> list[dict[str, str]]:
    """Labels of every series called `name`, such as vllm:cache_config_info."""
    return [labels for labels, _ in _series(text, name)]


def values(text: str, name: str) -> list[float]:
    """Values of every series called `name`; what is no number is left out."""
    found = []
    for _, value in _series(text, name):
        try:
            found.append(float(value))
        except ValueError:
            continue
    return found


def by_label(text: str, name: str, label: str) -> dict[str, float]:
    """Values of a gauge by one of its labels ("" without it); of series that differ in others only, the largest."""
    found: dict[str, float] = {}
    for labels, value in _series(text, name):
        if (figure := real(value)) is not None:
            key = labels.get(label, "")
            found[key] = max(figure, found.get(key, figure))
    return found


def has(text: str, prefix: str) -> bool:
    """Whether any series' name begins with `prefix`, such as "sglang:"."""
    return any(line.startswith(prefix) for line in text.splitlines())


def integer(label: str | None) -> int | None:
    """A label such as "900", "16.0" or "None" as an integer; None where it is none."""
    if label is None:
        return None
    try:
        return int(float(label))
    except (ValueError, OverflowError):
        return None


def real(label: str | None) -> float | None:
    """A label as a figure; None where it is none."""
    try:
        return None if label is None else float(label)
    except ValueError:
        return None
