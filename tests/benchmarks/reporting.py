"""A report of a large stored gate: 100,000 requests of 128 tokens in at most 15 s and 1 GiB.

    python tests/benchmarks/reporting.py [--requests 100000] [--tokens 128]

Writes such a run, then reports it in a process of its own and prints its time and peak memory. Exits 1 beyond the limits.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MUST_S, MUST_BYTES = 15.0, 1 << 30


def main() -> int:
    from judging import write

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=128)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = write(Path(folder) / "run", asked.requests, asked.tokens)
        start = time.monotonic()
        subprocess.run(
            [sys.executable, "-c", "from evenhand.cli import main; main()", "report", str(run), "--out", f"{folder}/reports"],
            check=True,
        )
        took = time.monotonic() - start
        page = Path(folder) / "reports" / "run" / "report.html"
        size = page.stat().st_size
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    good = took <= MUST_S and peak <= MUST_BYTES and size < 3_000_000
    print(
        f"report of {asked.requests:,} requests: {took:.1f} s (at most {MUST_S:g}), {peak / (1 << 20):.0f} MiB (at most "
        f"{MUST_BYTES >> 20}), page {size / 1e6:.2f} MB: {'ok' if good else 'TOO MUCH'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
