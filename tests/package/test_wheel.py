"""The wheel holds one package, ships its scenarios, and runs from any folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    for name in ("harness", "engines", "scenarios"):  # a copy: a build leaves folders behind that a later build would pick up
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(source)],
        check=True,
        capture_output=True,
        timeout=240,
    )
    return next(out.glob("*.whl"))


def test_site_packages_gains_evenhand_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"evenhand", f"{wheel.name.split('-py3')[0]}.dist-info"}
    assert "evenhand/py.typed" in names
    assert "evenhand/engines/vllm.py" in names
    assert "evenhand/scenarios/demo.toml" in names
    assert "evenhand/scenarios/models/27b-hybrid/config.json" in names
    assert any(name.startswith("evenhand/show/templates/") for name in names)
    probe = [name for name in names if name.startswith("evenhand/engines/probes/vllm_plugin/")]
    assert any(name.endswith("entry_points.txt") for name in probe), "the probe is found through its entry point"


def test_every_module_of_the_checkout_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    folders = {"harness": "evenhand", "engines": "evenhand/engines", "scenarios": "evenhand/scenarios"}
    for folder, package in folders.items():
        for file in (ROOT / folder).rglob("*.py"):
            assert f"{package}/{file.relative_to(ROOT / folder)}" in names


@pytest.mark.e2e
def test_a_shipped_scenario_runs_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    site, here = tmp_path / "site", tmp_path / "elsewhere"
    here.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, timeout=120)
    env = {**os.environ, "PYTHONPATH": str(site)}
    code = "import evenhand, sys; assert evenhand.__file__.startswith(sys.argv.pop(1)); from evenhand.cli import main; main()"
    argv = [
        sys.executable,
        "-c",
        code,
        str(site),
        "run",
        "demo",
        "--set",
        "ladder.concurrency=1,2",
        "--set",
        "pressure.prompt_tokens=3000",
    ]
    argv += ["--set", "ladder.requests=4"]
    done = subprocess.run(argv, cwd=here, env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reference model, not a measurement" in done.stdout
    assert list((here / "results").glob("demo-*/manifest.json"))
