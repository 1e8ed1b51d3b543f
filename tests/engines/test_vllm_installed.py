"""The vLLM of EVENHAND_VLLM_ENV: every flag that the adapter passes is one that this build defines. Nothing is booted."""

from __future__ import annotations

import os

import pytest

from evenhand.engines.base import PoolRequest, Settings
from evenhand.engines.vllm import ENGINE

ENVIRONMENT = os.environ.get("EVENHAND_VLLM_ENV", "")
pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not ENVIRONMENT, reason="EVENHAND_VLLM_ENV names no vLLM environment")]


@pytest.mark.parametrize("pool", [PoolRequest(blocks=10), PoolRequest(bytes=2**30), PoolRequest(fraction=0.5)])
def test_every_flag_exists(pool: PoolRequest) -> None:
    settings = Settings(
        model="m",
        served_name="m",
        environment=ENVIRONMENT,
        context=4096,
        seats=8,
        chunk_tokens=1024,
        block_tokens=32,
        prefix_caching=True,
        dtype="bfloat16",
        cache_dtype="auto",
        state_dtype="float32",
        method="ngram",
        depth=3,
        pool=pool,
    )
    found = ENGINE.launcher.capabilities(settings)
    assert found.version
    command = ENGINE.launcher.command(settings, 8000, found)
    assert command.inexpressible == []
    passed = {word for word in command.argv if word.startswith("--")}
    assert passed - found.flags == set()
    assert ENGINE.launcher.package_folder(settings)
    assert len(ENGINE.launcher.files(settings)) >= 2
