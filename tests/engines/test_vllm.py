"""vLLM: command lines from neutral settings, and what is read from recorded answers and logs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from http_double import client

from evenhand.engines.base import Capabilities, EngineError, PoolRequest, Settings
from evenhand.engines.vllm import ENGINE, READY

DATA = Path(__file__).parent / "data"
FACTS = ENGINE.facts
GPU = Capabilities(version="0.33.0")
CPU = Capabilities(version="0.32.0+cpu")


def text(name: str) -> str:
    return (DATA / name).read_text("utf-8")


def settings(**changes: Any) -> Settings:
    return Settings(model=changes.pop("model", "/models/m"), served_name="m", executable=sys.executable, **changes)


def value(argv: list[str], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None


def test_a_command_line_from_neutral_settings() -> None:
    command = ENGINE.launcher.command(
        settings(
            context=4096,
            seats=8,
            chunk_tokens=1024,
            block_tokens=32,
            prefix_caching=False,
            cache_dtype="fp8",
            state_dtype="float32",
            dtype="bfloat16",
            seed=7,
            args=("--enforce-eager",),
            env={"VLLM_NO_USAGE_STATS": "0", "X": "1"},
        ),
        8123,
        GPU,
    )
    argv = command.argv
    assert argv[:4] == [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
    wanted = {
        "--served-model-name": "m",
        "--host": "127.0.0.1",
        "--port": "8123",
        "--max-model-len": "4096",
        "--max-num-seqs": "8",
        "--max-num-batched-tokens": "1024",
        "--block-size": "32",
        "--kv-cache-dtype": "fp8",
        "--mamba-ssm-cache-dtype": "float32",
        "--dtype": "bfloat16",
        "--seed": "7",
    }
    assert {flag: value(argv, flag) for flag in wanted} == wanted
    assert "--no-enable-prefix-caching" in argv
    assert "--enable-prompt-tokens-details" in argv
    assert argv[-1] == "--enforce-eager"
    assert command.env["HF_HUB_OFFLINE"] == command.env["VLLM_SERVER_DEV_MODE"] == "1"
    assert command.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert (command.env["VLLM_NO_USAGE_STATS"], command.env["X"]) == ("0", "1")
    assert "VLLM_CPU_KVCACHE_SPACE" not in command.env
    assert command.inexpressible == []


@pytest.mark.parametrize(
    ("pool", "capabilities", "flag", "figure", "space"),
    [
        (PoolRequest(blocks=300), GPU, "--num-gpu-blocks-override", "300", None),
        (PoolRequest(blocks=300), CPU, "--num-gpu-blocks-override", "300", "1"),
        (PoolRequest(bytes=2**30), GPU, "--kv-cache-memory-bytes", "1073741824", None),
        (PoolRequest(bytes=2**30 + 1), CPU, "--kv-cache-memory-bytes", "1073741825", None),
        (PoolRequest(fraction=0.5), GPU, "--gpu-memory-utilization", "0.5", None),
        (PoolRequest(), CPU, "--num-gpu-blocks-override", None, None),
    ],
)
def test_the_pool(pool: PoolRequest, capabilities: Capabilities, flag: str, figure: str | None, space: str | None) -> None:
    command = ENGINE.launcher.command(settings(pool=pool), 1, capabilities)
    assert value(command.argv, flag) == figure
    assert command.env.get("VLLM_CPU_KVCACHE_SPACE") == space
    assert command.inexpressible == []


def test_a_build_without_a_flag_says_so() -> None:
    old = Capabilities(version="0.20.0+cpu", flags=frozenset({"--num-gpu-blocks-override"}))
    whole = ENGINE.launcher.command(settings(pool=PoolRequest(bytes=2 * 2**30)), 1, old)
    assert whole.env["VLLM_CPU_KVCACHE_SPACE"] == "2"
    part = ENGINE.launcher.command(settings(pool=PoolRequest(bytes=2**30 + 1)), 1, old)
    assert any("pool.bytes = 1073741825 is not expressed" in words for words in part.inexpressible)
    assert any("--enable-prompt-tokens-details" in words for words in part.inexpressible)


def test_tokens_and_state_bytes_cannot_be_said() -> None:
    words = ENGINE.launcher.command(settings(pool=PoolRequest(tokens=1000, state_bytes=5)), 1, GPU).inexpressible
    assert len(words) == 2
    dense = ENGINE.launcher.command(settings(pool=PoolRequest(tokens=1000), block_tokens=16), 1, GPU)
    assert value(dense.argv, "--num-gpu-blocks-override") == "63"


def test_drafting_carries_the_drafted_count() -> None:
    argv = ENGINE.launcher.command(settings(method="draft_model", draft="/d", depth=7), 1, GPU).argv
    config = json.loads(value(argv, "--speculative-config") or "")
    assert config == {"method": "draft_model", "model": "/d", "num_speculative_tokens": 7}
    tuned = settings(method="ngram", depth=3, options={"speculative": {"prompt_lookup_max": 4}})
    config = json.loads(value(ENGINE.launcher.command(tuned, 1, GPU).argv, "--speculative-config") or "")
    assert config == {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 3}, "no draft method"),
        ({"method": "mtp"}, "depth of"),
        ({"method": "draft_model", "depth": 2}, "draft.model"),
        ({"seats": 0}, "at least 1"),
        ({"args": ("--port", "8000")}, "leave it out"),
        ({"args": ("--host=0.0.0.0",)}, "leave it out"),
        ({"pool": PoolRequest(blocks=3, bytes=4)}, "as blocks and as bytes"),
        ({"pool": PoolRequest(fraction=1.5)}, "at most 1"),
    ],
)
def test_contradictions_are_one_sentence(changes: dict[str, Any], words: str) -> None:
    if "method" in changes and "depth" not in changes:
        words = "depth 0"
    with pytest.raises(EngineError, match=words):
        ENGINE.launcher.command(settings(**changes), 1, GPU)


def test_hybrids_cache_states_in_align_mode(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"layer_types": ["linear_attention", "full_attention"]}))
    hybrid = settings(model=str(tmp_path), prefix_caching=True)
    assert value(ENGINE.launcher.command(hybrid, 1, GPU).argv, "--mamba-cache-mode") == "align"
    assert "--mamba-cache-mode" not in ENGINE.launcher.command(settings(model=str(tmp_path), prefix_caching=False), 1, GPU).argv
    (tmp_path / "config.json").write_text(json.dumps({"layer_types": ["full_attention"]}))
    assert "--mamba-cache-mode" not in ENGINE.launcher.command(settings(model=str(tmp_path), prefix_caching=True), 1, GPU).argv


def fake_environment(root: Path, *, version: str = "0.32.0+cpu") -> Path:
    """A virtual environment with vLLM's files as far as the launcher reads them."""
    site = root / "lib" / "python3.11" / "site-packages"
    (site / "vllm" / "engine").mkdir(parents=True)
    (site / "vllm" / "entrypoints" / "launchers").mkdir(parents=True)
    (site / "vllm" / "__init__.py").write_text("raise RuntimeError('must not be imported')\n")
    (site / "vllm" / "engine" / "arg_utils.py").write_text('g.add_argument("--max-num-seqs", "--x")\n')
    (site / "vllm" / "entrypoints" / "launchers" / "cli_args.py").write_text(
        "class A:\n    enable_prompt_tokens_details: bool = False\n"
    )
    (site / f"vllm-{version}.dist-info").mkdir()
    (site / f"vllm-{version}.dist-info" / "METADATA").write_text(f"Name: vllm\nVersion: {version}\n")
    binaries = root / "bin"
    binaries.mkdir()
    (binaries / "python").symlink_to(sys.executable)
    (binaries / "vllm").write_text(f"#!{binaries}/python\nimport vllm\n")
    (binaries / "vllm").chmod(0o755)
    return site


def test_capabilities_without_importing(tmp_path: Path) -> None:
    site = fake_environment(tmp_path)
    where = Settings(model="m", served_name="m", environment=str(tmp_path), env={"PYTHONPATH": str(site)})
    assert ENGINE.launcher.locate(where) == str(tmp_path / "bin" / "vllm")
    assert ENGINE.launcher.package_folder(where) == str(site / "vllm")
    found = ENGINE.launcher.capabilities(where)
    assert found.version == "0.32.0+cpu"
    assert found.flags == {"--max-num-seqs", "--x", "--enable-prompt-tokens-details"}
    assert ENGINE.launcher.files(where)[:2] == [
        str(tmp_path / "bin" / "vllm"),
        str(site / "vllm-0.32.0+cpu.dist-info" / "METADATA"),
    ]


def test_what_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="neither bin/python nor a package vllm"):
        ENGINE.launcher.locate(Settings(model="m", served_name="m", environment=str(tmp_path)))
    with pytest.raises(EngineError, match="does not exist"):
        ENGINE.launcher.locate(Settings(model="m", served_name="m", executable=str(tmp_path / "none")))
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(EngineError, match="cannot be run"):
        ENGINE.launcher.locate(Settings(model="m", served_name="m", executable=str(file)))


def test_not_installed_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PATH", "/nowhere")
    with pytest.raises(EngineError, match="vLLM was not found"):
        ENGINE.launcher.locate(Settings(model="m", served_name="m"))


def test_effective_configuration_is_an_allow_list() -> None:
    http = client({"/server_info": (200, text("vllm_server_info.json"))})
    config = FACTS.config(http, "INFO Using FLASH_ATTN attention backend out of potential backends")
    assert config["cache_config.mamba_cache_mode"] == "none"
    assert config["scheduler_config.max_num_seqs"] == 8
    assert config["log.attention_backend"] == "FLASH_ATTN"
    assert not [
        key for key in config if ("token" in key.split(".")[-1] and "hf" in key) or "instance" in key or key.endswith(".model")
    ]
    assert FACTS.seats(http, "") == 8


def test_configuration_without_developer_mode() -> None:
    config = FACTS.config(client({"/metrics": (200, text("vllm_hybrid_metrics.txt"))}), "")
    assert config["cache_config.mamba_cache_mode"] == "align"
    assert "cache_config.num_gpu_blocks" not in config


@pytest.mark.parametrize(
    ("name", "blocks", "size", "tokens"),
    [("vllm0.26_h200_metrics.txt", 900, 272, 238795), ("vllm_dense_metrics.txt", 8192, 128, 1048576)],
)
def test_the_pool_is_read_back(name: str, blocks: int, size: int, tokens: int) -> None:
    pool = FACTS.pool(client({}), "", text(name))
    assert pool is not None
    assert (pool.blocks, pool.usable_blocks, pool.block_tokens, pool.tokens) == (blocks, blocks - 1, size, tokens)
    assert pool.source == "vllm:cache_config_info"


def test_bytes_of_an_overridden_pool_come_from_the_log() -> None:
    log = text("vllm0.26_h200_startup.log")
    pool = FACTS.pool(client({}), log, text("vllm0.26_h200_metrics.txt"))
    assert pool is not None
    assert pool.bytes == pytest.approx(900 * 8 * 272 * 4096, rel=1e-3)
    assert "before the override" in pool.source


def test_the_pool_from_the_log_alone() -> None:
    pool = FACTS.pool(client({}), text("vllm0.26_h200_startup.log"), None)
    assert pool is not None
    assert (pool.blocks, pool.block_tokens, pool.tokens, pool.max_concurrency, pool.source) == (900, 272, 238795, 3.64, "log")
    assert FACTS.pool(client({}), "", None) is None


def test_data_parallel_pools_are_one() -> None:
    """The front end adds the engines' blocks up before it shows them once per engine; tokens and bytes are one engine's."""
    row = (
        'vllm:cache_config_info{engine="%d",num_gpu_blocks="200",block_size="16",kv_cache_size_tokens="1600",'
        'kv_cache_memory_bytes="4096",kv_cache_max_concurrency="2.5",num_gpu_blocks_override="%s"} 1.0\n'
    )
    pool = FACTS.pool(client({}), "", row % (0, "None") + row % (1, "None"))
    assert pool is not None
    assert (pool.blocks, pool.usable_blocks, pool.tokens, pool.bytes, pool.max_concurrency) == (200, 198, 3200, 8192, 5.0)
    assert pool.by_engine == {"0": 1600, "1": 1600}
    log = "Overriding num_gpu_blocks=400 with num_gpu_blocks_override=100"
    pool = FACTS.pool(client({}), log, row % (0, "100") + row % (1, "100"))
    assert pool is not None
    assert (pool.blocks, pool.bytes) == (200, 2 * 100 * 4096 // 400)


def test_a_pool_too_small_is_refused_with_its_figures() -> None:
    found = FACTS.exit(1, text("vllm_refused_pool.log"))
    assert found.outcome == "refused"
    assert found.refusal is not None
    assert found.refusal.text.startswith("To serve at least one request with the model's max seq len (8192)")
    assert found.refusal.needed_bytes == round(0.01 * 2**30)
    assert found.refusal.available_bytes == 0
    assert found.refusal.max_context_tokens == 384
    assert "exit code 1" in found.reason


@pytest.mark.parametrize(
    ("words", "needed", "available"),
    [
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", None, None),
        (
            "ValueError: Free memory on device cuda:0 (10.5/139.8 GiB) on startup is less than desired GPU memory utilization "
            "(0.92, 128.6 GiB). Decrease GPU memory utilization",
            128.6,
            10.5,
        ),
        (
            "ValueError: Available memory on node 0 (1.5/13.96 GiB) on kv cache allocation is less than requested memory "
            "for kv (5.0 GiB). Decrease --kv-cache-memory-bytes",
            5.0,
            1.5,
        ),
    ],
)
def test_other_refusals(words: str, needed: float | None, available: float | None) -> None:
    found = FACTS.exit(
        1, f"(EngineCore pid=1) ERROR 11-29 22:07:52 [core.py:1510] {words}\nRuntimeError: Engine core initialization failed."
    )
    assert found.outcome == "refused"
    assert found.refusal is not None
    assert found.refusal.needed_bytes == (None if needed is None else round(needed * 2**30))
    assert found.refusal.available_bytes == (None if available is None else round(available * 2**30))


def test_b56_words_that_no_pattern_knows() -> None:
    """B56: a refusal in unknown words is still a refusal, with its reason."""
    log = "INFO loading weights\nERROR ValueError: requested length 9000 needs more cache than the 3600 tokens available\n"
    found = FACTS.exit(1, log)
    assert found.outcome == "refused"
    assert "needs more cache than the 3600 tokens" in found.reason


@pytest.mark.parametrize(
    ("log", "outcome", "words"),
    [
        ("error: unrecognized arguments: --bogus\n", "launch_failed", "unrecognized arguments: --bogus"),
        ("", "launch_failed", "the log says nothing"),
        ("ModuleNotFoundError: No module named 'vllm'", "launch_failed", "No module named 'vllm'"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "launch_failed", "out of memory"),
    ],
)
def test_other_ends(log: str, outcome: str, words: str) -> None:
    found = FACTS.exit(2, log)
    assert (found.outcome, found.refusal) == (outcome, None)
    assert words in found.reason
    assert FACTS.exit(None, log).outcome == "launch_failed"


def test_a_crash_after_the_start_is_a_death_with_its_first_cause() -> None:
    log = text("vllm_crash_after_start.log")
    if READY not in log:
        log = f"INFO: {READY}.\n{log}"
    found = FACTS.exit(-9, log)
    assert found.outcome == "died"
    assert "'function' object is not subscriptable" in found.reason
    assert "SIGKILL" in found.reason
    assert FACTS.fatal(log)
    assert FACTS.log_errors(log) > 10


def test_warnings_are_not_the_cause() -> None:
    found = FACTS.exit(1, f"{READY}\n" + text("vllm0.26_h200_dies.log"))
    assert found.outcome == "died"
    assert "flashinfer'" not in found.reason.split(";")[0] or "ERROR" in text("vllm0.26_h200_dies.log")


def test_a_quiet_log_is_not_fatal() -> None:
    log = text("vllm_startup_hybrid.log")
    assert FACTS.fatal(log) is None
    assert FACTS.log_errors(log) == 0


def test_figures_of_the_log() -> None:
    hybrid = FACTS.figures(text("vllm_startup_hybrid.log"))
    assert hybrid["attention_block_tokens"] == 256
    assert hybrid["state_page_padding_share"] == pytest.approx(0.9104)
    gpu = FACTS.figures(text("vllm0.26_h200_startup.log"))
    assert gpu["kv_memory_available_bytes"] == pytest.approx(121.28 * 2**30)
    assert gpu["model_load_s"] == pytest.approx(0.765889)
    assert gpu["weight_memory_bytes"] == pytest.approx(6.66 * 2**30)
    assert gpu["kv_cache_tokens"] == 238795
    assert gpu["engine_init_s"] == pytest.approx(92.38)
    assert FACTS.figures("") == {}


def test_the_version() -> None:
    assert FACTS.version(client({"/version": (200, {"version": "0.32.0"})}), "") == "0.32.0"
    assert FACTS.version(client({}), text("vllm_startup_hybrid.log")) == "0.32.0"
    assert FACTS.version(client({}), "") is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, {"success": True}), None),
        ((200, ""), None),
        ((200, {"success": False}), "was not reset"),
        ((404, ""), "VLLM_SERVER_DEV_MODE=1"),
        ((500, ""), "500"),
        ((0, ""), "did not answer"),
    ],
)
def test_cache_reset(answer: tuple[int, object], words: str | None) -> None:
    why = FACTS.reset_cache(client({"/reset_prefix_cache": answer}))
    assert why is None if words is None else words in (why or "")


def test_names_and_health() -> None:
    http = client({"/v1/models": (200, {"data": [{"id": "toy"}]}), "/health": (200, "")})
    assert FACTS.served(http) == ["toy"]
    assert FACTS.alive(http)
    assert FACTS.served(client({"/v1/models": (0, "")})) == []
    assert FACTS.served(client({"/v1/models": (200, "<html>")})) == []
    assert not FACTS.alive(client({"/health": (500, "")}))


def test_every_gauge_that_has_a_recorded_series_is_found() -> None:
    names = {line.split("{")[0] for line in text("vllm_draft_metrics.txt").splitlines()}
    assert [gauge.name for gauge in FACTS.gauges if not names & set(gauge.metrics)] == []


def test_a_failed_start_is_left_to_its_exit() -> None:
    assert FACTS.fatal(text("vllm_refused_pool.log")) is None
