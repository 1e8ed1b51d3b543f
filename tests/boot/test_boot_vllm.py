"""A real vLLM on a CPU: patched modules proved in every process, the installation untouched, nobody left after kill -9."""

from __future__ import annotations

import difflib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evenhand.boot import proc
from evenhand.boot.guardian import Guardian
from evenhand.boot.leg import LegName, Running, boot_leg
from evenhand.boot.overlay import build_overlay
from evenhand.boot.patches import patch_changes
from evenhand.engines.base import PoolRequest, Settings
from evenhand.engines.registry import engine
from evenhand.scenario import Deadlines
from evenhand.tiny_model import write_tiny_model

ENVIRONMENT = os.environ.get("EVENHAND_VLLM_ENV", "")
pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not ENVIRONMENT, reason="EVENHAND_VLLM_ENV names no vLLM environment")]

TOUCHED = ("v1/core/single_type_kv_cache_manager.py", "v1/core/sched/scheduler.py")


def settings(model: Path) -> Settings:
    return Settings(
        model=str(model),
        served_name="tiny",
        seats=4,
        context=2048,
        pool=PoolRequest(bytes=1 << 28),
        prefix_caching=True,
        environment=ENVIRONMENT,
        args=("--enforce-eager",),
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny_model(folder, "hybrid")
    return folder


def harmless_patch(package: Path) -> bytes:
    """One comment more in each of two modules."""
    parts: list[str] = []
    for path in TOUCHED:
        old = (package / path).read_text().splitlines(True)
        new = [*old[:20], "# touched\n", *old[20:]]
        parts += difflib.unified_diff(old, new, f"a/vllm/{path}", f"b/vllm/{path}")
    return "".join(parts).encode()


def snapshot(package: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file of the installation, bytecode included."""
    stats = {str(path): path.lstat() for path in package.rglob("*")}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def test_a_patched_vllm_proves_its_patch_in_every_process(model: Path, guardian: Guardian, tmp_path: Path) -> None:
    vllm = engine("vllm")
    folder = vllm.launcher.package_folder(settings(model))
    assert folder is not None
    package = Path(folder)
    before = snapshot(package)
    overlay = build_overlay(package, tmp_path / "overlay", patch_changes(package, [("touch.patch", harmless_patch(package))]))
    leg = boot_leg(
        guardian,
        vllm,
        settings(model),
        tmp_path / "000-B",
        LegName(leg=0, arm="B"),
        Deadlines(ready_s=240.0),
        overlay=overlay,
        lock_dir=tmp_path,
    )
    assert isinstance(leg, Running), leg.reason
    tree = leg.tree()
    assert len(tree) >= 3  # server, engine core, worker or tracker
    assert leg.check() is None
    assert leg.pool is not None
    row = leg.stop()
    assert (row.outcome, row.survivors, row.log_errors) == ("ok", [], 0)
    assert [file.path for file in row.patched] == sorted(TOUCHED)
    for file in row.patched:
        assert file.loaded_from == f"{tmp_path}/overlay/vllm/{file.path}".removeprefix(f"{tmp_path}/")
        assert file.loaded_sha256 == file.overlay_sha256
        assert file.installed_sha256_before == file.installed_sha256_after != file.overlay_sha256
    # the scheduler lives in the engine core, not in the server
    assert {load.pid for load in overlay.loads()["vllm.v1.core.sched.scheduler"]} <= set(tree) - {tree[0]}
    assert snapshot(package) == before


HARNESS = """
import sys, time
from pathlib import Path
from evenhand.boot.guardian import Guardian
guardian = Guardian()
import test_boot_vllm as test
from evenhand.boot.leg import LegName, boot_leg
from evenhand.engines.registry import engine
from evenhand.scenario import Deadlines
guardian._begin()
print(guardian.pid, flush=True)
leg = boot_leg(guardian, engine("vllm"), test.settings(Path(sys.argv[1])), Path(sys.argv[2]), LegName(leg=0, arm="A"),
               Deadlines(ready_s=240.0))
print(leg.base_url, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("moment", ["start-up", "ready"])
def test_b53_kill_9_of_the_harness_leaves_no_vllm(model: Path, tmp_path: Path, moment: str) -> None:
    """B53: during start-up (once the engine core runs) and when it serves: nothing is left within 10 s."""
    argv = [sys.executable, "-c", HARNESS, str(model), str(tmp_path / "leg")]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env) as harness:
        assert harness.stdout is not None
        try:
            warden = int(harness.stdout.readline())
            if moment == "ready":
                assert harness.stdout.readline().startswith(b"http")
            while len(proc.below([warden])) < 4:  # keeper, server, engine core and its tracker
                time.sleep(0.02)
            found = [(one.pid, one.start) for one in proc.below([warden])]
        finally:
            harness.send_signal(signal.SIGKILL)
    end = time.monotonic() + 10.0
    while any(proc.living(*one) for one in [*found, (warden, proc.start_time(warden) or 0)]):
        assert time.monotonic() < end, [one for one in found if proc.living(*one)]
        time.sleep(0.02)
