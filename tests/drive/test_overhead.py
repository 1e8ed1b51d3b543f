"""The calibration server tells the truth and the tables say what was measured."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest

from evenhand.drive import overhead
from evenhand.drive.calibration import CalibrationDialect
from evenhand.drive.overhead import (
    Overhead,
    RungOverhead,
    SamplerEffect,
    Spread,
    as_markdown,
    calibration_server,
    measure_rung,
    spread,
)
from evenhand.drive.spread import pins, process_count
from evenhand.records import Lag


def test_a_rung_on_the_calibration_server(tmp_path: Path) -> None:
    log = tmp_path / "truth.jsonl"
    with calibration_server(0.001, 2, "--log", str(log)) as url:
        rung = measure_rung(url, 3, 0.001, per_write=2, tokens=7, laps=2)
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.request("GET", "/metrics")
        metrics = connection.getresponse().read().decode()
        connection.request("GET", "/v1/models")
        assert b'"id":"model"' in connection.getresponse().read()
        connection.close()
    assert rung.events == 6 * (7 + 2)  # tokens, usage and [DONE]
    assert rung.lag.max_in_flight == 3
    assert rung.stamp.p50_s is not None
    assert rung.ttft.p50_s is not None
    assert "vllm:generation_tokens_total" in metrics
    assert 'vllm:generation_tokens_total{engine="0"} 42' in metrics
    assert len(log.read_text().splitlines()) == 6


def test_the_dialect_reads_what_the_server_writes() -> None:
    dialect = CalibrationDialect()
    assert dialect.decode(b"[DONE]").done
    assert dialect.decode(b"{").malformed is not None
    found = dialect.decode(b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7}}')
    assert (found.prompt_tokens, found.output_tokens, found.ids) == (3, 7, ())


def test_spread_interpolates() -> None:
    assert spread([]) == Spread(None, None, None)
    assert spread([1e9, 3e9]) == Spread(2.0, pytest.approx(2.98), 3.0)


def rung(**fields: float) -> RungOverhead:
    return RungOverhead(
        concurrency=32,
        per_write=1,
        events=9792,
        events_per_s=3200.0,
        stamp=Spread(3e-6, 44e-6, 91e-6),
        own=Spread(300e-6, 700e-6, None),
        ttft=Spread(8e-6, 24e-6, 30e-6),
        load_over_ideal=0.001,
        lag=Lag(stamp="kernel", events=9792, coalesced=98, cpu_per_event_s=11.5e-6, turnaround_p50_s=0.00073),
    )


def test_the_table() -> None:
    effect = SamplerEffect(
        rounds=3,
        own_lag_p50_s={"off": 385e-6, "on": 371e-6, "on x10": 368e-6},
        stamp_p99_s={"off": 56e-6, "on": 56e-6, "on x10": 50e-6},
        ratio={"on": 0.96, "on x10": 0.95, "off again": 1.02},
        jitter_p99_s=470e-6,
        jitter_full_p99_s=95e-6,
        scrape_p50_s=None,
    )
    text = as_markdown(Overhead(rungs=[rung()], held=[], held_events_per_s=256_000.0, sampler=effect))
    assert "| 32 | 9,792 | 3 / 44 / 91 | 300 / 700 / - | 8 / 24 | 11.5 | 0.73 | 1.0% | +0.1% |" in text
    assert "| on | 371 | 0.96 | 56 |" in text
    assert "470 us, 95 us with the client's core full" in text
    assert "256,000 events/s" in text
    assert "Stamps: kernel." in text


def test_the_rate_search_ends_at_the_first_rate_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec

    over = iter([0.0, 0.01, 0.2])
    monkeypatch.setattr(
        overhead, "measure_rung", lambda *args, **fields: msgspec.structs.replace(rung(), load_over_ideal=next(over))
    )
    monkeypatch.setattr(overhead, "_SERVER", ("sh", "-c", "echo 1; cat"))
    tried, best = overhead.measure_held(lambda line: None)
    assert len(tried) == 3
    assert best == pytest.approx(64_000)


@pytest.mark.parametrize(
    ("asked", "concurrency", "cores", "count"),
    [
        ("auto", 32, 64, 1),
        ("auto", 128, 64, 1),
        ("auto", 129, 64, 2),
        ("auto", 4096, 8, 4),
        ("auto", 512, 2, 1),
        (3, 2, 1, 2),
        (0, 9, 4, 1),
    ],
)
def test_processes(asked: int | str, concurrency: int, cores: int, count: int) -> None:
    assert process_count(asked, concurrency, cores) == count


def test_pins_only_where_cores_are_left() -> None:
    assert pins(2, [0, 1, 2, 3]) == [None, None]
    assert pins(1, [0, 1, 2, 3]) == [None]
    assert pins(2, [0, 1, 2, 3, 4, 5]) == [4, 5]
