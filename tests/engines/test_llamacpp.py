"""llama.cpp through llama-server or xllamacpp."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from http_double import client

from evenhand.engines.base import Capabilities, EngineError, PoolRequest, Sampling, Settings
from evenhand.engines.llamacpp import ENGINE, SERVER
from evenhand.engines.llamacpp_server import parse

DATA = Path(__file__).parent / "data"
FACTS = ENGINE.facts


def settings(**changes: Any) -> Settings:
    return Settings(model=changes.pop("model", "/m.gguf"), served_name="m", executable=sys.executable, **changes)


def test_a_command_line_that_the_server_script_takes() -> None:
    command = ENGINE.launcher.command(
        settings(seats=8, context=4096, chunk_tokens=256, prefix_caching=False, cache_dtype="f16"), 8500, Capabilities()
    )
    assert command.argv[:2] == [sys.executable, str(SERVER)]
    args = parse(command.argv[2:])
    assert (args.model, args.alias, args.host, args.port) == ("/m.gguf", "m", "127.0.0.1", 8500)
    assert (args.parallel, args.ctx_size, args.batch_size, args.no_cache_prompt) == (8, 32768, 256, True)
    assert (args.cache_type_k, args.cache_type_v, args.metrics, args.slots, args.props) == ("f16", "f16", True, True, True)


def test_what_it_cannot_say() -> None:
    command = ENGINE.launcher.command(
        settings(pool=PoolRequest(blocks=5), method="ngram", depth=2, dtype="bfloat16", block_tokens=16), 1, Capabilities()
    )
    assert [words.split(" ")[0] for words in command.inexpressible] == ["pool.blocks", "block_tokens", "dtype", "method"]
    tokens = ENGINE.launcher.command(settings(pool=PoolRequest(tokens=1000)), 1, Capabilities())
    assert parse(tokens.argv[2:]).ctx_size == 1000


def test_a_folder_must_hold_one_gguf(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="holds 0"):
        ENGINE.launcher.command(settings(model=str(tmp_path)), 1, Capabilities())
    (tmp_path / "model.gguf").touch()
    assert str(tmp_path / "model.gguf") in ENGINE.launcher.command(settings(model=str(tmp_path)), 1, Capabilities()).argv


def test_capabilities(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="has no package xllamacpp"):
        ENGINE.launcher.capabilities(settings(env={"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}))
    (tmp_path / "xllamacpp").mkdir()
    (tmp_path / "xllamacpp" / "__init__.py").write_text("raise RuntimeError\n")
    (tmp_path / "xllamacpp-2026.1.dist-info").mkdir()
    (tmp_path / "xllamacpp-2026.1.dist-info" / "METADATA").write_text("Version: 2026.1\n")
    found = ENGINE.launcher.capabilities(settings(env={"PYTHONPATH": str(tmp_path)}))
    assert found.version == "2026.1"
    assert {"--model", "--no-cache-prompt", "--ctx-size"} <= found.flags
    binary = tmp_path / "llama-server"
    binary.write_text("#!/bin/sh\necho '--model F --ctx-size N'\n")
    binary.chmod(0o755)
    native = ENGINE.launcher.capabilities(Settings(model="m", served_name="m", executable=str(binary)))
    assert native.flags == {"--model", "--ctx-size"}


def test_its_own_sampling_parameters_are_neutral() -> None:
    body = ENGINE.dialect(settings(prefix_caching=False), Capabilities()).request([1], Sampling(max_tokens=1), "m").body
    assert (body["top_k"], body["min_p"], body["repeat_penalty"], body["cache_prompt"]) == (0, 0.0, 1.0, False)
    assert "repetition_penalty" not in body
    assert ENGINE.dialect(settings(), Capabilities()).request("a", Sampling(max_tokens=1), "m").body["cache_prompt"] is True


def test_facts() -> None:
    http = client(
        {
            "/props": (200, (DATA / "llamacpp_get_props.json").read_bytes()),
            "/health": (200, {"status": "ok"}),
            "/v1/models": (200, {"data": [{"id": "tiny"}]}),
        }
    )
    pool = FACTS.pool(http, "llama_kv_cache: CPU KV buffer size =  2.50 MiB\n", None)
    assert pool is not None
    assert pool.tokens == pool.blocks
    assert pool.bytes == round(2.5 * 2**20)
    assert FACTS.seats(http, "") == FACTS.config(http, "")["total_slots"]
    assert FACTS.served(http) == ["tiny"]
    assert FACTS.served(client({"/health": (503, "")})) == []
    assert FACTS.reset_cache(http) is not None
    series = {line.split(" ")[0] for line in (DATA / "llamacpp_metrics.txt").read_text().splitlines()}
    assert [gauge.name for gauge in FACTS.gauges if not series & set(gauge.metrics)] == []


def test_ends() -> None:
    failed = FACTS.exit(1, "llamacpp-server: fatal: RuntimeError: Failed to load model\n")
    assert failed.outcome == "launch_failed"
    assert "Failed to load model" in failed.reason
    refused = FACTS.exit(1, "ggml: failed to allocate CPU buffer of size 99999999\n")
    assert refused.outcome == "refused"
    assert (
        FACTS.exit(-6, "0.00.049 I srv init: listening on http://127.0.0.1:1\nggml.c:1: GGML_ASSERT(x) failed\n").outcome
        == "died"
    )
    assert FACTS.fatal("ggml.c:1: GGML_ASSERT(x) failed")
    assert FACTS.log_errors("0.00.815.030 E srv send_error: task\n0.00.8 I srv ok\n") == 1
