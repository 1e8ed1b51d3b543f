"""Longer fuzzing of the command line: `python tests/benchmarks/fuzz.py [SECONDS=300] [SEED]`.

Mangled scenario files go through --dry-run, mangled run folders through judge, history and (one in ten) report. Every distinct
failure is printed once, with the traceback; exits 1 when there is any.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from fuzzing import FILES, Folders, invoke, mangled_rows, scenario_files

FAST = settings(
    max_examples=50,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Fuzz:
    """Runs examples and remembers what failed."""

    def __init__(self, home: Path) -> None:
        self.home, self.folders = home, Folders(home)
        self.failures: dict[str, str] = {}
        self.codes: Counter[str] = Counter()

    def tried(self, *args: object) -> None:
        """One command; a failure is known by its last lines."""
        try:
            result = invoke(*args)
            self.codes[f"{args[0]} {result.exit_code}"] += 1
        except AssertionError as error:
            text = str(error)
            self.failures.setdefault("\n".join(text.strip().splitlines()[-3:])[:200], f"{args}\n{text[-3000:]}")

    def scenarios(self, number: int) -> None:
        """Mangled scenario files."""

        @seed(number)
        @FAST
        @given(scenario_files())
        def one(content: bytes) -> None:
            file = self.home / "s.toml"
            file.write_bytes(content)
            self.tried("run", file, "--dry-run")
            self.tried("gate", file, "--dry-run")

        one()

    def runs(self, number: int) -> None:
        """Mangled run folders."""

        @seed(number)
        @FAST
        @given(st.data(), st.sampled_from(FILES), st.integers(0, 1), st.booleans(), st.integers(0, 9))
        def one(data: st.DataObject, name: str, which: int, killed: bool, more: int) -> None:
            run = self.folders.fresh(self.folders.runs[which])
            (run / name).write_bytes(data.draw(mangled_rows(run / name)))
            if killed:
                text = (run / "manifest.json").read_bytes()
                (run / "manifest.json").write_bytes(text.replace(b'"finished"', b'"running"'))
            self.tried("judge", run)
            if more == 0:
                self.tried("report", run, "--out", self.home / "reports")
            elif more < 3:
                self.tried("history", run.parent)

        one()


def main() -> int:
    """Fuzz until the time is over."""
    limit_s = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0
    number = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 30)
    with tempfile.TemporaryDirectory() as home:
        fuzz = Fuzz(Path(home))
        print(f"fuzz: seed {number}", flush=True)
        begin = time.monotonic()
        while time.monotonic() - begin < limit_s:
            fuzz.scenarios(number)
            fuzz.runs(number)
            number += 1
        for text in fuzz.failures.values():
            print(f"\n=== {text}")
        counts = ", ".join(f"{name}: {count}" for name, count in sorted(fuzz.codes.items()))
        print(f"\n{sum(fuzz.codes.values())} commands ended as they should ({counts}), {len(fuzz.failures)} distinct failures")
        return 1 if fuzz.failures else 0


if __name__ == "__main__":
    sys.exit(main())
