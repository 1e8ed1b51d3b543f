"""Quantiles, for what measures and what judges alike."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """Linear interpolation (Hyndman and Fan type 7) in sorted values, kept within [min, max]; None for nothing."""
    if not ordered:
        return None
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    value = ordered[low] + (ordered[high] - ordered[low]) * (position - low)
    return min(max(value, ordered[0]), ordered[-1])
