"""The workflow to copy: its shell parts do what the page about CI says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs/ci/evenhand-gate.yml").read_text()


def script(step: str) -> str:
    """The `run: |` block of a step."""
    found = re.search(rf"- name: {re.escape(step)}\n.*?\n( +)run: \|\n((?:\1  [^\n]*\n)+)", TEXT, re.DOTALL)
    assert found is not None, step
    return textwrap.dedent(found[2])


def shell(text: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run as a runner does."""
    return subprocess.run(["bash", "-e", "-c", text], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("no git")
    for name in ("vllm/core.py", "csrc/kernel.cu", "docs/page.md", "perf/gate.toml"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("1\n")
    commit = "git add . && git -c user.name=t -c user.email=t@example.org commit -q -m x"
    assert shell(f"git init -q -b main && {commit} && git checkout -q -b change", tmp_path).returncode == 0
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        (["vllm/core.py"], None),
        (["vllm/core.py", "docs/page.md", "tests/test_new.py"], None),
        (["vllm/core.py", "csrc/kernel.cu"], "csrc/kernel.cu"),
        (["vllm/core.py", "setup.py"], "setup.py"),
        (["vllm/core.py", "perf/gate.toml"], "perf/gate.toml"),
        (["vllm/core.py", "vllm_other/x.py"], "vllm_other/x.py"),
    ],
)
def test_what_a_patch_cannot_carry_is_refused(checkout: Path, changes: list[str], refused: str | None) -> None:
    for name in changes:
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text("2\n")
    shell("git add . && git -c user.name=t -c user.email=t@example.org commit -q -m y", checkout)
    ended = shell(
        script("The change as a patch against its base"), checkout,
        BASE="main", SCENARIO="perf/gate.toml", PACKAGE="vllm", BESIDE="docs tests",
    )  # fmt: skip
    patch = checkout / "perf" / "change.patch"
    if refused is None:
        assert ended.returncode == 0, ended
        assert re.findall(r"^\+\+\+ b/(.*)", patch.read_text(), re.MULTILINE) == ["vllm/core.py"]
    else:
        assert ended.returncode == 2, ended
        assert f"also touches {refused} which a patch of vllm cannot carry" in ended.stdout
        assert not patch.exists()


@pytest.mark.parametrize(("result", "code"), [("success", 0), ("skipped", 1), ("failure", 1), ("cancelled", 1)])
def test_only_a_gate_that_ran_and_passed_lets_a_merge_through(tmp_path: Path, result: str, code: int) -> None:
    assert shell(script("Passed, and nothing less"), tmp_path, RESULT=result).returncode == code
    assert re.search(r"gate-verdict:\n    needs: gate\n    if: always\(\)\n", TEXT)
