"""Finding an engine that is a Python package: its interpreter, its folder and its version, without importing it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from evenhand.engines.base import EngineError, Settings

_PYTHON = re.compile(r"^(?:python|pypy)[\d.]*$")
_QUOTED_EXEC = re.compile(r"""^'''exec' "?([^" ]+)"? """, re.MULTILINE)
_FIND = (
    "import importlib.util, sys; spec = importlib.util.find_spec(sys.argv[1]); "
    "print(next(iter(spec.submodule_search_locations or ()), '') if spec else '')"
)


def is_python(path: str) -> bool:
    """Whether the file name is an interpreter's."""
    return _PYTHON.match(Path(path).name) is not None


def find_executable(name: str, what: str) -> str:
    """Full path of an executable given as a path or a name on PATH. Raises EngineError."""
    expanded = Path(name).expanduser()
    if expanded.parent != Path():
        if not expanded.exists():
            raise EngineError(f"executable {name!r} of {what} does not exist: give the path of a file that can be run.")
        if expanded.is_dir() or not os.access(expanded, os.X_OK):
            raise EngineError(f"executable {name!r} of {what} cannot be run: give a file with the execute permission.")
        return str(expanded.absolute())
    found = shutil.which(name)
    if found is None:
        raise EngineError(f"executable {name!r} of {what} is not on PATH: give its full path.")
    return found


def packages_of(settings: Settings, package: str) -> str | None:
    """The environment where it is a folder of packages without an interpreter, as `pip install --target` makes it; else None.

    The arm's executable, or the Python that runs the harness, runs it: with the folder on PYTHONPATH.
    """
    if not settings.environment:
        return None
    folder = Path(settings.environment).expanduser().absolute()
    if any(os.access(folder / "bin" / name, os.X_OK) for name in ("python", "python3")):
        return None
    return str(folder) if (folder / package).is_dir() else None


def with_packages(settings: Settings, package: str) -> dict[str, str]:
    """The arm's variables; a folder of packages stands first on PYTHONPATH."""
    paths = [packages_of(settings, package), settings.env.get("PYTHONPATH")]
    return {**settings.env, **({"PYTHONPATH": os.pathsep.join(path for path in paths if path)} if any(paths) else {})}


def find_in_environment(settings: Settings, script: str | None, what: str, package: str) -> str:
    """The engine's script, else the interpreter, in `executable`, `environment` or PATH, in that order. Raises EngineError.

    `package` is the engine's Python package: an environment that holds it but no interpreter runs under this one.
    """
    if settings.executable:
        return find_executable(settings.executable, what)
    if settings.environment:
        if packages_of(settings, package):
            return sys.executable
        folder = Path(settings.environment).expanduser() / "bin"
        for name in [script, "python", "python3"]:
            if name and os.access(folder / name, os.X_OK):
                return str((folder / name).absolute())
        raise EngineError(
            f"environment {settings.environment!r} of {what} has neither bin/python nor a package {package}: "
            "give the folder of a virtual environment, or one that `pip install --target` filled."
        )
    found = shutil.which(script) if script else sys.executable
    if found is None:
        raise EngineError(
            f"{what} was not found: PATH has no {script!r}; give the arm an environment (folder of a virtual environment) "
            "or an executable."
        )
    return found


def interpreter(located: str) -> str | None:
    """The Python that runs a located script, from its first lines; the file itself when it is an interpreter."""
    if is_python(located):
        return located
    try:
        with Path(located).open("rb") as file:
            head = file.read(512).decode("utf-8", "replace")
    except OSError:
        return None
    if not head.startswith("#!"):
        return None
    shebang = head.splitlines()[0][2:].strip()
    if shebang.startswith("/bin/sh"):  # pip's form for interpreters whose path is too long for a shebang
        quoted = _QUOTED_EXEC.search(head)
        return quoted[1] if quoted else None
    words = shebang.split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
        return shutil.which(words[0]) if words and is_python(words[0]) else None
    return words[0] if words and is_python(words[0]) else None


def engine_package(settings: Settings, located: str, package: str) -> str | None:
    """Folder of the engine's package in the arm's environment, found without importing it; None when there is none."""
    if (folder := packages_of(settings, package)) is not None:
        return str(Path(folder) / package)
    python = interpreter(located)
    return package_folder(python, package, settings.env) if python else None


def package_folder(python: str, package: str, env: Mapping[str, str]) -> str | None:
    """Folder of an installed package as that interpreter would find it, without importing it; None when it has none."""
    try:
        answer = subprocess.run(
            [python, "-c", _FIND, package],
            capture_output=True,
            text=True,
            timeout=60,
            cwd="/",
            env={**os.environ, **env},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    folder = answer.stdout.strip().splitlines()[-1:] if answer.returncode == 0 else []
    return folder[0] if folder and folder[0] else None


def version_of(folder: str, distributions: Iterable[str]) -> tuple[str, str, str] | None:
    """(distribution, version, path of METADATA) of the first named distribution installed beside a package folder."""
    site = Path(folder).parent
    for name in distributions:
        for metadata in sorted(site.glob(f"{name}-*.dist-info/METADATA")):
            match = re.search(r"^Version: *(\S+)", metadata.read_text("utf-8", "replace"), re.MULTILINE)
            if match:
                return name, match[1], str(metadata)
    return None


def usage_text(argv: list[str], env: Mapping[str, str], timeout_s: float, what: str) -> str:
    """What a build prints about itself (stdout and stderr together, whatever its exit code). Raises EngineError."""
    try:
        answer = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            env={**os.environ, **env},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"{what} did not print its usage text within {timeout_s:.0f} s: {' '.join(argv)}.") from None
    except OSError as error:
        raise EngineError(f"{what} cannot be run: {error.strerror or error}: {argv[0]}.") from None
    return answer.stdout + answer.stderr
