"""An arm's executable, built by the scenario's command from a commit of its source, before anything boots.

The command runs once per source, commit, command and the arm's env, in a copy of the commit in the cache (without submodules),
and what it made is used again. The guardian starts it: whatever ends the harness ends the build, too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import msgspec

from evenhand.boot.environment import child_env, secrets_of
from evenhand.boot.guardian import Guardian
from evenhand.boot.lock import holder, lock
from evenhand.boot.log import finish_log, last_lines, one_line
from evenhand.engines.base import EngineError
from evenhand.hashes import cache_folder
from evenhand.scenario import Arm
from evenhand.stop import Stop

MARK = ".evenhand-built"
"""In a folder whose build came to a good end."""
GRACE_S = 2.0


def placed(arm: Arm) -> Arm:
    """The arm with its commit in full and its executable where `build` will leave it. Raises EngineError in one sentence."""
    source = Path(arm.source or ".")
    try:
        commit = _run("git", "-C", str(source), "rev-parse", "--verify", "--end-of-options", f"{arm.commit}^{{commit}}")
    except EngineError as error:
        raise EngineError(f"arm {arm.name!r}: {source} has no commit {one_line(str(arm.commit), 80)!r} ({error})") from None
    arm = msgspec.structs.replace(arm, commit=commit.decode().strip())
    return msgspec.structs.replace(arm, executable=str(_folder(arm) / (arm.executable or "")))


def build(arm: Arm, guardian: Guardian, stop: Stop, log: Path) -> None:
    """Run the command of an arm that is `placed`, unless it was run before; both its outputs go to `log`.

    Returns early when the run is asked to end. Raises EngineError in one sentence.
    """
    folder, executable = _folder(arm), Path(arm.executable or "")
    if (folder / MARK).is_file() and executable.is_file():
        return
    name = f"build-{folder.name}"
    held = lock(name)
    if held is None:
        raise EngineError(f"arm {arm.name!r} is being built by another evenhand (pid {holder(name)}); wait for it")
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        log.unlink(missing_ok=True)
        _run(
            "tar", "-x", "-C", str(folder), data=_run("git", "-C", str(arm.source), "archive", "--format=tar", str(arm.commit))
        )
        child = guardian.spawn(["/bin/sh", "-c", str(arm.build)], child_env(arm.env), log, folder)
        while (code := guardian.poll(child)) is None and not stop.wait(0.05):
            pass
        guardian.stop(child, GRACE_S)
        finish_log(log, secrets_of(arm.env))
        if code is None:
            return
        if code:
            said = one_line(last_lines(log, 3), 300)
            raise EngineError(
                f"arm {arm.name!r}: its build command ended with exit code {code} ({said}); all it said is in {log}"
            )
        if not executable.is_file():
            made = executable.relative_to(folder)
            raise EngineError(f"arm {arm.name!r}: its build command left no file {str(made)!r}; what it said is in {log}")
        (folder / MARK).touch()
    finally:
        os.close(held)


def _folder(arm: Arm) -> Path:
    made_of = msgspec.json.encode([arm.source, arm.commit, arm.build, sorted(arm.env.items())])
    return cache_folder() / "builds" / hashlib.sha256(made_of).hexdigest()[:16]


def _run(*argv: str, data: bytes = b"") -> bytes:
    """Output of a program. Raises EngineError with its words."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # GIT_DIR names another checkout
    try:
        answer = subprocess.run(argv, input=data, capture_output=True, check=False, env={**env, "LC_ALL": "C"})
    except OSError as error:
        raise EngineError(f"{argv[0]} cannot be run: {error.strerror or error}") from None
    if answer.returncode:
        raise EngineError(f"{' '.join(argv[:4])}: {one_line(answer.stderr.decode('utf-8', 'replace'), 300)}")
    return answer.stdout
