"""An engine's package as an arm sees it: a folder of links to the installation in which only the touched files are real.

It stands first on PYTHONPATH. The installation is never written to: not by us, and not by Python either (bytecode is read from
it for untouched files, and never written). Both arms of a comparison get one, the baseline's with the same files real but
unchanged, so that they differ in the patch alone. Paths go into the keys of some compile caches: build an arm's overlay at the
same place for every leg.

One limit: a module that looks for a data file beside its own real path (os.path.realpath(__file__)) finds the installed one,
unless the module itself is touched. The touched modules are proved, data files are not.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from evenhand.boot.patch import PatchError
from evenhand.boot.patches import Patches, read_file, read_patches, sha256
from evenhand.records import PatchedFile

__all__ = ["Overlay", "PatchError", "Patches", "build_overlay", "read_patches"]

PROOF = "EVENHAND_LOADPROOF"
PROOF_LOG = "loadproof.jsonl"
_PLUGIN = "evenhand_loadproof.py"
_MODULES = "evenhand_loadproof.txt"
_SITE = "import evenhand_loadproof\n\nevenhand_loadproof.install()\nevenhand_loadproof.run_hidden_sitecustomize()\n"
_PROOF_BYTES = 16 << 20


class _Load(msgspec.Struct, frozen=True):
    """One line of the proof: a process of the engine took this module from that file."""

    pid: int
    module: str
    file: str
    sha256: str | None


class Overlay(msgspec.Struct, frozen=True, kw_only=True):
    """A built overlay."""

    folder: Path
    package: Path
    """The installed package."""
    files: list[PatchedFile]
    """What is real in it, with the installation's hashes from before the run."""
    proof: Path
    """Where the engine's processes say what they loaded."""

    def env(self) -> dict[str, str]:
        """What makes a process use it."""
        return {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1", PROOF: str(self.proof)}

    def _path(self, file: PatchedFile) -> str:
        return str(self.folder / self.package.name / file.path)

    def loads(self) -> dict[str, list[_Load]]:
        """module -> what processes loaded for it, as far as the log is whole."""
        found: dict[str, list[_Load]] = {}
        try:
            with self.proof.open("rb") as file:
                lines = file.read(_PROOF_BYTES).splitlines()
        except OSError:
            return found
        for line in lines:
            try:
                load = msgspec.json.decode(line, type=_Load)
            except msgspec.DecodeError:
                continue
            found.setdefault(load.module, []).append(load)
        return found

    def prove(self) -> tuple[list[PatchedFile], list[str]]:
        """(files with what was loaded for each, modules that some process took from elsewhere, one sentence each).

        Where processes disagree, the wrong one is told. A module that nobody has loaded is no mistake: its fields stay None.
        """
        loads = self.loads()
        rows: list[PatchedFile] = []
        wrong: list[str] = []
        for file in self.files:
            found = loads.get(module_name(self.package.name, file.path) or "", [])
            bad = [load for load in found if (load.file, load.sha256) != (self._path(file), file.overlay_sha256)]
            if bad:
                wrong.append(f"process {bad[0].pid} loaded {bad[0].module} from {bad[0].file}, not as the overlay has it")
            told = next(iter(bad or found), None)
            if told is not None:
                file = msgspec.structs.replace(file, loaded_from=told.file, loaded_sha256=told.sha256)
            rows.append(file)
        return rows, wrong

    def finish(self, leg_dir: Path) -> list[PatchedFile]:
        """The proof, with paths relative to the run's folder and the installation's hashes from after the run."""
        rows = []
        for file in self.prove()[0]:
            try:
                after = sha256(read_file(self.package, file.path))
            except PatchError as error:
                after = str(error)
            loaded = file.loaded_from
            if loaded is not None and Path(loaded).is_relative_to(leg_dir.parent.absolute()):
                loaded = str(Path(loaded).relative_to(leg_dir.parent.absolute()))
            rows.append(msgspec.structs.replace(file, installed_sha256_after=after, loaded_from=loaded))
        return rows


def module_name(package: str, path: str) -> str | None:
    """The module that a file of the package holds; None for what is no module."""
    if not path.endswith(".py"):
        return None
    parts = [package, *path.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def build_overlay(
    package: Path, folder: Path, patches: Patches | None, touch: Iterable[str] = (), proof: Path | None = None
) -> Overlay:
    """Make the overlay of an installed package in `folder` (an older overlay there is replaced). Raises PatchError or OSError.

    `touch` are paths that become real without a change: those that the other arm changes. `proof` (else beside the folder) is
    where the engine's processes will say what they loaded.
    """
    folder, package = folder.absolute(), package.absolute()
    if ":" in str(folder):
        raise PatchError(f"the folder {folder} cannot stand on PYTHONPATH: its name has a colon")
    content: dict[str, bytes | None] = {}
    before: dict[str, bytes | None] = {}
    for path in [*(patches.files if patches else ()), *touch]:
        data = read_file(package, path)
        # what only the other arm creates leaves no trace here, not even a folder
        if data is not None or (patches and path in patches.files):
            before[path] = content[path] = data
    if patches is not None:
        content |= patches.files
        changed = [path for path, digest in patches.installed.items() if sha256(before[path]) != digest]
        if changed:
            raise PatchError(f"{', '.join(changed[:5])} in {package} changed since the patches were read")
    _clear(folder)
    folder.mkdir(parents=True)
    for libraries in package.parent.glob(f"{package.name}*.libs"):
        (folder / libraries.name).symlink_to(libraries)  # compiled modules look for them beside the package
    place = folder / package.name
    if content:
        _link(package, place, _tree(content))
    else:
        place.symlink_to(package)
    for path, data in content.items():
        if data is not None:
            _write(place, path, data, package / path)
    modules = [name for path in content if (name := module_name(package.name, path)) is not None]
    (folder / _MODULES).write_text("\n".join(modules) + "\n", "utf-8")
    shutil.copyfile(Path(__file__).with_name("loadproof.py"), folder / _PLUGIN)
    (folder / "sitecustomize.py").write_text(_SITE, "utf-8")
    proof = (proof or folder.parent / PROOF_LOG).absolute()
    proof.unlink(missing_ok=True)
    rows = [
        PatchedFile(
            path=path,
            action="create" if before[path] is None else "delete" if data is None else "modify",
            installed_sha256_before=sha256(before[path]),
            overlay_sha256=sha256(data),
        )
        for path, data in sorted(content.items())
    ]
    return Overlay(folder=folder, package=package, files=rows, proof=proof)


class _Node(dict[str, "_Node"]):
    """Folders that become real; a file is an empty node."""


def _tree(paths: Iterable[str]) -> _Node:
    root = _Node()
    for path in paths:
        node = root
        for part in path.split("/"):
            node = node.setdefault(part, _Node())
    return root


def _link(installed: Path, place: Path, node: _Node) -> None:
    """Make `place` a real folder with links to everything in `installed` but what `node` names."""
    place.mkdir()
    for entry in os.scandir(installed) if installed.is_dir() else ():
        if entry.name == "__pycache__":
            _link_bytecode(Path(entry.path), place / entry.name, node)
        elif entry.name not in node:
            (place / entry.name).symlink_to(entry.path)
    for name, below in node.items():
        if below:
            _link(installed / name, place / name, below)


def _link_bytecode(cache: Path, place: Path, node: _Node) -> None:
    """Bytecode of untouched files, in a folder of our own: what Python may write lands here, never in the installation."""
    place.mkdir()
    touched = {name.removesuffix(".py") for name in node}
    for entry in os.scandir(cache):
        if entry.name.split(".")[0] not in touched:
            (place / entry.name).symlink_to(entry.path)


def _write(place: Path, path: str, data: bytes, installed: Path) -> None:
    """A real file. Its folders are real by now; "x" makes sure that no link is followed."""
    target = place / path
    with target.open("xb") as file:
        file.write(data)
    if installed.is_file():
        shutil.copymode(installed, target)


def _clear(folder: Path) -> None:
    """Remove an older overlay; anything else in its place is a mistake. Links are removed, never followed."""
    if not folder.exists():
        return
    if any(folder.iterdir()) and not (folder / _PLUGIN).is_file():
        raise PatchError(f"{folder} exists and is no overlay")
    shutil.rmtree(folder)
