"""The adapter's command lines and what it knows without a server."""

from __future__ import annotations

import pytest

from evenhand.engines import engine, engine_for
from evenhand.engines.base import Capabilities, EngineError, PoolRequest, Sampling, Settings
from evenhand.predict.shape import Budget, ModelShape

from .helpers import MODELS


def settings(**more: object) -> Settings:
    told: dict[str, object] = {"model": str(MODELS / "tiny-hybrid"), "served_name": "m", **more}
    return Settings(**told)  # type: ignore[arg-type]


def argv(**more: object) -> list[str]:
    asked = settings(**more)
    adapter = engine_for("reference", asked)
    return adapter.launcher.command(asked, 8123, adapter.launcher.capabilities(asked)).argv


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_depth_7_is_7_and_8_and_7() -> None:
    drafted = {"method": "ngram", "depth": 7}
    assert '"num_speculative_tokens": 7' in value(argv(**drafted), "--speculative-config")
    assert value(argv(options={"dialect": "sglang"}, **drafted), "--speculative-num-draft-tokens") == "8"
    assert '"num_speculative_tokens": 7' in value(argv(options={"dialect": "vllm.cpp"}, **drafted), "--speculative-config")


def test_settings_become_the_dialects_flags() -> None:
    asked = {"seats": 5, "context": 4096, "chunk_tokens": 512, "block_tokens": 32, "prefix_caching": True}
    words = argv(pool=PoolRequest(blocks=900), state_dtype="float32", **asked)
    assert [value(words, flag) for flag in ("--max-num-seqs", "--max-model-len", "--num-gpu-blocks-override")] == [
        "5",
        "4096",
        "900",
    ]
    assert "--enable-prefix-caching" in words
    assert value(words, "--host") == "127.0.0.1"
    words = argv(options={"dialect": "sglang"}, pool=PoolRequest(tokens=20_000), **asked)
    assert [value(words, flag) for flag in ("--max-running-requests", "--max-total-tokens")] == ["5", "20000"]
    words = argv(options={"dialect": "vllm.cpp"}, pool=PoolRequest(blocks=7488, state_bytes=1 << 30), **asked)
    assert value(words, "--num-blocks") == "7488"
    assert '"state_bytes":1073741824' in value(words, "--reference")


def test_what_cannot_be_said_is_said() -> None:
    asked = settings(
        options={"dialect": "vllm.cpp", "build": "2026-07"}, method="ngram", depth=3, pool=PoolRequest(fraction=0.5)
    )
    adapter = engine_for("reference", asked)
    command = adapter.launcher.command(asked, 1, adapter.launcher.capabilities(asked))
    assert len(command.inexpressible) == 2
    assert "--speculative-config" not in command.argv


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(EngineError, match="key 'nul_gap_fix' is not known"):
        engine_for("reference", settings(options={"nul_gap_fix": True}))
    with pytest.raises(EngineError, match="give both or neither"):
        argv(depth=3)
    with pytest.raises(EngineError, match="does not exist"):
        argv(executable="/nowhere/python")


def test_every_dialect_is_read_by_its_real_engines_facts() -> None:
    for dialect, prefix in (("vllm", "vllm:"), ("sglang", "sglang:"), ("vllm.cpp", "vllm:")):
        adapter = engine_for("reference", settings(options={"dialect": dialect}))
        usage = next(gauge for gauge in adapter.facts.gauges if gauge.name == "usage")
        assert usage.metrics[0].startswith(prefix)
        assert adapter.simulated
        assert adapter.name == "reference"
    old = engine_for("reference", settings(options={"dialect": "vllm.cpp", "build": "2026-07"}))
    assert old.facts.metrics_path is None
    assert not old.dialect(settings(options={"dialect": "vllm.cpp", "build": "2026-07"}), Capabilities()).returns_ids


def test_requests_carry_ids_and_every_sampling_field() -> None:
    for dialect in ("vllm", "sglang", "vllm.cpp"):
        asked = settings(options={"dialect": dialect})
        post = engine_for("reference", asked).dialect(asked, Capabilities()).request([5, 6], Sampling(max_tokens=3), "m")
        assert post.body["prompt"] == [5, 6]
        assert post.body["return_token_ids"] is True
        assert (post.body["temperature"], post.body["seed"], post.body["top_p"], post.body["n"]) == (0.0, 0, 1.0, 1)


def test_allocation_is_the_real_engines() -> None:
    shape = ModelShape(
        attention_layers=16,
        state_layers=48,
        kv_heads=4,
        head_dim=256,
        state_key_heads=16,
        state_value_heads=48,
        state_key_dim=128,
        state_value_dim=128,
        conv_width=4,
    )
    budget = Budget(seats=32, depth=8, pool_blocks=7488, block_tokens=32, state_bytes=int(38.70 * 2**30))
    asked = settings(options={"dialect": "vllm.cpp"})
    assert engine_for("reference", asked).allocate(shape, budget) == engine("vllm.cpp").allocate(shape, budget)
    assert engine_for("reference", asked).allocate(shape, budget).outcome == "refused"
