"""Sizes as people write and read them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def parse_bytes(text: int | str) -> int:
    """Bytes from a number or a text such as "14.625 GiB". Raises ValueError."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].lower() not in _UNITS:
        raise ValueError(f'{text!r} is no size; write bytes, or a text such as "14.625 GiB"')
    return round(float(match[1]) * _UNITS[match[2].lower()])


def gib(value: int | float | None) -> str:
    """Bytes as GiB with two decimals, "-" for null."""
    return "-" if value is None else f"{value / (1 << 30):.2f}"
