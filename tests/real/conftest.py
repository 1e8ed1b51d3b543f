"""A real vLLM, and the runs on it that several tests look at. Each boots once a session."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from real_runs import PATCHES, Ended, evenhand, settings


@pytest.fixture(scope="session")
def vllm_env() -> Path:
    """The Python environment of vLLM 0.32.0 for CPUs."""
    place = os.environ.get("EVENHAND_VLLM_ENV")
    if not place:
        pytest.skip("EVENHAND_VLLM_ENV is not set: `make test-vllm` builds a vLLM and sets it")
    if not Path(place, "bin", "vllm").exists():
        pytest.skip(f"EVENHAND_VLLM_ENV names {place}, which has no bin/vllm: tests/real/vllm_cpu.sh builds one")
    return Path(place)


@pytest.fixture(scope="session")
def tiny_run(vllm_env: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The shipped run: ladder and pressure, no probe."""
    return evenhand(tmp_path_factory.mktemp("run"), "run", "vllm-cpu-tiny")


@pytest.fixture(scope="session")
def gate(vllm_env: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ended]:
    """Run the shipped gate with settings of one's own."""

    def run(**values: object) -> Ended:
        return evenhand(tmp_path_factory.mktemp("gate"), "gate", "vllm-cpu-gate", *settings(**values))

    return run


@pytest.fixture(scope="session")
def same_gate(gate: Callable[..., Ended]) -> Ended:
    """One build under two names, at all prompt lengths of the shipped run."""
    return gate(pressure__prompt_tokens="3000,6000,12000,15000")


@pytest.fixture(scope="session")
def keep_gate(gate: Callable[..., Ended]) -> Ended:
    """The candidate keeps every recurrent-state block until its request ends."""
    return gate(gate__compare="differ", arm__candidate__patch=PATCHES / "keep-every-state.patch")


@pytest.fixture(scope="session")
def token_gate(gate: Callable[..., Ended]) -> Ended:
    """The candidate's sixth token is wrong."""
    return gate(gate__compare="differ", arm__candidate__patch=PATCHES / "change-a-token.patch", ladder__concurrency="4")
