"""What an arm changes in its engine's package: a patch, a series of patches, or a commit, read against the installation.

Reading changes nothing on disk. The result says for each touched file what it becomes, so that every mistake is known before
anything boots.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from evenhand.boot.log import one_line
from evenhand.boot.patch import MAX_PATCH_BYTES, FilePatch, PatchError, apply, parse
from evenhand.engines.base import Engine, EngineError, Settings
from evenhand.scenario import Arm

MAX_FILE_BYTES = 64 << 20
MAX_TREE_BYTES = 1 << 30
MAX_SERIES = 1000
_COMPILED = (".so", ".pyd", ".dylib", ".a", ".o", ".pyc")
_PREFIXES = ("", "src/", "python/", "lib/")
"""Where repositories keep a package; patches and commits name its files from there."""


class Patches(msgspec.Struct, frozen=True, kw_only=True):
    """Content of every touched file. Paths are relative to the package folder."""

    package: str
    """The package's name, which is its folder's name."""
    files: dict[str, bytes | None]
    """What a file becomes; None: deleted."""
    installed: dict[str, str | None]
    """sha256 of each touched file when it was read; None: there was none."""


def sha256(data: bytes | None) -> str | None:
    """Hex digest; None for no file."""
    return None if data is None else hashlib.sha256(data).hexdigest()


def read_file(package: Path, path: str) -> bytes | None:
    """A file of the installed package, None when it has none of that name.

    Raises PatchError for what is no regular file, leaves the package through a link, or is too large.
    """
    place = package / path
    try:
        if not place.resolve(strict=True).is_relative_to(package.resolve()):
            raise PatchError(f"{path} leads out of the package {package} through a link")
        if not place.is_file() or place.stat().st_size > MAX_FILE_BYTES:
            raise PatchError(f"{path} in {package} is no regular file of at most {MAX_FILE_BYTES} bytes")
        return place.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, RuntimeError) as error:
        raise PatchError(f"{path} in {package} cannot be read: {error}") from None


def read_patches(arm: Arm, engine: Engine, settings: Settings) -> Patches | None:
    """What the arm changes in the engine's package, None when it changes nothing. Raises PatchError or EngineError."""
    if arm.patch is None and arm.patches is None and arm.commit is None:
        return None
    folder = engine.launcher.package_folder(settings)
    if folder is None:
        raise EngineError(
            f"arm {arm.name!r}: {engine.name} has no Python package here that a patch could change; "
            "give the arm an executable that was built from the changed source"
        )
    package = Path(folder)
    if arm.commit is not None:
        return commit_changes(package, Path(arm.source or "."), arm.commit)
    if arm.patches is not None:
        return patch_changes(package, series(Path(arm.patches)))
    assert arm.patch is not None
    return patch_changes(package, [(Path(arm.patch).name, _read_patch(Path(arm.patch), Path(arm.patch).name))])


# --- patches and series -------------------------------------------------------------------------------------------------


def _read_patch(path: Path, name: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_PATCH_BYTES + 1)
    except OSError as error:
        raise PatchError(f"{name} cannot be read: {error.strerror or error}") from None


def series(folder: Path) -> list[tuple[str, bytes]]:
    """Patches of a folder in the order of its list, `series`; both must name the same ones. Raises PatchError."""
    listed = folder / "series"
    text = _read_patch(listed, f"{folder.name}/series").decode("utf-8", "replace")
    names: list[str] = []
    wrong: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if not words:
            continue
        name, options = words[0], words[1:]
        where = f"{folder.name}/series, line {number}: {one_line(name, 100)!r}"
        if options not in ([], ["-p1"]):
            wrong.append(f"{where} has options {one_line(' '.join(options), 60)!r}; only -p1 is known")
        if name in names:
            wrong.append(f"{where} is listed twice")
        elif why := _misplaced(folder, name):
            wrong.append(f"{where} {why}")
        names.append(name)
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in (".patch", ".diff")}
    wrong += [f"{folder.name}/{name} is not listed in series" for name in sorted(there - set(names))]
    if not names and not wrong:
        wrong.append(f"{folder.name}/series lists no patch")
    if len(names) > MAX_SERIES:
        wrong.append(f"{folder.name}/series lists more than {MAX_SERIES} patches")
    if wrong:
        raise PatchError(*wrong)
    return [(name, _read_patch(folder / name, name)) for name in names]


def _misplaced(folder: Path, name: str) -> str | None:
    """Why `name` is no file of the folder, or None."""
    try:
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            return "leaves the folder"
        return None if (folder / name).is_file() else "is not in the folder"
    except (OSError, RuntimeError, ValueError):  # too long, a circle of links, a null byte
        return "is no file name"


def patch_changes(package: Path, patches: Iterable[tuple[str, bytes]]) -> Patches:
    """Apply patches (name, bytes) in order to the package's files, in memory. Raises PatchError with every reason of the first
    patch that does not apply."""
    files: dict[str, bytes | None] = {}
    installed: dict[str, str | None] = {}
    for name, data in patches:
        wrong: list[str] = []
        for file in parse(data, name):
            try:
                path = inside(file, package.name)
                if path not in files:
                    files[path] = read_file(package, path)
                    installed[path] = sha256(files[path])
                files[path] = apply(file, files[path])
            except PatchError as error:
                wrong += error.reasons
        if wrong:
            raise PatchError(*wrong)
    changed = {path: data for path, data in files.items() if sha256(data) != installed[path]}
    if not changed:
        raise PatchError("the patches undo each other: nothing would change")
    return Patches(package=package.name, files=changed, installed={path: installed[path] for path in changed})


def inside(file: FilePatch, package: str) -> str:
    """The file's path relative to the package folder. Raises PatchError for a file outside of the package."""
    for prefix in _PREFIXES:
        if file.path.startswith(f"{prefix}{package}/"):
            return file.path.removeprefix(f"{prefix}{package}/")
    raise PatchError(f"{file.patch} touches {file.path!r}, which is outside of the package {package!r}")


# --- a commit -----------------------------------------------------------------------------------------------------------


def _without_git(env: Mapping[str, str]) -> dict[str, str]:
    """Without what git sets for its hooks: GIT_DIR would lead it to another repository than the one asked for."""
    return {name: value for name, value in env.items() if not name.startswith("GIT_")}


def _git(source: Path, *args: str, data: bytes = b"", fine: tuple[int, ...] = (0,)) -> bytes:
    """Run git in a checkout. Raises PatchError with its words."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(source), *args],
            input=data,
            capture_output=True,
            timeout=120,
            check=False,
            env={**_without_git(os.environ), "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise PatchError("git is not installed, and an arm names a commit") from None
    except subprocess.TimeoutExpired:
        raise PatchError(f"git {args[0]} in {source} took longer than 120 s") from None
    if answer.returncode not in fine:
        raise PatchError(f"git {args[0]} in {source}: {one_line(answer.stderr.decode('utf-8', 'replace'), 300)}")
    return answer.stdout


def commit_changes(package: Path, source: Path, commit: str) -> Patches:
    """What the package at a commit of a checkout changes against the installed one. Raises PatchError.

    Compiled files and files that the checkout ignores (generated ones) stay as they are installed.
    """
    full = (
        _git(source, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}", fine=(0, 1))
        .decode()
        .strip()
    )
    if not full:
        raise PatchError(f"{source} has no commit {one_line(commit, 80)!r}")
    for prefix in _PREFIXES:
        root = f"{prefix}{package.name}"
        if _git(source, "cat-file", "-t", f"{full}:{root}", fine=(0, 128)).strip() == b"tree":
            break
    else:
        raise PatchError(f"commit {commit} of {source} has no folder {package.name!r}")
    files: dict[str, bytes | None] = {}
    seen: set[str] = set()
    for path, data in _archived(_git(source, "archive", "--format=tar", full, "--", root), root):
        seen.add(path)
        if data != read_file(package, path):
            files[path] = data
    gone = [path for path in _installed(package) if path not in seen]
    asked = b"\0".join(os.fsencode(f"{root}/{path}") for path in gone)
    answer = _git(source, "check-ignore", "--no-index", "-z", "--stdin", data=asked, fine=(0, 1)) if gone else b""
    ignored = {os.fsdecode(name) for name in answer.split(b"\0")}
    files |= {path: None for path in gone if f"{root}/{path}" not in ignored}
    return Patches(package=package.name, files=files, installed={path: sha256(read_file(package, path)) for path in files})


def _archived(data: bytes, root: str) -> Iterator[tuple[str, bytes]]:
    """Regular files of an archive below `root`. Raises PatchError for anything else."""
    size = 0
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            if member.isdir() or member.type == tarfile.XGLTYPE:
                continue
            size += member.size
            parts = member.name.split("/")
            if not member.isfile() or ".." in parts or not member.name.startswith(f"{root}/"):
                raise PatchError(f"the commit holds {one_line(member.name, 100)!r}, which is no regular file of the package")
            if member.size > MAX_FILE_BYTES or size > MAX_TREE_BYTES:
                raise PatchError(f"the package at the commit is too large ({one_line(member.name, 100)!r})")
            content = archive.extractfile(member)
            assert content is not None
            yield member.name.removeprefix(f"{root}/"), content.read()


def _installed(package: Path) -> Iterator[str]:
    """Installed files that a source tree would hold too: no bytecode, nothing compiled."""
    for folder, folders, names in os.walk(package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if not name.endswith(_COMPILED):
                yield str((Path(folder) / name).relative_to(package))
