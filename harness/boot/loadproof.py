"""Proof from inside a process of the engine: which patched modules it compiled, from which file, with which content.

A copy of this file lies in an overlay's folder, first on PYTHONPATH, together with a list of modules; it is imported by the
`sitecustomize` beside it in every Python process of the engine, before any module of the package. (A plug-in that the engine
loads by itself comes too late: by then the patched modules are compiled.) For the listed modules only it hashes the very bytes
that Python compiles, ignores bytecode caches, and appends one JSON line to the file that EVENHAND_LOADPROOF names. It changes
nothing else, and costs nothing after the imports. Standard library only; it runs in the engine's Python, not in ours.
"""

# an import of pathlib in every process of the engine would not be nothing
# ruff: noqa: PTH100, PTH118, PTH120, PTH123

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _record(log: str, module: str, path: str, digest: str | None) -> None:
    import json

    line = json.dumps({"pid": os.getpid(), "module": module, "file": path, "sha256": digest}) + "\n"
    try:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)
    except OSError:
        pass  # the engine must not fail for want of proof: without proof the comparison is void


class _Loader(SourceFileLoader):
    """Compiles from source, always, and says from which."""

    log = ""

    def path_stats(self, path: Any) -> Any:
        raise OSError("no bytecode for patched modules")

    def source_to_code(self, data: Any, path: Any, **options: Any) -> CodeType:  # type: ignore[override]
        import hashlib

        _record(self.log, self.name, os.fsdecode(path), hashlib.sha256(data).hexdigest())
        return super().source_to_code(data, path, **options)


class _Finder:
    """First on sys.meta_path; leaves the finding to those behind it."""

    def __init__(self, modules: frozenset[str], log: str) -> None:
        self.modules, self.log = modules, log

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.modules:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self and hasattr(finder, "find_spec") else None
            if spec is None:
                continue
            if type(spec.loader) is SourceFileLoader:
                spec.loader = _Loader(spec.loader.name, spec.loader.path)
                spec.loader.log = self.log
            else:
                _record(self.log, name, str(spec.origin), None)
            return spec
        return None


def install() -> None:
    """Watch the imports of the listed modules in this process."""
    log = os.environ.get("EVENHAND_LOADPROOF")
    if log and not any(type(finder) is _Finder for finder in sys.meta_path):
        with open(os.path.join(_HERE, "evenhand_loadproof.txt"), encoding="utf-8") as file:
            sys.meta_path.insert(0, _Finder(frozenset(file.read().split()), log))


def run_hidden_sitecustomize() -> None:
    """Run the environment's own sitecustomize, which ours hides by standing first on the path."""
    from importlib.util import module_from_spec

    rest = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
