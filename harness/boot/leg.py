"""One boot of one arm: start, prove ready, read back, watch over, stop. Every way it can end is a LegRow."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from evenhand.boot import environment, log, port
from evenhand.boot.client import control_client
from evenhand.boot.guardian import Child, Guardian, GuardianDied, SpawnError
from evenhand.boot.ready import StopFlag, Waited, wait_ready
from evenhand.engines.base import Capabilities, Command, Dialect, Engine, EngineError, Exit, Settings, api_key, key_header
from evenhand.engines.control import base_url
from evenhand.engines.outcome import exit_words
from evenhand.records import LegRow, Outcome, PatchedFile, Pool
from evenhand.scenario import Deadlines

if TYPE_CHECKING:
    from evenhand.boot.overlay import Overlay

LOG_NAME = "engine.log"
_WARNING = re.compile(r"unknown\b.{0,40}\benvironment variable|\bis capped to\b", re.IGNORECASE)
_WARNINGS_KEPT = 20
CONFIRM_S = 0.1
"""Between two looks at who listens on a port."""

T = TypeVar("T")
Role = Literal["warm_boot", "measure", "control"]


class LegName(msgspec.Struct, frozen=True, kw_only=True):
    """Which leg this is."""

    leg: int
    arm: str
    role: Role = "measure"
    pair: int | None = None


class _Boot:
    """What is known of a leg from the first moment on, and the row that it becomes."""

    def __init__(self, guardian: Guardian, engine: Engine, settings: Settings, folder: Path, name: LegName) -> None:
        self.guardian, self.engine, self.settings, self.folder, self.name = guardian, engine, settings, folder, name
        self.log_path = folder / LOG_NAME
        self.port: int | None = None
        self.command = Command(argv=[])
        self.env: dict[str, str] = {}
        self.secrets: list[str] = []
        self.overlay: Overlay | None = None
        self.child: Child | None = None
        self.start_ns = time.monotonic_ns()
        self.stop_s = Deadlines().stop_s

    def row(self, outcome: Outcome, reason: str | None, **more: Any) -> LegRow:
        settings = self.settings
        return LegRow(
            leg=self.name.leg,
            arm=self.name.arm,
            role=self.name.role,
            pair=self.name.pair,
            engine=self.engine.name,
            outcome=outcome,
            reason=None if reason is None else environment.redact(log.one_line(reason, 1000), self.secrets),
            seats_requested=settings.seats,
            drafted_depth=settings.depth,
            argv=environment.redact_argv(self.command.argv, self.secrets),
            env=environment.recorded_env(self.env, {*self.command.env, *settings.env}, self.secrets),
            inexpressible=list(self.command.inexpressible),
            port=self.port,
            start_ns=self.start_ns,
            end_ns=time.monotonic_ns(),
            **more,
        )

    def end(self, outcome: Outcome, reason: str | None, found: Exit | None = None, **more: Any) -> LegRow:
        """Stop what runs, read the log, give the port back."""
        text = log.read_log(self.log_path)
        survivors: list[int] = []
        exit_code = None
        patched: list[PatchedFile] = []
        if self.child is not None:
            stopped = self.guardian.stop(self.child, self.stop_s)
            exit_code, survivors = stopped.exit_code, stopped.survivors
        if self.overlay is not None:
            patched = self.overlay.finish(self.folder)
        log.finish_log(self.log_path, self.secrets)
        if self.port is not None:
            port.release_port(self.port)
        if survivors:
            reason = "; ".join([*([reason] if reason else []), f"leftover processes {survivors}"])
        facts = self.engine.facts
        no_figures: dict[str, float] = {}
        refusal = found.refusal if found is not None else None
        if refusal is not None:
            refusal = msgspec.structs.replace(refusal, text=environment.redact(log.clean(refusal.text), self.secrets))
        return self.row(
            outcome,
            reason,
            exit_code=exit_code,
            survivors=survivors,
            refusal=refusal,
            patched=patched,
            figures=_safely(lambda: facts.figures(text), no_figures),
            log_errors=_safely(lambda: facts.log_errors(text), None) if self.child is not None else None,
            log_warnings=[environment.redact(line, self.secrets) for line in warnings_in(text)],
            **more,
        )


def warnings_in(text: str) -> list[str]:
    """Lines of a log by which an engine says that it did not take a setting as given. Pure."""
    found = dict.fromkeys(log.one_line(line) for line in text.splitlines() if _WARNING.search(line))
    return list(found)[:_WARNINGS_KEPT]


def _safely(call: Callable[[], T], default: T) -> T:
    """An adapter that trips over a hostile answer costs a figure, never the leg."""
    try:
        return call()
    except Exception:
        return default


class Running:
    """An engine that is ready: what it is, what it said about itself, and how to end it."""

    def __init__(
        self, boot: _Boot, url: str, dialect: Dialect, capabilities: Capabilities, key: str | None, ready: Waited
    ) -> None:
        self._boot = boot
        self.engine, self.settings, self.child, self.command = boot.engine, boot.settings, boot.child, boot.command
        self.base_url, self.dialect, self.capabilities = url, dialect, capabilities
        self.api_key, self.headers = key, key_header(key)
        self.http = http = control_client(url, headers=self.headers)
        self.port, self.env, self.log_path = boot.port, boot.env, boot.log_path
        self.start_ns, self.ready_ns = boot.start_ns, time.monotonic_ns()
        self.first_completion_s = ready.completion_s
        facts, text = boot.engine.facts, log.read_log(boot.log_path)
        self.config: dict[str, Any] = _safely(lambda: facts.config(http, text), {})
        self.pool: Pool | None = _safely(lambda: facts.pool(http, text, self._metrics()), None)
        self.seats: int | None = _safely(lambda: facts.seats(http, text), None)
        self.version: str | None = _safely(lambda: facts.version(http, text), None) or capabilities.version
        self._seen_log: tuple[int, str | None] = (-1, None)
        self._row: LegRow | None = None

    def _metrics(self) -> str | None:
        path = self.engine.facts.metrics_path
        if path is None:
            return None
        answer = self.http.get(path)
        return answer.text if answer.status_code == 200 else None

    def tree(self) -> list[int]:
        """Pids of the engine's processes."""
        return [] if self.child is None else self._boot.guardian.tree(self.child)

    def alive(self) -> str | None:
        """Why the engine is dead, or None. Cheap: its exit, and fatal words in its log."""
        if self.child is None:
            return None if _safely(lambda: self.engine.facts.alive(self.http), False) else "the server does not answer"
        code = self._boot.guardian.poll(self.child)
        if code is not None:
            return f"the engine ended with {exit_words(code)}: {log.last_lines(self.log_path, 2)}"
        return self._fatal()

    def _fatal(self) -> str | None:
        size = self.log_path.stat().st_size if self.log_path.exists() else 0
        if size != self._seen_log[0]:
            self._seen_log = (size, fatal_words(self._boot))
        return self._seen_log[1]

    def check(self) -> str | None:
        """Why the engine cannot be trusted any more, or None: dead, or somebody else listens on its port."""
        return self.alive() or self._intruder()

    def _intruder(self) -> str | None:
        """Who else listens on our port. Looked at twice: while a process ends, its socket is seen without its holder."""
        if self.child is None or self.port is None:
            return None
        anybody, others = port.foreign(self.port, self.tree)
        if others or not anybody:
            time.sleep(CONFIRM_S)
            if (dead := self.alive()) is not None:
                return dead
            anybody, others = port.foreign(self.port, self.tree)
        if others:
            return f"port {self.port} is also listened on by {port.holder_names(others)}"
        return None if anybody else f"the engine no longer listens on port {self.port}"

    def stop(self, outcome: Outcome = "ok", reason: str | None = None) -> LegRow:
        """End the engine and all below it. A death or a foreign listener found now overrides outcome "ok". Idempotent."""
        if self._row is not None:
            return self._row
        boot, found = self._boot, None
        if outcome == "ok" and boot.child is not None:
            code = boot.guardian.poll(boot.child)
            if code is not None:
                text = log.read_log(boot.log_path)
                found = _safely(lambda: boot.engine.facts.exit(code, text), None)
                outcome, reason = "died", found.reason if found is not None else exit_words(code)
            elif (words := self._fatal()) is not None:
                outcome, reason = "died", words
            elif (intruder := self._intruder()) is not None:
                outcome, reason = "void", intruder
        self.http.close()
        self._row = boot.end(
            outcome,
            reason,
            found,
            ready_ns=self.ready_ns,
            seats_resolved=self.seats,
            pool=self.pool,
            config=self.config,
            version=self.version,
        )
        return self._row


def fatal_words(boot: _Boot) -> str | None:
    """What the living engine's log says about its death, or None."""
    words = _safely(lambda: boot.engine.facts.fatal(log.tail_log(boot.log_path)), None)
    return None if words is None else environment.redact(log.one_line(words), boot.secrets)


def boot_leg(
    guardian: Guardian,
    engine: Engine,
    settings: Settings,
    leg_dir: Path,
    name: LegName,
    deadlines: Deadlines,
    *,
    capabilities: Capabilities | None = None,
    overlay: Overlay | None = None,
    env: Mapping[str, str] | None = None,
    python_path: Sequence[str] = (),
    stop: StopFlag | None = None,
    lock_dir: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Running | LegRow:
    """Start an engine and return it ready, or the row that says why it is not.

    `env` are the harness's own variables for this leg (cache folders, probe); `python_path` folders follow the overlay's on
    PYTHONPATH. Does not raise for anything an engine or a machine does.
    """
    boot = _Boot(guardian, engine, settings, leg_dir, name)
    boot.stop_s = deadlines.stop_s
    boot.overlay = overlay
    try:
        key = api_key(settings)
        boot.secrets = [key] if key else []
        capabilities = capabilities or engine.launcher.capabilities(settings)
        if settings.url:
            url = base_url(settings.url)
            boot.command = engine.launcher.command(settings, 0, capabilities)
        else:
            boot.port = port.free_port(lock_dir)
            url = f"http://127.0.0.1:{boot.port}"
            boot.command = engine.launcher.command(settings, boot.port, capabilities)
            _start(boot, env or {}, python_path)
        dialect = engine.dialect(settings, capabilities)
    except (EngineError, SpawnError, GuardianDied, OSError) as error:
        return boot.end("launch_failed", str(error))
    waited = wait_ready(
        url,
        settings.served_name,
        engine.facts,
        dialect,
        limit_s=deadlines.ready_s,
        exit_code=lambda: None if boot.child is None else guardian.poll(boot.child),
        fatal=lambda: None if boot.child is None else fatal_words(boot),
        listening=lambda: _listening(boot),
        stop=stop,
        headers=key_header(key),
        clock=clock,
    )
    if waited.how != "ready":
        return _not_ready(boot, waited)
    if overlay is not None and (wrong := overlay.prove()[1]):
        return boot.end("launch_failed", f"the engine did not run its overlay: {'; '.join(wrong[:3])}")
    return Running(boot, url, dialect, capabilities, key, waited)


def _listening(boot: _Boot) -> tuple[bool, set[int]]:
    child, number = boot.child, boot.port
    if child is None or number is None:
        return True, set()
    return port.foreign(number, lambda: boot.guardian.tree(child))


def _start(boot: _Boot, env: Mapping[str, str], python_path: Sequence[str]) -> None:
    """Spawn the engine. Raises SpawnError, GuardianDied or OSError with one sentence."""
    assert boot.port is not None
    overlay = boot.overlay.env() if boot.overlay is not None else {}
    extra = {**boot.command.env, **boot.settings.env, **env, **overlay}
    paths = [overlay.get("PYTHONPATH"), *python_path, boot.command.env.get("PYTHONPATH"), boot.settings.env.get("PYTHONPATH")]
    if any(paths):
        extra["PYTHONPATH"] = ":".join(dict.fromkeys(path for path in paths if path))
    boot.env = environment.child_env(extra)
    boot.secrets += environment.secrets_of(boot.env)
    owner = port.busy(boot.port)
    if owner is not None:
        raise OSError(f"port {boot.port} is busy: {port.holder_names([owner])} listens on it")
    boot.folder.mkdir(parents=True, exist_ok=True)
    boot.child = boot.guardian.spawn(boot.command.argv, boot.env, boot.log_path, boot.folder)


def _not_ready(boot: _Boot, waited: Waited) -> LegRow:
    text = log.read_log(boot.log_path)
    if waited.how == "interrupted":
        return boot.end("interrupted", waited.reason)
    if waited.how in ("foreign", "wrong model"):
        return boot.end("launch_failed", waited.reason)
    found = _safely(lambda: boot.engine.facts.exit(waited.exit_code, text), None)
    # an engine that was never ready has not died: it did not start
    outcome: Outcome = "refused" if found is not None and found.outcome == "refused" else "launch_failed"
    parts = [waited.reason] if waited.reason else []
    if found is not None and found.reason and (outcome == "refused" or waited.how == "exited"):
        parts.append(found.reason)
    elif waited.how == "exited":
        parts.append(f"it ended with {exit_words(waited.exit_code)}")
    if outcome != "refused" and (tail := log.last_lines(boot.log_path)):
        parts.append(f"its log ends: {tail}")
    return boot.end(outcome, "; ".join(parts), found)
