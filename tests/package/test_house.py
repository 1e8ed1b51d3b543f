"""The rules of the house: who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def imports(file: Path) -> set[str]:
    """Modules that a file imports at run time or for types, as dotted names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def files(*places: str) -> list[Path]:
    found = []
    for place in places:
        path = ROOT / place
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    assert found
    return found


@pytest.mark.parametrize("file", files("harness/judge", "harness/show", "harness/predict", "harness/plan.py"), ids=str)
def test_judging_never_imports_measuring(file: Path) -> None:
    """A stored run can be judged years later on another machine, without what booted, drove and watched."""
    for name in imports(file):
        assert not name.startswith(("evenhand.boot", "evenhand.drive", "evenhand.watch")), f"{file} imports {name}"


def test_nothing_imports_the_command_line() -> None:
    for file in files("harness", "engines"):
        assert "evenhand.cli" not in imports(file) or file.name == "__main__.py", file


def test_the_embedded_engine_and_prediction_know_nothing_of_each_other() -> None:
    """What one computes, the other must find by running."""
    for file in files("engines/reference"):
        types_only = file.name == "adapter.py"  # names the contract's shapes, computes nothing
        assert types_only or not any(name.startswith("evenhand.predict") for name in imports(file)), file
    for file in files("harness/predict"):
        assert not any(name.startswith("evenhand.engines.reference") for name in imports(file)), file


def test_no_engine_is_asked_for_by_name_outside_the_engines() -> None:
    """What is particular to an engine lives in its adapter."""
    for file in files("harness"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Compare):
                for part in (node.left, *node.comparators):
                    words = {c.value for c in ast.walk(part) if isinstance(c, ast.Constant)}
                    assert not words & {"vllm", "sglang", "vllm.cpp", "llama.cpp", "attached", "reference"}, (
                        f"{file}:{node.lineno}"
                    )
