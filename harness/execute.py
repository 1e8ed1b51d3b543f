"""From a scenario file to a finished run folder: manifest, campaign, seal. What `run` and `gate` share."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Literal

import msgspec

import evenhand
from evenhand import machine
from evenhand import scenario as sc
from evenhand.boot.environment import redact
from evenhand.engines import engine
from evenhand.hashes import cache_folder
from evenhand.plan import Plan
from evenhand.progress import Event, Listener
from evenhand.records import Manifest
from evenhand.secrecy import known_secrets, recorded_scenario, recorded_words
from evenhand.stop import Stop
from evenhand.store import MODEL_CONFIG, RunWriter, StoreError, write_atomic


def utc_now() -> str:
    """Wall time for people, stored once per run."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def with_tiny_models(scenario: sc.Scenario) -> sc.Scenario:
    """`tiny:dense` and `tiny:hybrid` become folders in the cache, written on first use (a second offline, deterministic)."""

    def place(model: str) -> str:
        if not model.startswith("tiny:"):
            return model
        from evenhand.tiny_model import write_tiny_model

        kind: Literal["dense", "hybrid"] = "hybrid" if model == "tiny:hybrid" else "dense"
        folder = cache_folder() / f"tiny-{kind}-{evenhand.__version__}"
        if not (folder / "config.json").is_file():
            # beside and renamed: two harnesses may start at once
            beside = folder.with_name(f".{folder.name}-{os.getpid()}-{token_hex(4)}")
            write_tiny_model(beside, kind)
            try:
                beside.rename(folder)
            except OSError:
                if not (folder / "config.json").is_file():
                    raise
        return str(folder)

    draft = scenario.draft
    if draft and draft.model:
        draft = msgspec.structs.replace(draft, model=place(draft.model))
    arms = [msgspec.structs.replace(arm, model=place(arm.model) if arm.model else None) for arm in scenario.arm]
    return msgspec.structs.replace(scenario, model=place(scenario.model), draft=draft, arm=arms)


def scenario_sha256(scenario: sc.Scenario) -> str:
    """Identity of a resolved scenario."""
    return hashlib.sha256(msgspec.json.encode(scenario, order="sorted")).hexdigest()


def create(
    scenario: sc.Scenario, file: Path | None, plan: Plan, out: Path, overrides: Sequence[str], anchor_ns: int
) -> RunWriter:
    """The run folder with its manifest. Raises StoreError."""
    started = utc_now()
    secrets = known_secrets(scenario)

    def manifest(run: str) -> Manifest:
        return Manifest(
            evenhand=evenhand.__version__,
            run=run,
            kind=plan.kind,
            status="running",
            started_utc=started,
            anchor_monotonic_ns=anchor_ns,
            scenario=recorded_scenario(scenario),
            scenario_sha256=scenario_sha256(scenario),
            scenario_file=None if file is None else file.name,
            overrides=recorded_words(overrides, secrets),
            plan=msgspec.to_builtins(plan),
            machine=machine.describe(),
            versions=machine.versions(),
            command=["evenhand", *recorded_words(sys.argv[1:], secrets)],
            seed=scenario.seed,
            simulated=any(engine(arm.engine).simulated for arm in scenario.arm),
        )

    stamp = started.replace("-", "").replace(":", "")
    writer = RunWriter.create(out, scenario.name, stamp, manifest)
    if file is not None:
        write_atomic(writer.path / "scenario.toml", redact(file.read_text("utf-8"), secrets).encode())
    config = Path(scenario.model) / "config.json"
    if config.is_file():
        write_atomic(writer.path / MODEL_CONFIG, config.read_bytes())
    return writer


def execute(
    scenario: sc.Scenario,
    file: Path | None,
    plan: Plan,
    out: Path,
    overrides: Sequence[str],
    listener: Listener,
    resume: Path | None = None,
) -> tuple[Path, int | None]:
    """Run the plan. Returns the run folder and the exit code of an interruption (None: it went to its end).

    Raises StoreError, EngineError, PromptError and ResumeError in one sentence; rows written before are kept, and the run is
    marked failed.
    """
    from evenhand.campaign import Campaign
    from evenhand.resume import prepare

    scenario = with_tiny_models(scenario)
    stop = Stop()
    with stop:
        if resume is None:
            writer, done = create(scenario, file, plan, out, overrides, time.monotonic_ns()), None
        else:
            writer, done = prepare(resume, scenario, plan)
        listener(Event(what="start", text=str(writer.path)))
        try:
            status = Campaign(scenario, plan, writer, stop, listener, done).run()
        except BaseException as error:
            with contextlib.suppress(StoreError):  # the first cause is the one to tell
                writer.finish("failed", utc_now())
            listener(Event(what="end", outcome="failed", text=str(writer.path)))
            if isinstance(error, OSError):
                where = f" ({error.filename})" if error.filename else ""
                raise StoreError(
                    f"the run failed: {error.strerror or error}{where}; what was written before is kept, "
                    f"mend the cause and run again with --resume {writer.path}"
                ) from error
            raise
        writer.finish(status, utc_now())
        listener(Event(what="end", outcome=status, text=str(writer.path)))
    return writer.path, stop.exit_code if stop.is_set() else None
