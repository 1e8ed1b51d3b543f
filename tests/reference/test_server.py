"""The embedded engine as a child process, read by the real engines' adapters."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from evenhand.engines.base import PoolRequest, Sampling

from .helpers import MODELS, prompt
from .served import Child, ids_of, refuse, serve

pytestmark = pytest.mark.e2e
DIALECTS = ("vllm", "sglang", "vllm.cpp")


@pytest.fixture(scope="module", params=DIALECTS)
def child(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    options = {"dialect": request.param, "memory_bytes": "64 MiB"}
    told = {"pool": PoolRequest(blocks=2000), "block_tokens": 32} if request.param == "vllm.cpp" else {}
    with serve(tmp_path_factory.mktemp("served"), options=options, seats=8, **told) as running:
        yield running


def test_facts_are_read_as_from_the_real_engine(child: Child) -> None:
    facts, http = child.adapter.facts, child.http
    assert facts.alive(http)
    assert facts.served(http) == ["m"]
    pool = facts.pool(http, child.log, http.get("/metrics").text)
    assert pool is not None
    assert pool.blocks
    assert pool.blocks == child.state()["pool_blocks"] - (1 if child.adapter.facts.gauges[0].metrics[0][0] == "s" else 0)
    config = facts.config(http, child.log)
    assert config["reference.depth"] == 0
    assert len(config) > 5
    assert facts.version(http, child.log) or child.settings.options["dialect"] == "vllm.cpp"
    assert facts.fatal(child.log) is None
    assert facts.log_errors(child.log) == 0
    if child.settings.options["dialect"] != "vllm.cpp":
        assert facts.seats(http, child.log) == 8


def test_a_stream_is_ids_text_usage_and_done(child: Child) -> None:
    chunks = child.stream(30, 9, key=1)
    assert len(ids_of(chunks)) == 9
    assert "".join(chunk.text for chunk in chunks)
    assert chunks[-1].done
    assert (chunks[-2].prompt_tokens, chunks[-2].output_tokens) == (30, 9)
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["length"]
    assert not any(chunk.malformed or chunk.error for chunk in chunks)
    whole = child.http.post("/v1/completions", json=child.body(30, 9, key=1, stream=False))
    answer = child.dialect.decode(whole.content)
    assert list(answer.ids or ()) == ids_of(chunks)
    assert answer.text == "".join(chunk.text for chunk in chunks)
    assert answer.output_tokens == 9


def test_chat_begins_with_a_role_and_no_token(child: Child) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hé"}], "max_tokens": 4, "stream": True, "temperature": 0}
    chunks = child.decode(child.http.post("/v1/chat/completions", json=body).content)
    assert (chunks[0].text, chunks[0].ids or ()) == ("", ())
    assert "".join(chunk.text for chunk in chunks)
    body["stream"] = False
    whole = child.dialect.decode(child.http.post("/v1/chat/completions", json=body).content)
    assert whole.text == "".join(chunk.text for chunk in chunks)


def test_top_2_logprobs(child: Child) -> None:
    for stream in (True, False):
        post = child.dialect.request(prompt(20).tolist(), Sampling(max_tokens=3, logprobs=2), "m", stream=stream)
        content = child.http.post(post.path, json=post.body).content
        chunks = child.decode(content) if stream else [child.dialect.decode(content)]
        rows = [row for chunk in chunks for row in chunk.top_logprobs]
        assert len(rows) == 3
        assert all(len(row) == 2 and row[0] > row[1] for row in rows)


def test_the_exposition_parses_and_counts(child: Child) -> None:
    if child.settings.options["dialect"] == "vllm.cpp":
        name = "vllm:generation_tokens"
    else:
        name = f"{child.settings.options['dialect']}:generation_tokens"

    def generated() -> float:
        families = {family.name: family for family in text_string_to_metric_families(child.http.get("/metrics").text)}
        told = {gauge.name: gauge.metrics[0] for gauge in child.adapter.facts.gauges}
        assert {told["usage"], told["running"], told["waiting"]} <= set(families)
        return sum(sample.value for sample in families[name].samples if sample.name.endswith("_total"))

    before = generated()
    child.stream(20, 11, key=5)
    assert generated() - before == 11


def test_errors_have_the_engines_words(child: Child) -> None:
    dialect = child.settings.options["dialect"]
    wrong = child.http.post("/v1/completions", json=child.body(model="other"))
    if dialect == "sglang":
        assert wrong.status_code == 200  # any name is served
    else:
        assert wrong.status_code == 404
        assert "The model `other` does not exist." in wrong.text
    if dialect != "vllm.cpp":
        long = child.http.post("/v1/completions", json=child.body(8193))
        assert long.status_code == 400
        assert "8193" in long.text
    assert child.http.post("/v1/completions", content=b"{").status_code == 400
    assert child.http.post("/v1/completions", json=child.body() | {"prompt": [99_999]}).status_code == 400
    assert child.http.get("/nothing").status_code == 404


def test_cache_reset(child: Child) -> None:
    assert child.adapter.facts.reset_cache(child.http) is None


def test_a_client_that_leaves_frees_its_blocks(child: Child) -> None:
    with child.http.stream("POST", "/v1/completions", json=child.body(60, 4000, key=8)) as answer:
        pieces = answer.iter_bytes()
        next(pieces)
        assert child.state()["used_blocks"] > 0
    for _ in range(200):
        if child.state()["used_blocks"] == 0:
            break
    assert child.state()["used_blocks"] == 0
    assert child.state()["in_flight"] == 0


def test_outputs_are_identical_across_dialects_and_batches(child: Child) -> None:
    """What comes out depends on the prompt alone: engines, batch mates and repeats change nothing."""
    from evenhand.engines.reference.tokens import Stream, digest

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda key: ids_of(child.stream(40, 12, key)), range(100, 132)))
    assert found == [Stream(digest(prompt(40, key)), range(3, 2048)).take(0, 12) for key in range(100, 132)]
    assert child.state()["peak_running"] <= 8


def test_cached_tokens_are_reported(tmp_path: Path) -> None:
    with serve(tmp_path, block_tokens=128) as child:
        first = [chunk.cached_tokens for chunk in child.stream(1024, 4) if chunk.cached_tokens is not None]
        again = [chunk.cached_tokens for chunk in child.stream(1024, 4) if chunk.cached_tokens is not None]
    assert (first, again) == ([0], [896])


def test_the_h200_row_comes_out_of_a_running_server(tmp_path: Path) -> None:
    """One prompt of 14,000 tokens on the 4B shape: 79 blocks at the peak, 61 with the fix, gauge values one by one."""
    for fix, peak in ((False, 79), (True, 61)):
        with serve(
            tmp_path,
            model=str(MODELS / "4b-hybrid"),
            context=65_536,
            pool=PoolRequest(blocks=900),
            chunk_tokens=2048,
            options={"null_gap_fix": fix},
        ) as child:
            child.stream(14_000, 16)
            state = child.state()
            assert state["peak_used_blocks"] == peak
            if fix:
                assert state["gauge_blocks"] == [20, 30, 37, 44, 51, 58, 60, 61, 58, 55, 0]


def test_probe_rows(tmp_path: Path) -> None:
    """The same rows as the in-engine probe of a real engine."""
    import msgspec

    log = tmp_path / "probe.jsonl"
    with serve(tmp_path, env={"EVENHAND_PROBE_LOG": str(log)}, block_tokens=128, chunk_tokens=512) as child:
        child.stream(3000, 8)
        peak = child.state()["peak_used_blocks"]
        child.process.terminate()
        assert child.process.wait(10) == 0
    rows = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]
    assert rows[0]["probe"] == "on"
    steps = [row for row in rows if "step" in row]
    assert max(row["used"] for row in steps) == peak
    assert all(row["used"] + row["free"] == rows[0]["blocks"] for row in steps)
    mine = [row for row in rows if "request" in row]
    assert {row["request"] for row in mine} == {"r1"}
    assert max(row["attention"] for row in mine) == 24
    assert [row["computed"] for row in mine] == sorted(row["computed"] for row in mine)
    assert all(len(row["state"]) == len(row["kept"]) == 3 for row in mine)


def test_refusals_are_read_with_their_figures(tmp_path: Path) -> None:
    big = str(MODELS / "27b-hybrid")
    code, log, adapter = refuse(
        tmp_path,
        model=big,
        seats=32,
        method="mtp",
        depth=8,
        block_tokens=32,
        pool=PoolRequest(blocks=7488, state_bytes=int(38.70 * 2**30)),
        options={"dialect": "vllm.cpp"},
    )
    found = adapter.facts.exit(code, log)
    assert found.outcome == "refused"
    assert found.refusal is not None
    assert found.refusal.needed_bytes == round(43.40 * 2**30)
    assert found.refusal.available_bytes == round(38.70 * 2**30)
    assert (found.refusal.seats, found.refusal.slots_per_seat, found.refusal.depth) == (32, 9, 8)

    code, log, adapter = refuse(tmp_path, model=big, context=32_768, pool=PoolRequest(blocks=20))
    found = adapter.facts.exit(code, log)
    assert (code, found.outcome) == (1, "refused")
    assert found.refusal is not None
    assert found.refusal.max_context_tokens

    code, log, adapter = refuse(
        tmp_path, model=big, options={"dialect": "sglang", "memory_bytes": "4 GiB"}, method="mtp", depth=8, prefix_caching=None
    )
    found = adapter.facts.exit(code, log)
    assert (code, found.outcome) == (-9, "refused")
    assert "not an out-of-memory kill" in found.reason


def test_launch_failures_are_words(tmp_path: Path) -> None:
    code, log, adapter = refuse(tmp_path, model="/nowhere")
    assert (code, adapter.facts.exit(code, log).outcome) == (1, "launch_failed")
    code, log, _ = refuse(tmp_path, args=("--what",))
    assert code == 2
    assert "unrecognized arguments: --what" in log
    code, log, _ = refuse(tmp_path, options={"dialect": "vllm.cpp", "build": "2026-07"}, args=("--speculative-config", "{}"))
    assert code == 2
    assert log.startswith("server: unknown argument '--speculative-config'\nusage: ")


def test_a_switch_in_the_environment_shows(tmp_path: Path) -> None:
    with serve(tmp_path, env={"EVENHAND_REF_FAST": "1", "EVENHAND_REF_SLOW": "1"}) as child:
        assert child.adapter.facts.config(child.http, child.log)["reference.fast"] is True
        assert "Unknown environment variable detected: EVENHAND_REF_SLOW" in child.log
