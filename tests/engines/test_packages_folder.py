"""An environment that is a folder of packages (`pip install --target`): no interpreter in it, so it goes on PYTHONPATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenhand.boot.overlay import build_overlay
from evenhand.boot.patches import patch_changes
from evenhand.engines import engine
from evenhand.engines.base import Capabilities, EngineError, Settings

FILES = {
    "vllm": {"__init__.py": "", "core.py": "WHAT = 'installed'\n", "engine/arg_utils.py": 'g.add_argument("--max-num-seqs")\n'},
    "sglang": {"__init__.py": "", "srt/server_args.py": '"--max-running-requests"\n'},
}
PATCH = b"""--- a/vllm/core.py
+++ b/vllm/core.py
@@ -1 +1 @@
-WHAT = 'installed'
+WHAT = 'patched'
"""


def packages(root: Path, name: str) -> Path:
    """What `pip install --target` leaves, as far as a launcher reads it; its bin/ holds scripts, never a Python."""
    for path, text in FILES[name].items():
        place = root / name / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    metadata = root / f"{name}-0.26.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Name: {name}\nVersion: 0.26.0\n")
    script = root / "bin" / name
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    return root


def settings(folder: Path | str, **changes: object) -> Settings:
    return Settings(model="/models/m", served_name="m", environment=str(folder), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "flag"), [("vllm", "--max-num-seqs"), ("sglang", "--max-running-requests")])
def test_runs_under_this_python(tmp_path: Path, name: str, flag: str) -> None:
    launcher, where = engine(name).launcher, settings(packages(tmp_path, name), seats=4)
    assert launcher.locate(where) == sys.executable, "not bin/ of the folder: its scripts do not find their packages"
    assert launcher.package_folder(where) == str(tmp_path / name)
    found = launcher.capabilities(where)
    assert (found.version, flag in found.flags) == ("0.26.0", True)
    command = launcher.command(where, 8000, found)
    assert command.argv[:2] == [sys.executable, "-m"]
    assert command.env["PYTHONPATH"] == str(tmp_path)
    assert launcher.files(where)[:2] == [sys.executable, str(tmp_path / f"{name}-0.26.0.dist-info" / "METADATA")]


def test_the_arms_own_interpreter_and_path(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    python = tmp_path / "python3"
    python.symlink_to(sys.executable)
    where = settings(packages(tmp_path / "site", "vllm"), executable=str(python), env={"PYTHONPATH": "/more"})
    command = engine("vllm").launcher.command(where, 8000, Capabilities())
    assert command.argv[0] == str(python)
    assert command.env["PYTHONPATH"] == f"{tmp_path}/site:/more"
    assert engine("vllm").launcher.package_folder(where) == str(tmp_path / "site" / "vllm")


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages(tmp_path, "vllm")
    monkeypatch.chdir(tmp_path.parent)
    command = engine("vllm").launcher.command(settings(tmp_path.name), 8000, Capabilities())
    assert command.env["PYTHONPATH"] == str(tmp_path), "an engine starts in its leg's folder"


def test_an_interpreter_in_it_wins(tmp_path: Path) -> None:
    packages(tmp_path, "vllm")
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert engine("vllm").launcher.locate(settings(tmp_path)) == str(tmp_path / "bin" / "vllm")
    assert "PYTHONPATH" not in engine("vllm").launcher.command(settings(tmp_path), 8000, Capabilities()).env


def test_a_folder_with_neither(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="neither bin/python nor a package sglang"):
        engine("sglang").launcher.locate(settings(packages(tmp_path, "vllm")))


def test_an_overlay_before_it_is_what_runs(tmp_path: Path) -> None:
    where = settings(packages(tmp_path / "site", "vllm"))
    launcher = engine("vllm").launcher
    package = Path(launcher.package_folder(where) or "")
    overlay = build_overlay(package, tmp_path / "leg" / "overlay", patch_changes(package, [("x.patch", PATCH)]))
    env = launcher.command(where, 8000, Capabilities()).env
    env = {**os.environ, **env, **overlay.env(), "PYTHONPATH": f"{overlay.folder}:{env['PYTHONPATH']}"}
    code = "import json, vllm.core; print(json.dumps([vllm.core.WHAT, vllm.__file__]))"
    what, file = json.loads(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout)
    assert (what, file) == ("patched", str(overlay.folder / "vllm" / "__init__.py"))
    rows, wrong = overlay.prove()
    assert wrong == []
    assert [row.loaded_from for row in rows] == [str(overlay.folder / "vllm" / "core.py")]
