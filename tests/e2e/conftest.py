"""One folder and one command line for every test; what a test left running is ended and fails it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_cli import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    try:
        yield made
    finally:
        left = made.left()
        made.close()
        assert not left, f"still running after the test: {left}"
