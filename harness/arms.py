"""What a leg needs besides its engine: the overlay with its patches, its cache folders, the probe, its files' hashes."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from evenhand import scenario as sc
from evenhand.boot.build import build
from evenhand.boot.device import wait_released
from evenhand.boot.environment import child_env
from evenhand.boot.guardian import Guardian
from evenhand.boot.lock import holder, lock
from evenhand.boot.overlay import Overlay, build_overlay
from evenhand.boot.patches import Patches, read_patches
from evenhand.engines import engine_for
from evenhand.engines.base import COMPILE_CACHES, Capabilities, Engine, EngineError, Settings
from evenhand.hashes import cache_folder, hash_files
from evenhand.plan import LegPlan, Plan, arm_named, settings_for
from evenhand.records import LegRow
from evenhand.stop import Stop
from evenhand.store import OVERLAYS, safe_name, subfolder
from evenhand.watch.nvml import used_bytes, visible_uuids

PROBE_LOG = "EVENHAND_PROBE_LOG"
"""Where the in-engine probe writes."""


class Prepared:
    """One leg's surroundings."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        capabilities: Capabilities,
        overlay: Overlay | None,
        env: dict[str, str],
        python_path: list[str],
        release_s: float,
    ) -> None:
        self.engine, self.settings, self.capabilities = engine, settings, capabilities
        self.overlay, self.env, self.python_path = overlay, env, python_path
        self._release_s = release_s
        self._device_before = self.device_bytes()
        self._device_idle: int | None = None

    def device_bytes(self) -> int | None:
        """Bytes in use on the leg's devices; None where there is none."""
        return used_bytes(_visible(self.settings))

    def ready(self) -> None:
        """Note the device memory of the idle, ready engine."""
        self._device_idle = self.device_bytes()

    def finish(self, row: LegRow) -> LegRow:
        """Wait for the device, and add the sha256 of everything that was opened: executable, model, draft."""
        settings = self.settings
        paths = [Path(p) for p in (settings.model, settings.draft) if p]
        with contextlib.suppress(EngineError, OSError):
            paths += [Path(p) for p in self.engine.launcher.files(settings)]
        released = wait_released(self.device_bytes, self._device_before, limit_s=self._release_s)
        reason = row.reason
        if not released.ok:
            reason = "; ".join(part for part in (reason, released.reason) if part)
        return msgspec.structs.replace(
            row,
            reason=reason,
            files=hash_files(p for p in paths if p.exists()),
            device_bytes_before=self._device_before,
            device_bytes_idle=self._device_idle,
            released_s=released.waited_s,
        )


class ArmPreparer:
    """Makes and removes the surroundings of legs. `check` finds every mistake in patches and builds before anything boots."""

    def __init__(self, scenario: sc.Scenario, plan: Plan, run: Path) -> None:
        self._scenario, self._plan, self._run = scenario, plan, run
        self._caches = cache_folder() / "compile" / run.name if plan.kind == "gate" else None
        self._patches: dict[str, Patches | None] = {}
        self.capabilities: dict[str, Capabilities] = {}

    def check(self) -> None:
        """Ask every arm's build what it can do and read its patches. Raises PatchError or EngineError in one sentence.

        A build that cannot even be asked is left for its legs: each becomes a row.
        """
        for name in dict.fromkeys(leg.arm for leg in self._plan.legs):
            arm = arm_named(self._scenario, name)
            settings = settings_for(self._scenario, arm, None)
            adapter = engine_for(arm.engine, settings)
            adapter.launcher.locate(settings)
            self._patches[name] = None if arm.build else read_patches(arm, adapter, settings)
            with contextlib.suppress(EngineError, OSError):
                self.capabilities[name] = adapter.launcher.capabilities(settings)

    def build(self, guardian: Guardian, stop: Stop) -> None:
        """Build the executables that arms have no installation for. Raises EngineError in one sentence."""
        for arm in self._scenario.arm:
            if arm.build is not None and not stop.is_set():
                build(arm, guardian, stop, self._run / f"build-{safe_name(arm.name)}.log")

    @property
    def takes_ids(self) -> bool:
        """Whether every arm takes prompts as token ids; else all of them get text."""
        return all(found.takes_ids for found in self.capabilities.values())

    @contextlib.contextmanager
    def prepare(self, leg: LegPlan, folder: Path) -> Iterator[Prepared]:
        """The surroundings of a leg. Raises EngineError when another harness holds one of its devices."""
        arm = arm_named(self._scenario, leg.arm)
        settings = settings_for(self._scenario, arm, leg.seats)
        adapter = engine_for(arm.engine, settings)
        env: dict[str, str] = {}
        python_path: list[str] = []
        if self._scenario.watch.probe and (probe := adapter.launcher.probe(settings)) is not None:
            python_path.append(probe)
            env[PROBE_LOG] = str((folder / "probe.jsonl").resolve())
        if self._caches is not None:
            for name in COMPILE_CACHES:
                place = self._caches / leg.arm / name.lower()
                place.mkdir(parents=True, exist_ok=True)
                env[name] = str(place)
        capabilities = self.capabilities.get(leg.arm) or Capabilities()
        with _devices_locked(settings):
            overlay = self._overlay(leg.arm, adapter, settings, folder)
            yield Prepared(adapter, settings, capabilities, overlay, env, python_path, self._scenario.deadlines.release_s)

    def _overlay(self, arm: str, adapter: Engine, settings: Settings, folder: Path) -> Overlay | None:
        """Both arms of a gate run from an overlay; the baseline's holds the same files unpatched, so that both prove alike."""
        package = adapter.launcher.package_folder(settings)
        patches = self._patches.get(arm)
        if package is None or (self._plan.kind != "gate" and patches is None):
            return None
        touched = sorted({path for other in self._patches.values() if other is not None for path in other.files})
        # one path for all boots of an arm: compile caches are keyed by the paths of the sources
        place = subfolder(self._run, OVERLAYS) / safe_name(arm)
        return build_overlay(Path(package), place, patches, touched, proof=folder / "loadproof.jsonl")

    def close(self) -> None:
        """Remove the run's overlays (their proof is in the legs' rows) and compile caches."""
        shutil.rmtree(self._run / OVERLAYS, ignore_errors=True)
        if self._caches is not None:
            shutil.rmtree(self._caches, ignore_errors=True)


def _visible(settings: Settings) -> str | None:
    """CUDA_VISIBLE_DEVICES as the engine gets it: from its arm, else as it is exported."""
    return child_env(settings.env).get("CUDA_VISIBLE_DEVICES")


@contextlib.contextmanager
def _devices_locked(settings: Settings) -> Iterator[None]:
    """Hold the leg's devices against other harnesses of this user; nothing to hold where the engine starts nothing."""
    held: list[int] = []
    try:
        for uuid in [] if settings.url else visible_uuids(_visible(settings), "PCI_BUS_ID"):
            descriptor = lock(f"gpu-{uuid}")
            if descriptor is None:
                raise EngineError(
                    f"device {uuid} is in use by another evenhand (pid {holder(f'gpu-{uuid}')}); wait for it, or give this run "
                    "other devices with CUDA_VISIBLE_DEVICES"
                )
            held.append(descriptor)
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
