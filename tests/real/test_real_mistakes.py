"""Mistakes before or at the start of a real engine: one clear sentence, exit 2, nothing left running."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from real_runs import PATCHES, evenhand, settings

pytestmark = pytest.mark.vllm


def test_a_misspelt_key(vllm_env: Path, tmp_path: Path) -> None:
    ended = evenhand(tmp_path, "run", "vllm-cpu-tiny", *settings(pool__byte=1))
    sentence = ended.sentence()
    assert ended.code == 2
    assert "vllm-cpu-tiny.toml" in sentence
    assert "'pool.byte'" in sentence
    assert "'bytes'" in sentence
    assert ended.folder is None


def test_a_missing_model(vllm_env: Path, tmp_path: Path) -> None:
    ended = evenhand(tmp_path, "run", "vllm-cpu-tiny", *settings(model="/nowhere/model"))
    assert ended.code == 2
    assert "/nowhere/model" in ended.sentence()
    assert ended.folder is None


def test_an_environment_without_vllm(vllm_env: Path, tmp_path: Path) -> None:
    ended = evenhand(tmp_path, "run", "vllm-cpu-tiny", *settings(arm__vllm__environment=tmp_path))
    assert ended.code == 2
    assert str(tmp_path) in ended.sentence()


def test_an_executable_that_does_not_exist(vllm_env: Path, tmp_path: Path) -> None:
    ended = evenhand(tmp_path, "run", "vllm-cpu-tiny", *settings(arm__vllm__executable="/nowhere/bin/vllm"))
    assert ended.code == 2
    assert "/nowhere/bin/vllm" in ended.sentence()


ATTACHED = """
name = "attached"
model = "tiny"
served_name = "tiny"
[[arm]]
name = "server"
engine = "attached"
url = "http://127.0.0.1:{port}"
[ladder]
concurrency = [1]
[deadlines]
ready_s = 3
"""


def test_a_port_that_somebody_else_holds(vllm_env: Path, tmp_path: Path) -> None:
    """Where a scenario names the port itself: who holds it is no engine."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        scenario = tmp_path / "attached.toml"
        scenario.write_text(ATTACHED.format(port=port))
        ended = evenhand(tmp_path, "run", str(scenario))
    assert ended.code == 2
    assert "Traceback" not in ended.out + ended.err
    words = " ".join(ended.out.split())  # long lines wrap at the terminal's width
    assert f"server@1: launch_failed (not ready after 3 s: http://127.0.0.1:{port} does not answer yet)" in words


def test_a_busy_port_cannot_be_asked_for(vllm_env: Path, tmp_path: Path) -> None:
    """The harness takes free ports by itself, so an argument that names one is a mistake, busy or not."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        ended = evenhand(tmp_path, "run", "vllm-cpu-tiny", *settings(arm__vllm__args=f'["--port", "{port}"]'))
    assert ended.code == 2
    assert "Traceback" not in ended.out + ended.err
    assert "args hold '--port'" in ended.out
    assert not list((tmp_path / "runs").rglob("engine.log"))


def test_a_patch_that_does_not_apply_boots_nothing(vllm_env: Path, tmp_path: Path) -> None:
    ended = evenhand(
        tmp_path,
        "gate",
        "vllm-cpu-gate",
        *settings(gate__compare="differ", arm__candidate__patch=PATCHES / "does-not-apply.patch"),
    )
    sentence = ended.sentence()
    assert ended.code == 2
    assert "does-not-apply.patch" in sentence
    assert "v1/core/block_pool.py" in sentence
    assert not list((tmp_path / "runs").rglob("engine.log"))
