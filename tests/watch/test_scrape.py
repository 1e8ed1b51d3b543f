"""Counters over a cell, on the control path."""

import httpx
import pytest

from evenhand.engines.base import Gauge
from evenhand.watch.scrape import Scrape, delta, scrape

TOKENS = Gauge(name="generation_tokens", metrics=("sglang:generation_tokens",), kind="counter", meaning="")
RUNNING = Gauge(name="running", metrics=("r",), kind="gauge", meaning="")
GAUGES = [TOKENS, RUNNING]


def client(handler: object) -> httpx.Client:
    return httpx.Client(base_url="http://x", transport=httpx.MockTransport(handler))  # type: ignore[arg-type]


def ok(**values: float | None) -> Scrape:
    return Scrape(status="ok", values=dict(values))


def test_b39_the_counter_not_the_gauge_gives_the_rate() -> None:
    """sglang:gen_throughput stays at 140 for ever; 140 tokens in 4 s are 35 a second."""
    bodies = [
        b"sglang:gen_throughput 140\nsglang:generation_tokens_total %d\n" % count for count in (1000, 1140, 1140, 1140, 1140)
    ]
    first, *_, last = [
        scrape(client(lambda request, b=body: httpx.Response(200, content=b)), "/metrics", GAUGES) for body in bodies
    ]
    increase = delta(first, last, GAUGES).counters["generation_tokens"]
    assert increase is not None
    assert increase / 4 == 35
    assert "gen_throughput" not in first.values


def test_b48_rates_are_deltas_summed_over_engines() -> None:
    queries = Gauge(name="prefix_queries", metrics=("q",), kind="counter", meaning="")
    hits = Gauge(name="prefix_hits", metrics=("h",), kind="counter", meaning="")

    def at(q0: int, q1: int, h0: int, h1: int) -> Scrape:
        body = (
            f'q_total{{engine="0"}} {q0}\nq_total{{engine="1"}} {q1}\nh_total{{engine="0"}} {h0}\nh_total{{engine="1"}} {h1}\n'
        )
        return scrape(client(lambda request: httpx.Response(200, text=body)), "/metrics", [queries, hits])

    after_a, after_b = at(6000, 4000, 0, 0), at(12000, 8000, 5800, 4000)
    assert delta(at(0, 0, 0, 0), after_a, [queries, hits]).counters == {"prefix_queries": 10000, "prefix_hits": 0}
    assert delta(after_a, after_b, [queries, hits]).counters == {"prefix_queries": 10000, "prefix_hits": 9800}


@pytest.mark.parametrize("code", [404, 501, 500, 401])
def test_b42_unavailable_is_a_status_and_the_counters_are_null(code: int) -> None:
    reading = scrape(client(lambda request: httpx.Response(code)), "/metrics", GAUGES)
    assert reading.status == f"unavailable ({code})"
    assert reading.values == {}
    change = delta(reading, ok(generation_tokens=5), GAUGES)
    assert change.counters == {"generation_tokens": None}
    assert change.reason == f"metrics unavailable ({code}) before the cell"
    assert not change.restarted


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (httpx.ReadTimeout("x"), "timeout"),
        (httpx.RemoteProtocolError("x"), "truncated"),
        (httpx.ConnectError("x"), "failed (ConnectError)"),
    ],
)
def test_a_failing_server_is_a_status(error: Exception, status: str) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise error

    assert scrape(client(fail), "/metrics", GAUGES).status == status
    assert scrape(client(fail), None, GAUGES).status == "off"


def test_a_counter_that_went_backwards_is_a_restart() -> None:
    change = delta(ok(generation_tokens=100), ok(generation_tokens=40), GAUGES)
    assert change.restarted
    assert change.counters == {"generation_tokens": None}
    assert "generation_tokens" in (change.reason or "")


def test_one_engine_of_two_that_restarted_is_seen_although_the_sum_grew() -> None:
    before = Scrape(status="ok", values={"generation_tokens": 110}, by_engine={"generation_tokens": {"0": 100, "1": 10}})
    after = Scrape(status="ok", values={"generation_tokens": 205}, by_engine={"generation_tokens": {"0": 200, "1": 5}})
    assert delta(before, after, GAUGES).restarted


def test_an_absent_counter_is_null_not_zero() -> None:
    change = delta(ok(running=0), ok(running=0, generation_tokens=3), GAUGES)
    assert change.counters == {"generation_tokens": None}
    assert not change.restarted
