"""Servers that something else started, and adapters that somebody else installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from http_double import client

from evenhand.engines.attached import ENGINE, kind_of
from evenhand.engines.base import NEUTRAL, Capabilities, EngineError, PoolRequest, Settings
from evenhand.engines.registry import BUILT_IN, engine, engine_names

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1", "127.0.0.1:8000/v1/"]
)
def test_b86_four_forms_of_a_url(url: str) -> None:
    """B86: with or without /v1 and trailing slash."""
    assert ENGINE.launcher.locate(Settings(model="m", served_name="m", url=url)) == "http://127.0.0.1:8000"


def test_urls_that_are_none() -> None:
    for url in ("ftp://x", "http://", "http://h:x", "http://h/?q=1", "http://h/#f", "http://me:secret@h"):
        with pytest.raises(EngineError) as caught:
            ENGINE.launcher.locate(Settings(model="m", served_name="m", url=url))
        assert "secret" not in str(caught.value)
    with pytest.raises(EngineError, match="needs a url"):
        ENGINE.launcher.locate(Settings(model="m", served_name="m"))


def attached(**options: object) -> Settings:
    return Settings(model="m", served_name="m", url="http://127.0.0.1:9/v1", options=options)


def test_nothing_is_started() -> None:
    command = ENGINE.launcher.command(
        Settings(model="m", served_name="m", url="http://127.0.0.1:9", seats=3), 1, Capabilities()
    )
    assert command.argv == []
    assert command.inexpressible == ["seats is not expressed: the server at http://127.0.0.1:9 was started by something else."]


def test_every_setting_of_a_boot_is_named_as_not_expressed() -> None:
    asked: dict[str, Any] = {"prefix_caching": False, "cache_dtype": "fp8", "state_dtype": "float32", "dtype": "bfloat16"}
    asked |= {"method": "draft_model", "draft": "/m/draft", "depth": 3}
    pool = PoolRequest(bytes=1 << 30, state_bytes=0)
    settings = Settings(model="m", served_name="m", url="http://127.0.0.1:9", pool=pool, **asked)
    words = ENGINE.launcher.command(settings, 1, Capabilities()).inexpressible
    assert {text.partition(" ")[0] for text in words} == {*asked, "pool.bytes", "pool.state_bytes"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("sglang_metrics.txt", "sglang"), ("vllm_dense_metrics.txt", "vllm"), ("llamacpp_metrics.txt", "llama.cpp")],
)
def test_the_kind_is_told_by_the_series(name: str, kind: str) -> None:
    assert kind_of((DATA / name).read_text()) == kind
    assert kind_of(None) == "vllm"


def test_the_dialect_can_be_named() -> None:
    found = ENGINE.launcher.capabilities(attached(dialect="vllm.cpp"))
    assert not found.takes_ids
    dialect = ENGINE.dialect(attached(), found)
    assert not dialect.returns_ids
    with pytest.raises(EngineError, match="known are vllm"):
        ENGINE.launcher.capabilities(attached(dialect="x"))
    assert ENGINE.dialect(attached(), ENGINE.launcher.capabilities(attached())).returns_ids  # nothing answers: vLLM's


def test_facts_follow_the_kind() -> None:
    http = client({"/metrics": (200, (DATA / "sglang_metrics.txt").read_text()), "/flush_cache": (200, "Cache flushed.")})
    facts = type(ENGINE.facts)()
    pool = facts.pool(http, "", None)
    assert pool is not None
    assert pool.tokens == 20000
    assert facts.reset_cache(http) is None


def test_gauges_hold_every_engines_series() -> None:
    usage = next(gauge for gauge in ENGINE.facts.gauges if gauge.name == "usage")
    assert {"vllm:kv_cache_usage_perc", "sglang:full_token_usage"} <= set(usage.metrics)
    names = [gauge.name for gauge in ENGINE.facts.gauges]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "reference"])
def test_built_in_adapters_keep_to_the_closed_list(name: str) -> None:
    found = engine(name)
    assert found.name == name
    assert not found.simulated
    assert {gauge.name for gauge in found.facts.gauges} <= set(NEUTRAL)
    assert all(gauge.meaning for gauge in found.facts.gauges)


def test_an_adapter_from_another_folder_is_found(tmp_path: Path) -> None:
    """Third parties add an engine by the entry-point group alone."""
    (tmp_path / "elsewhere.py").write_text(
        "from evenhand.engines.vllm import VllmEngine\nclass Mine(VllmEngine):\n    name = 'mine'\nENGINE = Mine()\n"
    )
    info = tmp_path / "elsewhere-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[evenhand.engines]\nmine = elsewhere:ENGINE\n")
    code = (
        "from evenhand.engines.registry import engine, engine_names; e = engine('mine'); "
        "print(e.name, 'mine' in engine_names(), e.facts.metrics_path)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.split() == ["mine", "True", "/metrics"]


def test_an_unknown_engine_is_named_with_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"vllm\.cpp"):
        engine("nope")
    assert engine_names()[0] == "vllm"
