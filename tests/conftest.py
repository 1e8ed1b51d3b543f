"""With EVENHAND_NO_SKIP=1 a skip is a failure: a target that was told to run something may not pass without it."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

# the same examples each time: a change is judged by what it changed; tests/benchmarks/fuzz.py looks for new ones
settings.register_profile("evenhand", derandomize=True, database=None)
settings.load_profile("evenhand")

# started by nohup or in the background, a process has signals ignored, and so have its children: these tests send them
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NO_SKIP = os.environ.get("EVENHAND_NO_SKIP") == "1"


def _forbid(report: Any) -> None:
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"EVENHAND_NO_SKIP=1, but this was skipped: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    _forbid(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    report = yield
    _forbid(report)
    return report
