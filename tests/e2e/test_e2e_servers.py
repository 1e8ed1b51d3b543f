"""Servers that misbehave: each ends in the right row, the right exit code and one clear sentence."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from e2e_cli import MODEL, Cli, cells, only, requests, rows, text

pytestmark = pytest.mark.e2e

READY = 1  # requests of the readiness check
WARM = 4  # of the warm-up: the highest concurrency


def by_arm(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Request rows that did not succeed, by arm."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in requests(run):
        if row["outcome"] != "ok":
            found.setdefault(row["arm"], []).append(row)
    return found


def test_b57_b03_b04_b24_streams_and_engines_that_end(cli: Cli) -> None:
    """Arms side by side in one run: the trouble of one is a row, and the others are measured."""
    at = READY + WARM + 6 + 3  # the third request of the second rung
    content = text(
        concurrency=(1, 2, 4),
        requests=6,
        output=4,
        arms={
            "dies": {"die_at_request": at, "after_tokens": 2},
            "engine-dies": {"engine_dies_at_request": at},
            "stalls": {"stall_at_request": at, "after_tokens": 2},
            "error": {"error_at_request": at, "after_tokens": 2},
            "truncate": {"truncate_at_request": at, "after_tokens": 2},
            "restarts": {"restart_counters_at_request": at},
            "floods": {"flood_lines_per_s": 20_000},
            "fails": {"error_at_request": 0, "after_tokens": 2},
        },
        deadlines="stop_s = 2.0\nsettle_s = 1.0\nrelease_s = 1.0\nready_s = 30.0\nsilence_s = 1.0",
    )
    ended = cli.run("run", cli.scenario(content), "--out", "out")
    assert ended.code == 2, ended
    assert "Traceback" not in ended.all
    run = only(cli.folder / "out")
    found, failed = cells(run), by_arm(run)
    assert len(found) == 24, "every cell has a row, whatever happened to its engine"
    outcomes = {arm: [found[f"{arm} ladder/c={c}"]["outcome"] for c in (1, 2, 4)] for arm in {k.split()[0] for k in found}}
    assert outcomes["dies"] == outcomes["engine-dies"] == ["ok", "died", "not_run"]
    assert outcomes["restarts"] == ["ok", "void", "ok"]
    for arm in ("stalls", "error", "truncate", "floods", "fails"):
        assert outcomes[arm] == ["ok"] * 3, arm
    assert "signal 9" in found["dies ladder/c=2"]["reason"]
    leg = {row["arm"]: row for row in rows(run / "legs.jsonl")}
    assert leg["dies"]["exit_code"] == -9
    assert "SIGKILL" in leg["dies"]["reason"]
    assert leg["engine-dies"]["outcome"] == "died"
    assert "told to die" in leg["engine-dies"]["reason"]
    assert [(r["reason"], r["index"]) for r in failed["stalls"]] == [("read timeout: silent for 1 s", 2)]
    (error,) = failed["error"]
    assert (error["error_code"], error["index"]) == (500, 2)
    assert "engine stopped" in error["error_text"]
    assert [r["reason"] for r in failed["truncate"]] == ["truncated stream: no finish_reason and no [DONE]"]
    assert len(failed["fails"]) == 18
    assert not any(r["outcome"] == "ok" and r["tpot_s"] == 0 for r in requests(run))
    # nothing a failed request did is in a figure
    table = (run / "tables" / "concurrency-ladder.csv").read_text().splitlines()
    throughput = next(i for i, name in enumerate(table[0].split(",")) if name.startswith("tokens/s"))
    for arm in ("stalls", "error", "truncate"):
        assert [line.split(",")[throughput] for line in table if line.startswith(f"{arm},2,")] == [""]
    assert "fails@1: void (all 6 requests failed" in ended.out
    assert "restarts@2: void" in ended.out
    assert "so the server restarted" in ended.out
    assert (run / "006-floods" / "engine.log").stat().st_size < (9 << 20)


def test_b57_a_ladder_whose_server_is_killed_in_the_fourth_rung(cli: Cli) -> None:
    """5 rows: three rungs stand, the fourth died with its rows, the fifth was not run; refused connections measure nothing."""
    at = READY + 16 + 3 * 8 + 8
    faults = {"die_at_request": at, "after_tokens": 2}
    content = text(concurrency=(1, 2, 4, 8, 16), requests=8, output=4, faults=faults, top="chunk_tokens = 96")
    ended = cli.run("run", cli.scenario(content), "--out", "out")
    assert ended.code == 2, ended
    run = only(cli.folder / "out")
    found = cells(run)
    assert [found[f"a ladder/c={c}"]["outcome"] for c in (1, 2, 4, 8, 16)] == ["ok", "ok", "ok", "died", "not_run"]
    (leg,) = rows(run / "legs.jsonl")
    assert leg["exit_code"] == -9
    hit = [r for r in requests(run) if r["cell"] == "ladder/c=8"]
    assert len(hit) == 8
    assert any(r["outcome"] == "failed" for r in hit)
    assert not [r for r in requests(run) if r["cell"] == "ladder/c=16"]
    assert min(r["end_ns"] - r["send_ns"] for r in requests(run) if r["outcome"] == "ok") > 1_000_000
    line = next(
        line for line in (run / "tables" / "concurrency-ladder.csv").read_text().splitlines() if line.startswith("a,8,")
    )
    assert set(line.split(",")[4:-3]) == {""}, line


def test_b42_metrics_that_fail_cost_no_request(cli: Cli) -> None:
    kinds = ("absent", "denied", "junk", "nan", "huge")
    content = text(
        concurrency=(2,),
        requests=4,
        output=4,
        arms={kind: {"metrics": kind} for kind in kinds},
        deadlines="settle_s = 0.2\nstop_s = 2.0\nrelease_s = 1.0",
    )
    ended = cli.run("run", cli.scenario(content), "--out", "out")
    assert ended.fine, ended
    run = only(cli.folder / "out")
    assert len(requests(run)) == 20
    assert {r["outcome"] for r in requests(run)} == {"ok"}
    reports = [leg["sampler"] for leg in rows(run / "legs.jsonl")]
    status = dict(zip(kinds, (report["status"] for report in reports), strict=True))
    assert status["absent"] == "unavailable (404)"
    assert status["denied"] == "unavailable (401)"
    assert status["junk"].startswith("junk")
    assert reports[0]["failed"] == 3, "scraping a page that is not there is given up"
    peaks = [row for n in (0, 1, 2) for row in rows(run / f"{n:03d}-{kinds[n]}" / "samples.jsonl") if row["values"]]
    assert not peaks, "an absent metric is absent, not 0"
    nan = [row["values"].get("usage") for row in rows(run / "003-nan" / "samples.jsonl")]
    assert set(nan) <= {None}
    alone = cli.scenario(text(concurrency=(1,), requests=2, output=4, arms={"absent": {"metrics": "absent"}}), "alone.toml")
    required = cli.run("run", alone, "--out", "required", "--set", "watch.require_metrics=true")
    assert required.code == 2
    assert "absent, leg 0: /metrics unavailable (404); the scenario requires metrics" in required.out


def test_b58_ready_before_it_is(cli: Cli) -> None:
    """Health is 200 at once, the model is listed after 1 s, generation works after 2 s."""
    early = {"models_after_s": 1.0, "generate_after_s": 2.0}
    ended = cli.run("run", cli.scenario(text(concurrency=(1,), requests=4, output=4, faults=early)), "--out", "out")
    assert ended.fine, ended
    run = only(cli.folder / "out")
    (leg,) = rows(run / "legs.jsonl")
    assert leg["ready_ns"] - leg["start_ns"] >= 2_000_000_000
    assert len(requests(run)) == 4, "the readiness request is in no statistic"


def test_b56_a_refusal_and_a_server_that_is_never_ready(cli: Cli) -> None:
    words = "INFO loading weights\nERROR ValueError: requested length 9000 needs more cache than the 3600 tokens available"
    arms = {"refuses": {"boot_text": words}, "never": {"always_500": True}, "good": {}}
    content = text(concurrency=(1,), requests=4, output=4, arms=arms, deadlines="ready_s = 4.0\nstop_s = 2.0\nsettle_s = 1.0")
    ended = cli.run("run", cli.scenario(content), "--out", "out")
    assert ended.code == 2, ended
    found = cells(only(cli.folder / "out"))
    assert found["refuses ladder/c=1"]["outcome"] == "refused"
    assert "needs more cache than the 3600 tokens" in found["refuses ladder/c=1"]["reason"]
    assert found["never ladder/c=1"]["outcome"] == "launch_failed"
    assert "HTTP 500" in found["never ladder/c=1"]["reason"]
    assert found["good ladder/c=1"]["outcome"] == "ok"
    legs = rows(only(cli.folder / "out") / "legs.jsonl")
    assert legs[0]["exit_code"] == 1


class Double(BaseHTTPRequestHandler):
    """A server somebody else runs: serves the model "toy", or answers 500 once it looked ready; every answer is hostile."""

    posts: list[str]
    broken_after = 1 << 30
    key: str | None = None

    def _refused(self) -> bool:
        if self.key is None or self.headers["authorization"] == f"Bearer {self.key}":
            return False
        self._say(401, {"error": "Unauthorized"})
        return True

    def do_GET(self) -> None:
        if self._refused():
            return
        if self.path == "/metrics" and self.key:
            body = f'# {self.key}\nvllm:num_requests_running{{key="{self.key}"}} 0\n'.encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        if self.path == "/v1/models":
            self._say(200, {"data": [{"id": "toy"}, {"id": "\x1b[31mred\x07"}]})
        else:
            self._say(200 if self.path in ("/health", "/v1/models") else 404, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if self._refused():
            return
        self.posts.append(self.path)
        if len(self.posts) > self.broken_after:
            self._say(
                500,
                {
                    "error": {
                        "message": "\x1b]0;owned\x07\x1b[2J hf_abcdefghijklmnopqrstuvwx <script>alert(1)</script>"
                        f" no request for {self.key}"
                    }
                },
            )
            return
        body = b'data: {"choices":[{"index":0,"text":"x","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _say(self, code: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def double(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[str]]]:
    """Its address and the paths that were posted to."""
    posts: list[str] = []
    kind = type("Kind", (Double,), {"posts": posts, "broken_after": getattr(request, "param", 1 << 30)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", posts
    server.shutdown()
    server.server_close()


def attached(url: str, served: str = "toy") -> str:
    """A scenario with an engine that is not ours."""
    return f"""name = "e2e"
model = "{MODEL}"
served_name = "{served}"
[[arm]]
name = "theirs"
engine = "attached"
url = "{url}"
[ladder]
concurrency = [1]
prompt_tokens = 16
output_tokens = 1
requests = 3
[deadlines]
ready_s = 20.0
settle_s = 1.0
"""


def test_b86_a_wrong_model_name_stops_at_the_readiness_check(cli: Cli, double: tuple[str, list[str]]) -> None:
    url, posts = double
    ended = cli.run("run", cli.scenario(attached(url, "other")), "--out", "out")
    assert ended.code == 2, ended
    (row,) = cells(only(cli.folder / "out")).values()
    assert row["outcome"] == "launch_failed"
    assert "'other'" in row["reason"]
    assert "'toy'" in row["reason"]
    assert "\x1b" not in ended.all
    assert posts == []
    assert requests(only(cli.folder / "out")) == []


@pytest.mark.parametrize("end", ["", "/v1/"])
def test_b86_any_form_of_the_url_works(cli: Cli, double: tuple[str, list[str]], end: str) -> None:
    url, posts = double
    cli.run("run", cli.scenario(attached(url + end)), "--out", "out")
    assert posts.count("/v1/completions") == 1 + 1 + 3  # readiness, warm-up, requests
    assert set(posts) <= {"/v1/completions", "/reset_prefix_cache"}
    assert len(requests(only(cli.folder / "out"))) == 3


@pytest.mark.parametrize("double", [2], indirect=True)
def test_500_to_everything_once_it_looked_ready(cli: Cli, double: tuple[str, list[str]]) -> None:
    """Nothing of its words reaches a terminal, a file or a page as more than text; its secrets are nowhere."""
    url, _ = double
    ended = cli.run("run", cli.scenario(attached(url)), "--out", "out")
    assert ended.code == 2, ended
    run = only(cli.folder / "out")
    assert {(r["outcome"], r["http_status"]) for r in requests(run)} == {("failed", 500)}
    assert "theirs@1: void (all 3 requests failed" in ended.out
    reported = cli.run("report", run, "--out", "reports")
    assert reported.code in (0, 2), reported
    assert "Traceback" not in reported.all
    for said in (ended.all, reported.all):
        assert "\x1b" not in said
        assert "\x07" not in said
    for file in [p for folder in (run, cli.folder / "reports") for p in folder.rglob("*") if p.is_file()]:
        data = file.read_bytes()
        assert b"hf_abcdefghijklmnop" not in data, file
        if file.suffix in (".html", ".md", ".csv", ".svg"):
            assert b"<script>alert" not in data, file
            assert b"\x1b" not in data, file


def test_a_server_that_wants_a_key(cli: Cli) -> None:
    """The key goes with every question, measured or not, and is written nowhere, though the server repeats it."""
    key = "open-sesame-77"
    kind = type("Kind", (Double,), {"posts": [], "key": key, "broken_after": 5})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        content = attached(f"http://127.0.0.1:{server.server_port}").replace(
            'engine = "attached"', 'engine = "attached"\noptions = { api_key_env = "EH_OPENER" }'
        )
        ended = cli.run("run", cli.scenario(content), "--out", "out", env={"EH_OPENER": key})
        unset = cli.run("run", cli.scenario(content), "--out", "unset")
    finally:
        server.shutdown()
        server.server_close()
    run = only(cli.folder / "out")
    assert {row["outcome"] for row in requests(run)} == {"ok", "failed"}, ended
    assert any("no request for <redacted>" in (row["error_text"] or "") for row in requests(run))
    (leg,) = rows(run / "legs.jsonl")
    assert leg["sampler"]["status"] == "ok"
    for file in [p for p in run.rglob("*") if p.is_file()]:
        data = file.read_bytes()
        assert key.encode() not in (gzip.decompress(data) if file.suffix == ".gz" else data), file
    assert key not in ended.all
    (leg,) = rows(only(cli.folder / "unset") / "legs.jsonl")
    assert leg["outcome"] == "launch_failed"
    assert "options.api_key_env names EH_OPENER, which is not set" in leg["reason"]
    assert "Traceback" not in unset.all
