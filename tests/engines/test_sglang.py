"""SGLang and its traps: verify block, usage of several pools, clamped seats, an exit 137 that is no kill for memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from http_double import client

from evenhand.engines.base import Capabilities, EngineError, PoolRequest, Settings
from evenhand.engines.sglang import ENGINE

DATA = Path(__file__).parent / "data"
FACTS = ENGINE.facts
GPU = Capabilities(version="0.5.23", device="gpu")
CPU = Capabilities(version="0.5.23", device="cpu")


def text(name: str) -> str:
    return (DATA / name).read_text("utf-8")


def settings(**changes: Any) -> Settings:
    return Settings(model=changes.pop("model", "/models/m"), served_name="m", executable=sys.executable, **changes)


def value(argv: list[str], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None


def test_a_command_line() -> None:
    command = ENGINE.launcher.command(
        settings(seats=8, context=4096, chunk_tokens=1024, pool=PoolRequest(tokens=20000), prefix_caching=False, seed=3),
        8300,
        GPU,
    )
    argv = command.argv
    assert argv[1:3] == ["-m", "sglang.launch_server"]
    wanted = {
        "--model-path": "/models/m",
        "--host": "127.0.0.1",
        "--port": "8300",
        "--decode-log-interval": "1",
        "--max-running-requests": "8",
        "--context-length": "4096",
        "--chunked-prefill-size": "1024",
        "--max-total-tokens": "20000",
        "--random-seed": "3",
    }
    assert {flag: value(argv, flag) for flag in wanted} == wanted
    assert {"--enable-metrics", "--enable-cache-report", "--disable-radix-cache"} <= set(argv)
    assert "--device" not in argv
    assert command.inexpressible == []


def test_a_cpu_build() -> None:
    command = ENGINE.launcher.command(settings(args=("--attention-backend", "intel_amx")), 1, CPU)
    assert command.env["SGLANG_USE_CPU_ENGINE"] == "1"
    assert value(command.argv, "--device") == "cpu"
    assert command.argv.count("--attention-backend") == 1
    assert value(command.argv, "--attention-backend") == "intel_amx"
    assert "SGLANG_USE_CPU_ENGINE" not in ENGINE.launcher.command(settings(options={"device": "gpu"}), 1, CPU).env


@pytest.mark.parametrize(
    ("method", "algorithm", "steps"), [("draft_model", "STANDALONE", "7"), ("ngram", "NGRAM", None), ("dflash", "DFLASH", None)]
)
def test_the_verify_block_is_drafted_plus_one(method: str, algorithm: str, steps: str | None) -> None:
    argv = ENGINE.launcher.command(settings(method=method, depth=7, draft="/d"), 1, GPU).argv
    assert value(argv, "--speculative-num-draft-tokens") == "8"
    assert value(argv, "--speculative-algorithm") == algorithm
    assert value(argv, "--speculative-num-steps") == steps
    assert value(argv, "--speculative-draft-model-path") == "/d"


def test_an_unknown_method() -> None:
    with pytest.raises(EngineError, match="medusa"):
        ENGINE.launcher.command(settings(method="medusa", depth=1), 1, GPU)


def test_the_pool_is_counted_in_tokens(tmp_path: Path) -> None:
    argv = ENGINE.launcher.command(settings(pool=PoolRequest(blocks=100), block_tokens=32), 1, GPU).argv
    assert (value(argv, "--max-total-tokens"), value(argv, "--page-size")) == ("3200", "32")
    bare = ENGINE.launcher.command(settings(pool=PoolRequest(blocks=100, state_bytes=1)), 1, GPU)
    assert len(bare.inexpressible) == 2
    config = {"model_type": "qwen3", "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": 128, "dtype": "bfloat16"}))
    dense = ENGINE.launcher.command(settings(model=str(tmp_path), pool=PoolRequest(bytes=1024 * 1000)), 1, GPU)
    assert value(dense.argv, "--max-total-tokens") == "1000"
    (tmp_path / "config.json").write_text(json.dumps({**config, "layer_types": ["linear_attention"]}))
    assert ENGINE.launcher.command(settings(model=str(tmp_path), pool=PoolRequest(bytes=1000)), 1, GPU).inexpressible


def test_capabilities_from_sources(tmp_path: Path) -> None:
    srt = tmp_path / "sglang" / "srt"
    (srt / "arg_groups" / "fields").mkdir(parents=True)
    (srt / "entrypoints" / "openai").mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").write_text("raise RuntimeError\n")
    (srt / "server_args.py").write_text('parser.add_argument("--model-path")\n')
    (srt / "arg_groups" / "fields" / "schedule.py").write_text("class A:\n    max_total_tokens: A[int, 1] = 1\n")
    (srt / "entrypoints" / "openai" / "protocol.py").write_text("return_token_ids: bool = False\n")
    (tmp_path / "sglang-0.5.23.dist-info").mkdir()
    (tmp_path / "sglang-0.5.23.dist-info" / "METADATA").write_text("Version: 0.5.23\n")
    found = ENGINE.launcher.capabilities(settings(env={"PYTHONPATH": str(tmp_path)}))
    assert (found.version, found.returns_ids) == ("0.5.23", True)
    assert found.flags == {"--model-path", "--max-total-tokens"}
    assert ENGINE.dialect(settings(), found).returns_ids
    assert not ENGINE.dialect(settings(), Capabilities(returns_ids=False)).returns_ids


def test_not_installed(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="has no package sglang"):
        ENGINE.launcher.capabilities(settings(env={"PYTHONPATH": str(tmp_path), "PYTHONNOUSERSITE": "1"}))


def test_usage_is_the_attention_pools_own_figure() -> None:
    usage = next(gauge for gauge in FACTS.gauges if gauge.name == "usage")
    assert usage.metrics[0] == "sglang:full_token_usage"
    names = {gauge.name for gauge in FACTS.gauges}
    assert {"state_usage", "state_used_slots", "used_tokens"} <= names
    series = {line.split("{")[0] for line in text("sglang_metrics.txt").splitlines()}
    absent = [gauge.name for gauge in FACTS.gauges if not series & set(gauge.metrics)]
    assert set(absent) <= {"preemptions", "drafts", "cached_prompt_tokens"}


def test_the_pool_and_seats_of_the_h200() -> None:
    http = client({"/server_info": (200, text("sglang0.5.15_h200_server_info.json"))})
    log = text("sglang0.5.15_h200_startup.log")
    pool = FACTS.pool(http, log, text("sglang0.5.15_h200_metrics.txt"))
    assert pool is not None
    assert (pool.tokens, pool.block_tokens, pool.blocks, pool.state_slots) == (1117925, 1, 1117925, 640)
    assert pool.bytes == 2 * round(17.06 * 2**30)
    assert pool.source == "sglang:max_total_num_tokens"
    assert FACTS.seats(http, log) == 32
    assert FACTS.version(http, log) == "0.5.15"


def test_the_pool_without_metrics() -> None:
    pool = FACTS.pool(client({}), text("sglang0.5.15_h200_startup.log"), None)
    assert pool is not None
    assert (pool.tokens, pool.state_slots, pool.source) == (1117925, 640, "log: max_total_num_tokens")
    assert FACTS.seats(client({}), text("sglang0.5.15_h200_startup.log")) == 32
    assert FACTS.pool(client({}), "", None) is None


def test_data_parallel_pools_add_up() -> None:
    row = 'sglang:max_total_num_tokens{dp_rank="%d",tp_rank="%d"} %d\n'
    sizes = 'sglang:page_size{dp_rank="0",tp_rank="0"} 16\n'
    metrics = "".join(row % (rank, tp, tokens) for rank, tokens in ((0, 1600), (1, 3200)) for tp in (0, 1)) + sizes
    log = "KV Cache is allocated. K size: 1 GB, V size: 1 GB\nmax_total_num_tokens=1600, max_running_requests=4"
    info = {"dp_size": 2, "max_total_num_tokens": 1600, "page_size": 16, "internal_states": [{"max_mamba_cache_size": 5}] * 2}
    http = client({"/server_info": (200, info)})
    pool = FACTS.pool(http, log, metrics)
    assert pool is not None
    assert (pool.tokens, pool.blocks, pool.bytes, pool.state_slots) == (4800, 300, 4 << 30, 10)
    assert pool.by_engine == {"0": 1600, "1": 3200}
    for answers in (http, client({"/server_info": (200, {"dp_size": 2})})):
        one = FACTS.pool(answers, log, None)
        assert one is not None
        assert one.tokens == 3200


def test_seats_are_read_from_the_log_when_clamped() -> None:
    log = (
        "[..] max_running_requests is capped to 11 by the mamba state cache "
        "(max_mamba_cache_size=59, 5 state slots per request). To raise it\n"
        "[..] max_total_num_tokens=1000, chunked_prefill_size=2048, max_running_requests=11, context_len=4096\n"
    )
    assert FACTS.seats(client({}), log) == 11
    figures = FACTS.figures(log)
    assert (figures["seats_capped_requests"], figures["state_slots_per_request"]) == (11, 5)
    reduced = (
        "max_running_requests was reduced from the requested 40 to 32 (per dp worker) due to the available KV cache capacity."
    )
    assert FACTS.figures(reduced)["seats_capped_requests"] == 32


def test_effective_configuration() -> None:
    config = FACTS.config(client({"/server_info": (200, text("sglang0.5.15_h200_server_info.json"))}), "")
    assert config["max_mamba_cache_size"] == 640
    assert config["mamba_radix_cache_strategy"] == "extra_buffer"
    assert not {"api_key", "port", "host", "model_path"} & set(config)
    old = FACTS.config(client({"/get_server_info": (200, text("sglang_server_info.json"))}), "")
    assert old["attention_backend"] == "torch_native"
    assert old["graphs.decode"] == "disabled"


def test_exit_137_is_not_out_of_memory() -> None:
    found = FACTS.exit(137, text("sglang_exit_137.log"))
    assert found.outcome == "launch_failed"
    assert "No module named 'sgl_kernel.mamba'" in found.reason
    assert "not an out-of-memory kill" in found.reason
    assert "not an out-of-memory kill" in FACTS.exit(-9, text("sglang_exit_137.log")).reason
    assert "out-of-memory" not in FACTS.exit(-9, "[..] Load weight begin.").reason
    assert FACTS.fatal(text("sglang_exit_137.log")) is None
    assert FACTS.log_errors(text("sglang_exit_137.log")) >= 1


@pytest.mark.parametrize(
    ("words", "slots"),
    [
        (
            "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests. "
            "max_mamba_cache_size=2, mamba_ratio=5, resulting max_num_reqs=0. Try: (1) reduce",
            5,
        ),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value", None),
    ],
)
def test_refusals(words: str, slots: int | None) -> None:
    found = FACTS.exit(
        137,
        f"[..] Scheduler hit an exception: Traceback (most recent call last):\n{words}\nReceived sigquit from a child process.",
    )
    assert found.outcome == "refused"
    assert found.refusal is not None
    assert found.refusal.slots_per_seat == slots
    assert words.removeprefix("RuntimeError: ")[:30] in found.reason


def test_a_death_after_the_start() -> None:
    log = "The server is fired up and ready to roll!\n[..] Scheduler hit an exception: Traceback\nRuntimeError: boom\n"
    assert FACTS.exit(-9, log).outcome == "died"
    assert "boom" in FACTS.exit(-9, log).reason


def test_figures() -> None:
    figures = FACTS.figures(text("sglang0.5.15_h200_startup.log"))
    assert figures["kv_cache_tokens"] == 1117925
    assert figures["state_slots"] == 640
    assert figures["state_ssm_bytes"] == pytest.approx(30.05 * 2**30)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, "Cache flushed."), None),
        ((400, "Cache not flushed because there are pending requests"), "400"),
        ((0, ""), "did not answer"),
    ],
)
def test_cache_reset(answer: tuple[int, object], words: str | None) -> None:
    why = FACTS.reset_cache(client({"/flush_cache": answer}))
    assert why is None if words is None else words in (why or "")
