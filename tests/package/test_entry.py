"""The first moments of the command: a signal during its imports ends it in silence, with the code that scripts expect."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [str(Path(sys.executable).with_name("evenhand"))]
MODULE = [sys.executable, "-m", "evenhand"]
SLOW = "import os, sys, time\nos.write(1, b'importing')\ntime.sleep(30)\n"
"""Stands for the libraries that the command line imports."""


@pytest.mark.parametrize("command", [COMMAND, MODULE], ids=["evenhand", "python -m evenhand"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_imports_is_silent(tmp_path: Path, command: list[str], number: signal.Signals, code: int) -> None:
    (tmp_path / "typer.py").write_text(SLOW)
    child = subprocess.Popen(
        [*command, "scenarios"], env={"PYTHONPATH": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.read(9) == b"importing"
    child.send_signal(number)
    out, err = child.communicate(timeout=10)
    assert (child.returncode, out, err) == (code, b"", b"")


def test_an_ignored_interrupt_stays_ignored() -> None:
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.argv = ['evenhand', 'scenarios']\n"
        "import evenhand.cli; evenhand.cli.main = lambda: print(signal.getsignal(signal.SIGINT).name)\n"
        "from evenhand.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "SIG_IGN\n", done.stderr
