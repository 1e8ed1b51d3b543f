"""What a leg needs besides its engine: the overlay with its patches, its cache folders, the probe, its files' hashes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from evenhand import scenario as sc
from evenhand.boot.overlay import Overlay, Patches, build_overlay, read_patches
from evenhand.engines import engine
from evenhand.engines.base import COMPILE_CACHES, Engine, EngineError, Settings
from evenhand.hashes import cache_folder, hash_files
from evenhand.plan import LegPlan, Plan, arm_named, settings_for
from evenhand.records import LegRow

PROBE_LOG = "EVENHAND_PROBE_LOG"
"""Where the in-engine probe writes."""


class Prepared:
    """One leg's surroundings."""

    def __init__(
        self, engine: Engine, settings: Settings, overlay: Overlay | None, env: dict[str, str], python_path: list[str]
    ) -> None:
        self.engine, self.settings, self.overlay, self.env, self.python_path = engine, settings, overlay, env, python_path

    def finish(self, row: LegRow) -> LegRow:
        """Add the sha256 of everything that was opened: executable, model, draft."""
        settings = self.settings
        paths = [Path(p) for p in (settings.model, settings.draft) if p]
        with contextlib.suppress(EngineError, OSError):
            paths += [Path(p) for p in self.engine.launcher.files(settings)]
        return msgspec.structs.replace(row, files=hash_files(p for p in paths if p.exists()))


class ArmPreparer:
    """Makes and removes the surroundings of legs. `check` finds every mistake in patches before anything boots."""

    def __init__(self, scenario: sc.Scenario, plan: Plan, run: Path) -> None:
        self._scenario, self._plan, self._run = scenario, plan, run
        self._caches = cache_folder() / "compile" / run.name if plan.kind == "gate" else None
        self._patches: dict[str, Patches | None] = {}

    def check(self) -> None:
        """Read every arm's patches against its installation. Raises EngineError or PatchError in one sentence."""
        for name in dict.fromkeys(leg.arm for leg in self._plan.legs):
            arm = arm_named(self._scenario, name)
            adapter = engine(arm.engine)
            settings = settings_for(self._scenario, arm, None)
            adapter.launcher.locate(settings)
            self._patches[name] = read_patches(arm, adapter, settings)

    @contextlib.contextmanager
    def prepare(self, leg: LegPlan, folder: Path) -> Iterator[Prepared]:
        """The surroundings of a leg; the overlay is removed when the leg ends (its proof is in the leg's row)."""
        arm = arm_named(self._scenario, leg.arm)
        adapter = engine(arm.engine)
        settings = settings_for(self._scenario, arm, leg.seats)
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
        overlay = None
        package = adapter.launcher.package_folder(settings)
        # both arms of a gate run from an overlay, the baseline from an unpatched one
        if package is not None and (self._plan.kind == "gate" or self._patches.get(leg.arm)):
            overlay = build_overlay(Path(package), folder / "overlay", self._patches.get(leg.arm))
        try:
            yield Prepared(adapter, settings, overlay, env, python_path)
        finally:
            shutil.rmtree(folder / "overlay", ignore_errors=True)

    def close(self) -> None:
        """Remove the run's compile caches."""
        if self._caches is not None:
            shutil.rmtree(self._caches, ignore_errors=True)
