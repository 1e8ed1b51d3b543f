"""Short forms of Gauge for the adapters' tables."""

from __future__ import annotations

from evenhand.engines.base import Gauge


def gauge(name: str, meaning: str, *metrics: str) -> Gauge:
    """A count that is never negative, summed over engines; metric names newest first."""
    return Gauge(name=name, metrics=metrics, kind="gauge", meaning=meaning, low=0.0)


def share(name: str, meaning: str, *metrics: str) -> Gauge:
    """A share 0..1, pooled by size over engines."""
    return Gauge(name=name, metrics=metrics, kind="gauge", meaning=meaning, pool="pooled", low=0.0, high=1.0)


def counter(name: str, meaning: str, *metrics: str) -> Gauge:
    """A counter, summed over engines and other labels."""
    return Gauge(name=name, metrics=metrics, kind="counter", meaning=meaning)
