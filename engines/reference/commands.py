"""Neutral settings -> the flags of the dialect that the embedded engine is asked to speak. Pure."""

from __future__ import annotations

import json

from evenhand.engines.base import EngineError, PoolRequest, Settings
from evenhand.engines.reference.dialects.sglang import algorithm
from evenhand.engines.reference.options import Options

Flags = tuple[list[str], list[str], dict[str, object]]
"""arguments, sentences about what cannot be expressed, options that the settings imply"""


def check(settings: Settings) -> None:
    """Contradictions in the settings. Raises EngineError with one sentence."""
    if settings.depth < 0:
        raise EngineError(f"drafted depth is {settings.depth}: it must be 0 or more.")
    if bool(settings.depth) != bool(settings.method):
        raise EngineError(f"drafted depth is {settings.depth}, draft method is {settings.method!r}: give both or neither.")
    for name in ("seats", "context", "block_tokens", "chunk_tokens"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise EngineError(f"{name} is {value}: it must be at least 1.")


def flags_for(settings: Settings, options: Options) -> Flags:
    """Arguments for the dialect in `options`."""
    return {"vllm": _vllm, "sglang": _sglang, "vllm.cpp": _vllmcpp}[options.dialect](settings, options)


def _pairs(*pairs: tuple[str, object | None]) -> list[str]:
    return [word for flag, value in pairs if value is not None for word in (flag, str(value))]


def _implied(pool: PoolRequest) -> dict[str, object]:
    return {} if pool.state_bytes is None else {"state_bytes": pool.state_bytes}


def _vllm(settings: Settings, options: Options) -> Flags:
    pool = settings.pool
    cannot: list[str] = []
    argv = ["--model", settings.model, "--served-model-name", settings.served_name]
    argv += _pairs(
        ("--max-model-len", settings.context),
        ("--max-num-seqs", settings.seats),
        ("--max-num-batched-tokens", settings.chunk_tokens),
        ("--block-size", settings.block_tokens),
        ("--dtype", settings.dtype),
        ("--kv-cache-dtype", settings.cache_dtype),
        ("--mamba-ssm-cache-dtype", settings.state_dtype),
        ("--num-gpu-blocks-override", pool.blocks),
        ("--kv-cache-memory-bytes", pool.bytes),
        ("--gpu-memory-utilization", pool.fraction),
        ("--seed", settings.seed),
    )
    if pool.tokens is not None:
        cannot.append(f"pool.tokens = {pool.tokens} is not expressed: this dialect (vLLM) counts its pool in blocks or bytes.")
    if settings.prefix_caching is not None:
        argv.append("--enable-prefix-caching" if settings.prefix_caching else "--no-enable-prefix-caching")
    if settings.method:
        speculation = {"method": settings.method, "num_speculative_tokens": settings.depth}
        argv += ["--speculative-config", json.dumps(speculation | ({"model": settings.draft} if settings.draft else {}))]
    return [*argv, "--enable-prompt-tokens-details"], cannot, _implied(pool)


def _sglang(settings: Settings, options: Options) -> Flags:
    pool = settings.pool
    cannot: list[str] = []
    implied = _implied(pool)
    tokens = pool.tokens
    if pool.blocks is not None and settings.block_tokens:
        tokens = pool.blocks * settings.block_tokens
    elif pool.blocks is not None:
        cannot.append(
            f"pool.blocks = {pool.blocks} is not expressed: this dialect (SGLang) counts tokens; give block_tokens too."
        )
    argv = ["--model-path", settings.model, "--served-model-name", settings.served_name, "--enable-metrics"]
    argv += _pairs(
        ("--context-length", settings.context),
        ("--max-running-requests", settings.seats),
        ("--chunked-prefill-size", settings.chunk_tokens),
        ("--page-size", settings.block_tokens),
        ("--dtype", settings.dtype),
        ("--kv-cache-dtype", settings.cache_dtype),
        ("--mamba-ssm-dtype", settings.state_dtype),
        ("--max-total-tokens", tokens),
        ("--mem-fraction-static", pool.fraction if pool.bytes is None else 1.0),
        ("--random-seed", settings.seed),
    )
    if pool.bytes is not None:
        implied["memory_bytes"] = pool.bytes
    if settings.prefix_caching is False:
        argv.append("--disable-radix-cache")
    if settings.method:
        argv += _pairs(("--speculative-algorithm", algorithm(settings.method)))
        argv += ["--speculative-num-draft-tokens", str(settings.depth + 1)]
        argv += _pairs(("--speculative-draft-model-path", settings.draft))
    return [*argv, "--enable-cache-report", "--decode-log-interval", "1"], cannot, implied


def _vllmcpp(settings: Settings, options: Options) -> Flags:
    pool = settings.pool
    cannot: list[str] = []
    old = options.build == "2026-07"
    argv = ["--model", settings.model, "--served-model-name", settings.served_name]
    argv += _pairs(
        ("--max-model-len", settings.context),
        ("--max-num-seqs", settings.seats),
        ("--max-num-batched-tokens", settings.chunk_tokens),
        ("--block-size", settings.block_tokens),
        ("--num-blocks", pool.blocks),
    )
    newer = {
        "--kv-cache-memory": (pool.bytes, "pool.bytes"),
        "--kv-cache-dtype": (settings.cache_dtype, "cache_dtype"),
        "--speculative-config": (
            json.dumps({"method": settings.method, "num_speculative_tokens": settings.depth}) if settings.method else None,
            "speculation",
        ),
    }
    for flag, (value, name) in newer.items():
        if value is not None and old:
            cannot.append(f"{name} is not expressed: this build of the dialect (vllm.cpp 2026-07) has no {flag}.")
        elif value is not None:
            argv += [flag, str(value)]
    for name in ("fraction", "tokens"):
        if getattr(pool, name) is not None:
            cannot.append(f"pool.{name} is not expressed: this dialect (vllm.cpp) counts its pool in blocks or bytes.")
    if settings.prefix_caching is not None:
        argv.append("--enable-prefix-caching" if settings.prefix_caching else "--no-enable-prefix-caching")
    if not old:
        argv.append("--enable-server-dev-mode")
    return argv, cannot, _implied(pool)


def longest_prompt(settings: Settings, options: Options) -> int | None:
    """vllm.cpp's engine dies of longer prompts; the other dialects reject them."""
    return settings.context if options.dialect == "vllm.cpp" else None
