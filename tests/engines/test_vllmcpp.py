"""vllm.cpp: flags by usage text, the refusal that started it all, a dead engine behind a living /health."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from http_double import client

from evenhand.engines.arguments import flags_of
from evenhand.engines.base import Capabilities, EngineError, PoolRequest, Sampling, Settings
from evenhand.engines.vllmcpp import ENGINE

DATA = Path(__file__).parent / "data"
FACTS = ENGINE.facts
USAGE = (DATA / "vllmcpp_fatal_cases.txt").read_text("utf-8")
JULY = Capabilities(flags=flags_of(USAGE[USAGE.index("usage: ") : USAGE.index("reply:  000")]), takes_ids=False)
AUTUMN = Capabilities(
    flags=JULY.flags
    | flags_of(
        "--kv-cache-memory BYTES --kv-cache-dtype D --speculative-config JSON --device auto|cpu|cuda --[no-]enable-metrics "
        "--enable-server-dev-mode --generation-config auto|vllm|DIR --version"
    )
)
REFUSAL = (
    "server: fatal: To serve 32 concurrent sequences, 43.40 GiB of recurrent (Mamba/GDN) state is needed, which is larger than "
    "the available 38.70 GiB. Speculative decoding widens that state to 9 snapshot slots per sequence "
    "(num_speculative_tokens=8 + 1), so it costs 9x the non-speculative state. Reduce --max-num-seqs, lower "
    "num_speculative_tokens, or run without speculative decoding."
)


def settings(**changes: Any) -> Settings:
    return Settings(model=changes.pop("model", "/models/m"), served_name="m", executable="/bin/true", **changes)


def value(argv: list[str], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None


def test_the_july_build() -> None:
    command = ENGINE.launcher.command(
        settings(
            seats=8,
            context=4096,
            chunk_tokens=512,
            block_tokens=32,
            prefix_caching=False,
            pool=PoolRequest(blocks=1024),
            state_dtype="float32",
            method="dflash",
            depth=7,
            draft="/d",
        ),
        8400,
        JULY,
    )
    wanted = {
        "--model": "/models/m",
        "--host": "127.0.0.1",
        "--port": "8400",
        "--served-model-name": "m",
        "--block-size": "32",
        "--num-blocks": "1024",
        "--max-model-len": "4096",
        "--max-num-seqs": "8",
        "--max-num-batched-tokens": "512",
    }
    assert {flag: value(command.argv, flag) for flag in wanted} == wanted
    assert "--no-enable-prefix-caching" in command.argv
    assert "--speculative-config" not in command.argv
    assert command.env["VT_SERVER_SSE_PING_S"] == "0"
    assert [words.split(" ")[0] for words in command.inexpressible] == ["state_dtype", "speculation"]
    assert "has no --speculative-config" in command.inexpressible[1]


def test_the_autumn_build() -> None:
    command = ENGINE.launcher.command(
        settings(pool=PoolRequest(bytes=1000), method="dflash", depth=7, draft="/d", cache_dtype="fp8"), 1, AUTUMN
    )
    assert value(command.argv, "--kv-cache-memory") == "1000"
    assert json.loads(value(command.argv, "--speculative-config") or "") == {
        "method": "dflash",
        "num_speculative_tokens": 7,
        "model": "/d",
    }
    assert {"--enable-metrics", "--enable-server-dev-mode"} <= set(command.argv)
    assert value(command.argv, "--generation-config") == "vllm"
    assert command.inexpressible == []


def test_what_no_build_can_say() -> None:
    words = ENGINE.launcher.command(settings(pool=PoolRequest(fraction=0.5, state_bytes=3)), 1, AUTUMN).inexpressible
    assert len(words) == 2
    assert "without effect" in words[0]
    tokens = ENGINE.launcher.command(settings(pool=PoolRequest(tokens=100)), 1, JULY)
    assert value(tokens.argv, "--num-blocks") == "4"
    with pytest.raises(EngineError, match="multiple of 16"):
        ENGINE.launcher.command(settings(block_tokens=24), 1, JULY)


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_the_usage_text_is_asked_from_the_executable(tmp_path: Path) -> None:
    old = script(tmp_path / "old", "echo 'usage: old --model <dir> [--[no-]enable-prefix-caching]'; exit 2")
    found = ENGINE.launcher.capabilities(Settings(model="m", served_name="m", executable=old))
    assert found.flags == {"--model", "--enable-prefix-caching", "--no-enable-prefix-caching"}
    assert (found.version, found.takes_ids, found.returns_ids) == (None, False, False)
    new = script(tmp_path / "new", 'if [ "$1" = --version ]; then echo "vllm.cpp 0.9.1"; else echo "--model D --version"; fi')
    assert ENGINE.launcher.capabilities(Settings(model="m", served_name="m", executable=new)).version == "0.9.1"
    other = script(tmp_path / "other", "echo hello")
    with pytest.raises(EngineError, match="does not look like"):
        ENGINE.launcher.capabilities(Settings(model="m", served_name="m", executable=other))


def test_ids_are_never_sent() -> None:
    dialect = ENGINE.dialect(settings(), JULY)
    with pytest.raises(EngineError, match="text only"):
        dialect.request([1, 2], Sampling(max_tokens=1), "m")
    body = dialect.request("hi", Sampling(max_tokens=1), "m").body
    assert "return_token_ids" not in body
    assert body["prompt"] == "hi"


def test_the_refusal_and_its_figures() -> None:
    """43.40 and 38.70 GiB, 9 slots, 32 seats, depth 8; the words are kept."""
    found = FACTS.exit(1, f"server: loading model from /m\n{REFUSAL}\n")
    assert found.outcome == "refused"
    refusal = found.refusal
    assert refusal is not None
    assert (refusal.needed_bytes, refusal.available_bytes) == (round(43.40 * 2**30), round(38.70 * 2**30))
    assert (refusal.slots_per_seat, refusal.seats, refusal.depth) == (9, 32, 8)
    assert refusal.text == REFUSAL.removeprefix("server: fatal: ")
    assert "exit code 1" in found.reason


def test_the_refusal_wrapped_over_lines() -> None:
    wrapped = REFUSAL.replace("recurrent (Mamba/GDN) state", "recurrent (Mamba/GDN)\nstate").replace(
        "widens that", "widens\nthat"
    )
    refusal = FACTS.exit(1, wrapped).refusal
    assert refusal is not None
    assert (refusal.slots_per_seat, refusal.seats, refusal.depth) == (9, 32, 8)


def test_the_refusal_without_speculation() -> None:
    words = REFUSAL[: REFUSAL.index(" Speculative")].replace("43.40", "4.82").replace("38.70", "2.00")
    refusal = FACTS.exit(1, words).refusal
    assert refusal is not None
    assert (refusal.slots_per_seat, refusal.seats, refusal.depth) == (None, 32, None)
    assert refusal.needed_bytes == round(4.82 * 2**30)


@pytest.mark.parametrize(
    ("code", "log", "words"),
    [
        (
            2,
            "server: unknown argument '--speculative-config'\nusage: build/server --model <dir>\n",
            "unknown argument '--speculative-config'",
        ),
        (1, "server: listening on http://127.0.0.1:8403\nserver: failed to bind 127.0.0.1:8403\n", "failed to bind"),
        (
            1,
            "server: loading model from /none\nserver: fatal: model path is not a directory: /none\n",
            "not a directory: /none",
        ),
    ],
)
def test_failed_launches(code: int, log: str, words: str) -> None:
    found = FACTS.exit(code, log)
    assert (found.outcome, found.refusal) == ("launch_failed", None)
    assert words in found.reason


def test_a_dead_engine_behind_a_living_health() -> None:
    log = (DATA / "vllmcpp_startup_hybrid3.log").read_text("utf-8")
    assert FACTS.fatal(log) is not None
    assert "cannot create std::vector" in (FACTS.fatal(log) or "")
    assert FACTS.log_errors(log) == 4
    assert FACTS.exit(-15, log).outcome == "died"
    assert "engine-fatal" in FACTS.exit(-15, log).reason
    quiet = (DATA / "vllmcpp_startup_dense.log").read_text("utf-8")
    assert FACTS.fatal(quiet) is None
    assert FACTS.log_errors(quiet) == 0
    assert FACTS.alive(client({"/health": (200, "")}))


def test_the_pool_is_read_from_its_log() -> None:
    line = (
        "[kv-alloc] source=spec kind=0 block_size=32 num_kv_heads=2 head_size=32 dtype=2 page_size_bytes=8192 num_blocks=100\n"
    )
    pool = FACTS.pool(client({}), line, None)
    assert pool is not None
    assert (pool.blocks, pool.block_tokens) == (100, 32)
    assert "8192 bytes" in pool.source
    assert FACTS.figures(line) == {"page_bytes": 8192, "pool_blocks": 100}
    assert FACTS.pool(client({}), "", None) is None


def test_the_pool_of_a_build_with_metrics() -> None:
    row = 'vllm:cache_config_info{engine="0",kv_cache_size_tokens="3200",kv_cache_max_concurrency="1.5"} 1.0\n'
    pool = FACTS.pool(client({"/metrics": (200, row)}), "", None)
    assert pool is not None
    assert (pool.tokens, pool.max_concurrency, pool.blocks) == (3200, 1.5, None)


def test_configuration_and_version() -> None:
    log = (DATA / "vllmcpp_startup_hybrid3.log").read_text("utf-8")
    assert FACTS.config(client({}), log) == {"log.prefix_caching": False, "log.async_scheduling": True}
    assert FACTS.version(client({"/version": (200, {"version": "0.0.1"})}), "") == "0.0.1"
    assert FACTS.served(client({"/v1/models": (200, (DATA / "vllmcpp_get_v1_models.json").read_text())})) == ["tiny"]


def test_prompts_that_would_kill_it_are_known(tmp_path: Path) -> None:
    assert FACTS.max_prompt_tokens(settings(context=4096)) == 4095
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 1000}')
    assert FACTS.max_prompt_tokens(settings(model=str(tmp_path))) == 999
    assert FACTS.max_prompt_tokens(settings(model="/none")) is None


def test_cache_reset() -> None:
    assert "--enable-server-dev-mode" in (FACTS.reset_cache(client({})) or "")
    assert FACTS.reset_cache(client({"/reset_prefix_cache": (200, {"success": True})})) is None


def test_the_gauges_carry_its_name() -> None:
    assert all(gauge.meaning.startswith("vllm.cpp:") for gauge in FACTS.gauges)
