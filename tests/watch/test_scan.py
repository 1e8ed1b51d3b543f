"""The byte scan against prometheus_client and against what people met in the field."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client import Gauge as PromGauge
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from evenhand.engines.base import Gauge
from evenhand.watch.scan import find, scan


def gauge(name: str, *metrics: str, **more: Any) -> Gauge:
    return Gauge(name=name, metrics=metrics, kind="gauge", meaning="", **more)


def counter(name: str, *metrics: str, **more: Any) -> Gauge:
    return Gauge(name=name, metrics=metrics, kind="counter", meaning="", **more)


USAGE = gauge("usage", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", pool="pooled", low=0.0, high=1.0)
RUNNING = gauge("running", "vllm:num_requests_running")


def test_b29_series_that_differ_in_pid_are_one_gauge() -> None:
    body = (
        b"# TYPE vllm:kv_cache_usage_perc gauge\n"
        b'vllm:kv_cache_usage_perc{engine="0",model_name="toy",pid="11"} 0.0\n'
        b'vllm:kv_cache_usage_perc{engine="0",model_name="toy",pid="12"} 0.62\n'
        b'vllm:kv_cache_usage_perc{engine="0",model_name="toy",pid="13"} 0.0'
    )
    found = scan(body, [USAGE])
    assert found.values == {"usage": 0.62}
    assert found.flags == ["duplicate_series=3"]
    assert found.by_engine == {}


def test_counters_are_added_over_processes() -> None:
    body = b'p_total{engine="0",pid="1"} 3\np_total{engine="0",pid="2"} 4\n'
    assert scan(body, [counter("prompt_tokens", "p_total")]).values == {"prompt_tokens": 7}


B30 = (
    b'vllm:num_requests_running{engine="0",model_name="toy"} 30\n'
    b'vllm:num_requests_running{engine="1",model_name="toy"} 5\n'
    b'vllm:kv_cache_usage_perc{engine="0",model_name="toy"} 0.90\n'
    b'vllm:kv_cache_usage_perc{engine="1",model_name="toy"} 0.10\n'
)


def test_b30_engines_are_kept_apart_and_pooled_by_size() -> None:
    found = scan(B30, [USAGE, RUNNING], sizes={"0": 1000, "1": 3000})
    assert found.values["running"] == 35
    assert found.values["usage"] == pytest.approx(0.30)
    assert found.by_engine["usage"] == {"0": 0.90, "1": 0.10}
    assert max(found.by_engine["usage"].values()) == 0.90


def test_b30_without_sizes_the_worst_engine_speaks_and_says_so() -> None:
    found = scan(B30, [USAGE])
    assert found.values["usage"] == 0.90
    assert "unweighted:usage" in found.flags


@pytest.mark.parametrize(
    ("body", "value", "source"),
    [
        (b'vllm:gpu_cache_usage_perc{engine="0"} 0.4\n', 0.4, "vllm:gpu_cache_usage_perc"),
        (
            b'vllm:gpu_cache_usage_perc{engine="0"} 0.4\nvllm:kv_cache_usage_perc{engine="0"} 0.4\n',
            0.4,
            "vllm:kv_cache_usage_perc",
        ),
        (b'vllm:num_requests_running{engine="0"} 3\n', None, None),
    ],
)
def test_b33_renamed_gauge_counts_once_and_a_missing_one_is_null(body: bytes, value: float | None, source: str | None) -> None:
    found = scan(body, [USAGE])
    assert found.values == {"usage": value}
    assert found.sources.get("usage") == source
    assert ("source:usage=vllm:gpu_cache_usage_perc" in found.flags) == (source == "vllm:gpu_cache_usage_perc")


def test_b34_out_of_range_is_flagged_kept_raw_and_left_out() -> None:
    body = b"".join(b'vllm:kv_cache_usage_perc{engine="%d"} %s\n' % (n, v) for n, v in enumerate([b"0.87", b"1.04", b"87"]))
    found = scan(body, [USAGE])
    assert found.values["usage"] == 0.87
    assert found.by_engine["usage"] == {"0": 0.87, "1": 1.04, "2": 87.0}
    assert "out_of_range:usage" in found.flags
    alone = scan(b"vllm:kv_cache_usage_perc 87\n", [USAGE])
    assert alone.values["usage"] is None
    assert alone.by_engine["usage"] == {"": 87.0}


def test_a_sum_that_lacks_a_term_is_no_sum() -> None:
    found = scan(b'vllm:num_requests_running{engine="0"} 30\nvllm:num_requests_running{engine="1"} NaN\n', [RUNNING])
    assert found.values["running"] is None
    assert found.flags == ["nonfinite:running"]


B35 = b'# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total{engine="0"} 7.0 # {trace_id="q"} 1.0\n# EOF\n'


def test_b35_exemplar_is_no_timestamp_and_a_missing_eof_is_truncation() -> None:
    wanted = [counter("generation_tokens", "vllm:generation_tokens")]
    kind = "application/openmetrics-text; version=1.0.0"
    assert scan(B35, wanted, kind).values == {"generation_tokens": 7.0}
    cut = scan(B35.removesuffix(b"# EOF\n"), wanted, kind)
    assert cut.status == "truncated"
    assert cut.values == {"generation_tokens": None}


@pytest.mark.parametrize("suffix", [True, False])
@pytest.mark.parametrize("spelling", ["vllm:prompt_tokens", "vllm:prompt_tokens_total"])
def test_b36_names_match_whole(suffix: bool, spelling: str) -> None:
    if suffix:
        body = (
            b"# TYPE vllm:prompt_tokens counter\n"
            b'vllm:prompt_tokens_total{engine="0"} 1200\n'
            b"# TYPE vllm:prompt_tokens_created gauge\n"
            b'vllm:prompt_tokens_created{engine="0"} 1.75e+09\n'
            b"# TYPE vllm:prompt_tokens_cached counter\n"
            b'vllm:prompt_tokens_cached_total{engine="0"} 800\n'
        )
    else:
        body = b'vllm:prompt_tokens{engine="0"} 1200\nvllm:prompt_tokens_cached{engine="0"} 800\n'
    wanted = [counter("prompt_tokens", spelling), counter("cached_prompt_tokens", spelling.replace("tokens", "tokens_cached"))]
    assert scan(body, wanted).values == {"prompt_tokens": 1200, "cached_prompt_tokens": 800}


@pytest.mark.parametrize("order", list(itertools.permutations([b"NaN", b"0.2", b"+Inf", b"0.6"])))
def test_b46_a_value_that_is_not_finite_never_reaches_a_row(order: tuple[bytes, ...]) -> None:
    rows = [scan(b"vllm:kv_cache_usage_perc " + value + b"\n", [USAGE]) for value in order]
    kept = [row.values["usage"] for row in rows if row.values["usage"] is not None]
    assert max(kept) == 0.6
    assert sum(kept) / len(kept) == pytest.approx(0.4)
    assert len(kept) == 2
    assert sum("nonfinite:usage" in row.flags for row in rows) == 2


def test_label_filter_scale_and_extra_labels() -> None:
    body = b's{source="a",k="1"} 10\ns{source="a",k="2"} 5\ns{source="b"} 99\n'
    assert scan(body, [counter("x", "s", labels={"source": "a"}, scale=0.5)]).values == {"x": 7.5}


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        (b'm{a="x\\"}\\\\\\n y",b="{,}"} 1 1700000000000', {"a": 'x"}\\\n y', "b": "{,}"}, 1.0),
        (b'm{ a = "1" , } +Inf', {"a": "1"}, math.inf),
        (b"m\t-2.5e-3\r", {}, -0.0025),
        (b"m{} 3", {}, 3.0),
        (b'  m {a="\xff"} 1', {"a": "\ufffd"}, 1.0),
    ],
)
def test_lines(line: bytes, labels: dict[str, str], value: float) -> None:
    assert list(find(b"# HELP m words m 1\n" + line + b"\nmm 4\n", "m")) == [(labels, value)]


@pytest.mark.parametrize("line", [b"m", b"m ", b'm{a="1" 3', b'm{a="1}', b"m x", b"m 1_0", b"m{a=1} 3", b"m 0x10", b"m{"])
def test_malformed_lines_are_flagged_and_never_a_figure(line: bytes) -> None:
    found = scan(line + b"\n", [gauge("x", "m")])
    assert found.values == {"x": None}
    assert found.flags in (["malformed:x"], [])
    assert found.flags or line == b"m"


LABEL_VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FINITE = st.floats(allow_nan=False) | st.integers(-(10**9), 10**9).map(float)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(LABEL_VALUES, st.sampled_from(["0", "1"]), FINITE), max_size=6, unique_by=lambda row: row[:2]),
    st.lists(st.tuples(LABEL_VALUES, st.floats(0, 1e12)), max_size=4, unique_by=lambda row: row[0]),
    st.booleans(),
)
def test_scan_reads_what_the_parser_reads(
    gauges: list[tuple[str, str, float]], counts: list[tuple[str, float]], modern: bool
) -> None:
    registry = CollectorRegistry()
    first = PromGauge("e_use", "help e_use 1", ["text", "engine"], registry=registry)
    PromGauge("e_use_more", "longer name", registry=registry).set(5)
    second = Counter("e_done", "help", ["text"], registry=registry)
    for text, engine, value in gauges:
        first.labels(text, engine).set(value)
    for text, value in counts:
        second.labels(text).inc(value)
    body = openmetrics.generate_latest(registry) if modern else generate_latest(registry)
    parse = parse_openmetrics if modern else parse_classic
    wanted: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parse(body.decode()):
        for sample in family.samples:
            wanted.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    for name in ("e_use", "e_use_more", "e_done_total", "e_done_created"):
        assert [tuple(series) for series in find(body, name) if series] == wanted.get(name, [])
    kind = "application/openmetrics-text" if modern else "text/plain"
    assert scan(body, [counter("done", "e_done")], kind).values["done"] == (sum(v for _, v in counts) if counts else None)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from([b"m", b"m_total", b"{", b"}", b'"', b"\\", b"a=", b",", b" ", b"\n", b"1", b"NaN", b"#", b"\xff"]),
        max_size=30,
    ),
    st.binary(max_size=20),
)
def test_scan_takes_any_bytes(parts: list[bytes], junk: bytes) -> None:
    found = scan(b"".join(parts) + junk, [gauge("g", "m"), counter("c", "m", pool="max")])
    assert set(found.values) == {"g", "c"}
    assert all(value is None or math.isfinite(value) for value in found.values.values())
