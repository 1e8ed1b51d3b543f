"""The sampler's process against servers that behave, are slow, refuse, send junk or never answer."""

import gzip
import http.server
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evenhand.engines.base import Gauge
from evenhand.records import SampleRow
from evenhand.store import StoreError
from evenhand.watch.child import Grid
from evenhand.watch.fetch import Fetcher
from evenhand.watch.sampler import Sampler, SamplerReport, _Stamp, report, whole_lines

MetricsServer = Any
"""The fixture's class lives in conftest.py."""


def send(handler: http.server.BaseHTTPRequestHandler, body: bytes, code: int = 200, kind: str = "text/plain") -> None:
    """A whole answer in one write."""
    head = f"HTTP/1.1 {code} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    handler.wfile.write(head.encode() + body)


USAGE = Gauge(name="usage", metrics=("g",), kind="gauge", meaning="", low=0, high=1)
LOST = Gauge(name="waiting", metrics=("lost",), kind="gauge", meaning="")


def rows(folder: Path) -> list[SampleRow]:
    path = folder / "samples.jsonl"
    return [msgspec.json.decode(line, type=SampleRow) for line in whole_lines(path.read_bytes())] if path.exists() else []


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.005)


def sampled(server: MetricsServer, folder: Path, count: int, interval_s: float = 0.02, **more: Any) -> SamplerReport:
    """Sample until `count` rows are there."""
    with Sampler(3, server.url, [USAGE, LOST], "/metrics", interval_s, folder, nvml="off", **more) as sampler:
        until(lambda: len(rows(folder)) >= count, f"{count} rows")
    return sampler.stop()


def test_rows_raw_bodies_and_one_kept_connection(server: MetricsServer, tmp_path: Path) -> None:
    server.answer = lambda handler, n: send(handler, b"# c\ng 0.5\n")
    with Sampler(3, server.url + "/", [USAGE, LOST], "metrics", 0.02, tmp_path, nvml="off") as sampler:
        assert sampler.latest() is None or sampler.latest()
        until(lambda: len(rows(tmp_path)) >= 5, "five rows")
        latest = sampler.latest()
    assert latest is not None
    assert latest["values"] == {"usage": 0.5, "waiting": None}
    result = sampler.stop()
    assert result is sampler.stop()
    assert (result.status, result.failed, result.absent) == ("ok", 0, ["waiting"])
    assert result.samples >= 5
    assert server.connections == 1
    assert server.peak == 1
    stored = rows(tmp_path)
    assert all(row.leg == 3 and row.due_ns <= row.start_ns <= (row.first_byte_ns or 0) <= row.end_ns for row in stored)
    assert all((row.due_ns - stored[0].due_ns) % 20_000_000 == 0 for row in stored), "deadlines are absolute"
    raw = [json.loads(line) for line in gzip.decompress((tmp_path / "scrapes.jsonl.gz").read_bytes()).splitlines()]
    assert raw[0]["body"] == "# c\ng 0.5\n"
    assert raw[0]["t_ns"] == stored[0].end_ns
    assert result.raw_bodies == len(raw)


def test_a_report_is_of_one_boot_alone(server: MetricsServer, tmp_path: Path) -> None:
    """A resumed leg appends to the samples of its earlier boot: the hours in between are no gap."""
    server.answer = lambda handler, n: send(handler, b"g 0.5\n")
    hour_ns = 3_600_000_000_000
    earlier = [
        SampleRow(leg=3, due_ns=n, start_ns=n, first_byte_ns=n, end_ns=n + 1, status="refused") for n in (hour_ns, 2 * hour_ns)
    ]
    (tmp_path / "samples.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in earlier) + b'{"torn')
    result = sampled(server, tmp_path, 6)
    assert len(rows(tmp_path)) == 2 + result.samples
    assert result.failed == 0
    assert (result.gap_max_s or 0) < 60


def test_b42_unavailable_metrics_end_scraping_and_nothing_else(server: MetricsServer, tmp_path: Path) -> None:
    for code in (404, 501, 500, 401):
        server.requests = 0
        server.answer = lambda handler, n, code=code: send(handler, b"no", code)  # type: ignore[misc]
        folder = tmp_path / str(code)
        with Sampler(0, server.url, [USAGE], "/metrics", 0.02, folder, nvml="off") as sampler:
            until(lambda: any(event["what"] == "final" for event in sampler._said), "giving up")
        result = sampler.stop()
        assert result.status == f"unavailable ({code})"
        assert result.samples == 0
        assert server.requests == 3, "a few failures end it"
        assert [row.values for row in rows(folder)] == [{}, {}, {}]
        assert "given up" in result.warnings[0]


def test_b42_a_401_is_retried_once_with_the_key(server: MetricsServer, tmp_path: Path) -> None:
    def guarded(handler: http.server.BaseHTTPRequestHandler, n: int) -> None:
        send(handler, b"g 1\n", 200 if handler.headers.get("authorization") == "Bearer s3" else 401)

    server.answer = guarded
    result = sampled(server, tmp_path, 4, api_key="s3")
    assert result.status == "ok"
    assert result.failed == 0
    assert server.keys[:3] == [None, "Bearer s3", "Bearer s3"]
    assert b"s3" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_b42_a_wrong_key_is_tried_once(server: MetricsServer, tmp_path: Path) -> None:
    server.answer = lambda handler, n: send(handler, b"", 401)
    with Sampler(0, server.url, [USAGE], "/metrics", 0.02, tmp_path, api_key="bad", nvml="off") as sampler:
        until(lambda: any(event["what"] == "final" for event in sampler._said), "giving up")
    assert server.keys.count("Bearer bad") == 1
    assert sampler.stop().status == "unavailable (401)"


def test_b44_one_scrape_in_flight_and_the_rate_falls(server: MetricsServer, tmp_path: Path) -> None:
    def slow(handler: http.server.BaseHTTPRequestHandler, n: int) -> None:
        server.release.wait(0.06)
        send(handler, b"g 1\n")

    server.answer = slow
    result = sampled(server, tmp_path, 4)
    assert server.peak == 1
    assert result.skipped >= 3 * 3
    assert result.effective_interval_s is not None
    assert result.effective_interval_s >= 0.06
    assert any("slower than interval" in text for text in result.warnings)


def test_b44_the_grid_of_a_slow_scrape() -> None:
    grid, now_ns, dues = Grid(0, 250_000_000), 0, [0]
    while True:
        now_ns = max(now_ns, dues[-1]) + 600_000_000
        if grid.next(now_ns) >= 3_000_000_000:
            break
        dues.append(grid.due_ns)
    assert dues == [0, 750_000_000, 1_500_000_000, 2_250_000_000]
    assert grid.skipped == 8


def test_b44_the_report_states_mean_time_and_midpoints_can_be_told() -> None:
    stamps = [_Stamp(due_ns=d, start_ns=d, end_ns=d + 600_000_000, status="ok") for d in range(0, 3_000_000_000, 750_000_000)]
    result = report(stamps, [{"what": "grid", "skipped": 8}], 0.25, ["usage"], "ok", scrapes=True)
    assert result.scrape_mean_s == pytest.approx(0.6)
    assert result.scrape_share == pytest.approx(0.8, abs=0.1)
    assert result.warnings == ["scrape slower than interval: mean scrape time 0.6 s at 0.25 s asked, one scrape every 0.75 s"]


def test_deadlines_do_not_drift_with_small_delays() -> None:
    grid = Grid(1000, 100)
    assert [grid.next(now) for now in (1000, 1130, 1299, 1300)] == [1100, 1200, 1300, 1400]
    assert grid.skipped == 0
    assert grid.next(1400, wait_ns=950) == 2400
    assert grid.skipped == 0, "holding off is no miss"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (lambda handler, n: handler.wfile.write(b"SSH-2.0 hello there\r\n"), "junk (not HTTP)"),
        (lambda handler, n: send(handler, b"<html></html>"), "junk (no exposition)"),
        (lambda handler, n: _cut(handler), "truncated"),
        (lambda handler, n: send(handler, b"g 1\n", kind="application/openmetrics-text; version=1.0.0"), "truncated"),
        (lambda handler, n: _close(handler), "closed without an answer"),
    ],
)
def test_broken_answers_are_rows_without_figures(
    server: MetricsServer, tmp_path: Path, answer: Callable[..., None], status: str
) -> None:
    server.answer = answer
    result = sampled(server, tmp_path, 2)
    assert result.status == status
    assert {row.status for row in rows(tmp_path)} == {status}
    assert all(not any(value is not None for value in row.values.values()) for row in rows(tmp_path))


def _cut(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ng 1\n")
    handler.close_connection = True


def _close(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def test_a_server_that_recovers_is_sampled_again(server: MetricsServer, tmp_path: Path) -> None:
    server.answer = lambda handler, n: send(handler, b"g 1\n", 200 if n < 1 or n > 4 else 503)
    result = sampled(server, tmp_path, 8)
    assert [row.status for row in rows(tmp_path)][:6] == ["ok", *["unavailable (503)"] * 4, "ok"]
    assert result.status == "ok"
    assert result.failed == 4


def test_never_answered_is_a_timeout_then_a_slower_rate(server: MetricsServer, tmp_path: Path) -> None:
    server.answer = lambda handler, n: (server.release.wait(30), None)[1]
    result = sampled(server, tmp_path, 2, timeout_s=0.05)
    assert result.status == "timeout"
    assert server.peak >= 1


def test_a_hanging_scrape_does_not_hold_up_the_stop(server: MetricsServer, tmp_path: Path) -> None:
    server.answer = lambda handler, n: (server.release.wait(30), None)[1]
    with Sampler(0, server.url, [USAGE], "/metrics", 0.02, tmp_path, nvml="off", timeout_s=25) as sampler:
        until(lambda: server.in_flight == 1, "a scrape in flight")
    result = sampler.stop()
    assert result.status == "ok"
    assert rows(tmp_path) == []


def test_ten_megabytes_are_read(server: MetricsServer, tmp_path: Path) -> None:
    body = b'other{le="1"} 1\n' * 650_000 + b"g 0.25\n"
    server.answer = lambda handler, n: send(handler, body)
    sampled(server, tmp_path, 1)
    assert rows(tmp_path)[0].values["usage"] == 0.25
    assert (tmp_path / "scrapes.jsonl.gz").stat().st_size < 1 << 20


def test_raw_bodies_are_bounded(tmp_path: Path) -> None:
    from evenhand.watch import child
    from evenhand.watch.fetch import Reply

    bodies = child.RawBodies(str(tmp_path / "s.gz"), 400)
    for n in range(10):
        bodies.add(Reply(0, 0, n * 10**9, 200, "", os.urandom(100), None))
    bodies.add(Reply(0, 0, 9 * 10**9 + 1, 200, "", b"", None))  # too soon after the one before: thinned, not dropped
    assert 1 <= bodies.kept < 10
    assert bodies.kept + bodies.dropped == 10
    said = [{"what": "raw", "kept": bodies.kept, "dropped": bodies.dropped}]
    assert any("size limit" in text for text in report([], said, 1.0, [], "ok", scrapes=True).warnings)


def test_raw_bodies_hold_no_secrets(server: MetricsServer, tmp_path: Path) -> None:
    figures = (
        b'config_info{hf_token="s3same",url="http://me:pw@x",key="sk-0123456789abcdef0123"} 1\n# HELP known-one-7\ng 0.5\n'
    )
    pages = [(figures, 200), (b'{"error":"bad Bearer abcdefghijkl known-one-7"}', 500)]
    server.answer = lambda handler, n: send(handler, *pages[n > 16], kind="text/plain; api_key=zzzzzz")
    with Sampler(0, server.url, [USAGE], "/metrics", 0.02, tmp_path, nvml="off", env={"TOY_TOKEN": "known-one-7"}) as sampler:
        until(lambda: len(rows(tmp_path)) > 22, "both pages")
    assert sampler.stop().raw_bodies >= 2
    raw = gzip.decompress((tmp_path / "scrapes.jsonl.gz").read_bytes())
    for secret in (b"s3same", b"me:pw", b"sk-0123", b"known-one-7", b"abcdefghijkl", b"zzzzzz"):
        assert secret not in raw
    stored = [json.loads(line) for line in raw.splitlines()]
    assert {row["code"] for row in stored} == {200, 500}
    assert stored[0]["body"].endswith("} 1\n# HELP <redacted>\ng 0.5\n")


def test_a_body_that_takes_long_to_search_is_not_kept(tmp_path: Path) -> None:
    from evenhand.watch import child
    from evenhand.watch.fetch import Reply

    bodies = child.RawBodies(str(tmp_path / "s.gz"), 1 << 30)
    bodies.add(Reply(0, 0, 10**9, 200, "", b"x" * (child.RAW_BODY_BYTES + 1), None))
    assert (bodies.kept, bodies.dropped) == (0, 1)


@pytest.mark.parametrize("name", ["samples.jsonl", "scrapes.jsonl.gz"])
def test_rows_are_never_written_through_a_link(server: MetricsServer, tmp_path: Path, name: str) -> None:
    server.answer = lambda handler, n: send(handler, b"g 0.5\n")
    mine, folder = tmp_path / "mine", tmp_path / "run"
    mine.write_bytes(b"mine\n")
    folder.mkdir()
    (folder / name).symlink_to(mine)
    sampler = Sampler(0, server.url, [USAGE], "/metrics", 0.02, folder, nvml="off")
    if name == "samples.jsonl":
        with pytest.raises(StoreError, match="symbolic link"):
            sampler.start()
    else:
        sampler.start()
        until(lambda: sampler._child is not None and sampler._child.poll() is not None, "the sampler's end")
        assert sampler.stop().status == "died (1)"
    assert mine.read_bytes() == b"mine\n"


def test_no_metrics_path_is_off_and_refused_is_said(tmp_path: Path) -> None:
    with Sampler(0, "http://127.0.0.1:9", [USAGE], None, 0.25, tmp_path, nvml="off") as sampler:
        pass
    assert sampler.stop().status == "off"
    with Sampler(0, "http://127.0.0.1:9", [USAGE], "/metrics", 0.02, tmp_path, nvml="off") as sampler:
        until(lambda: len(rows(tmp_path)) >= 1, "a row")
    assert sampler.stop().status == "refused"


def test_killed_sampler_keeps_its_rows_and_says_died(server: MetricsServer, tmp_path: Path) -> None:
    with Sampler(0, server.url, [USAGE], "/metrics", 0.02, tmp_path, nvml="off") as sampler:
        until(lambda: len(rows(tmp_path)) >= 3, "three rows")
        assert sampler._child is not None
        os.kill(sampler._child.pid, signal.SIGKILL)
        sampler._child.wait()
    assert sampler.stop().status == "died (-9)"
    assert sampler.stop().samples >= 3
    assert gzip.decompress((tmp_path / "scrapes.jsonl.gz").read_bytes())


def test_the_process_ends_with_its_parent(server: MetricsServer, tmp_path: Path) -> None:
    sampler = Sampler(0, server.url, [USAGE], "/metrics", 0.02, tmp_path, nvml="off")
    sampler.start()
    assert sampler._child is not None
    assert sampler._child.stdin is not None
    sampler._child.stdin.close()  # what the kernel does when the harness is killed
    assert sampler._child.wait(10) == 0
    sampler.stop()


def test_idle_connection_dropped_by_the_server_is_no_failure(server: MetricsServer) -> None:
    def close_after(handler: http.server.BaseHTTPRequestHandler, n: int) -> None:
        send(handler, b"g 1\n")
        handler.close_connection = True

    server.answer = close_after
    fetcher = Fetcher(server.url + "/metrics", 5.0)
    assert [fetcher.get().error for _ in range(3)] == [None, None, None]
    fetcher.close()


def test_interval_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"watch\.interval_s is 0; it must be above 0"):
        Sampler(0, "http://127.0.0.1:9", [], None, 0, tmp_path)


def test_a_torn_last_line_is_cut_before_the_next_row(tmp_path: Path) -> None:
    from evenhand.watch.child import Appender

    file = tmp_path / "samples.jsonl"
    file.write_bytes(b'{"a":1}\n{"a":')
    Appender(str(file)).row({"a": 2})
    assert file.read_bytes() == b'{"a":1}\n{"a":2}\n'
    file.write_bytes(b'{"torn')
    Appender(str(file)).row({"a": 3})
    assert file.read_bytes() == b'{"a":3}\n'
