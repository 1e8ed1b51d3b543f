"""Loading and judging a large stored gate: 100,000 requests of 128 tokens in at most 10 s and 1 GiB.

    python tests/benchmarks/judging.py [--requests 100000] [--tokens 128] [--keep FOLDER]

Writes such a run, then judges it in a process of its own and reports its time and peak memory. Exits 1 beyond the limits.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MUST_S, MUST_BYTES = 10.0, 1 << 30
LEGS = "ABBA"
CELLS = 5
SECOND = 1_000_000_000


def write(folder: Path, requests: int, tokens: int) -> Path:
    """A finished gate run with so many requests in all."""
    from evenhand.records import CellRow, FileHash, Lag, LegRow, Manifest, Pool, RequestRow, SampleRow
    from evenhand.store import RunWriter

    rng = random.Random(0)
    arms = [{"name": "base", "engine": "vllm"}, {"name": "new", "engine": "vllm"}]
    rules = {"outputs": "identical", "errors": 0, "peak_pool": "not worse", "ttft_p50": {"not_worse_by": 0.05}}
    gate = {"baseline": "base", "candidate": "new", "compare": "same", "pairs": 2, "rules": rules}
    manifest = Manifest(
        evenhand="0",
        run=folder.name,
        kind="gate",
        status="running",
        started_utc="",
        anchor_monotonic_ns=0,
        scenario={"name": "large", "model": "/m", "arm": arms, "gate": gate, "ladder": {"concurrency": [1]}},
        scenario_sha256="0",
        plan={},
        machine={},
        versions={},
        command=[],
        seed=0,
        simulated=True,
    )
    folder.mkdir(parents=True)
    writer = RunWriter(folder, manifest)
    each = requests // (len(LEGS) * CELLS)
    for number, letter in enumerate(LEGS):
        arm = "base" if letter == "A" else "new"
        place = writer.leg_folder(number, arm)
        for c in range(CELLS):
            name = f"ladder/c={1 << c}"
            start = (number * CELLS + c) * 1000 * SECOND
            rows = []
            for i in range(each):
                text = random.Random(f"{c}.{i}")
                ids = [text.randrange(150_000) for _ in range(tokens)]
                ttft = 200_000_000 + rng.randrange(10_000_000)
                rows.append(
                    RequestRow(
                        leg=number,
                        arm=arm,
                        cell=name,
                        index=i,
                        key=f"{name}#{i}",
                        prompt_sha256=f"{i:064x}",
                        prompt_tokens_asked=512,
                        prompt_tokens=512,
                        cached_tokens=0,
                        outcome="ok",
                        stamp="kernel",
                        slot=i % (1 << c),
                        send_ns=start + i * SECOND // 10,
                        end_ns=start + i * SECOND // 10 + 3 * SECOND,
                        ttft_s=ttft / 1e9,
                        tpot_s=0.02,
                        gaps_kind="itl",
                        event_ns=[ttft + 20_000_000 * k + rng.randrange(999) for k in range(tokens)],
                        event_tokens=[1] * tokens,
                        token_ids=ids,
                        text=" ".join(map(str, ids)),
                        finish_reason="length",
                        output_tokens=tokens,
                        token_source="ids",
                        sampling={"temperature": 0.0, "seed": 0},
                    )
                )
            writer.requests(place, rows)
            writer.cell(
                CellRow(
                    leg=number,
                    arm=arm,
                    cell=name,
                    kind="ladder",
                    concurrency=1 << c,
                    outcome="ok",
                    planned=each,
                    start_ns=start,
                    end_ns=start + each * SECOND // 10 + 3 * SECOND,
                    output_tokens=tokens,
                    lag=Lag(stamp="kernel"),
                )
            )
        writer.append(
            place / "samples.jsonl",
            (
                SampleRow(leg=number, due_ns=t, start_ns=t, first_byte_ns=t, end_ns=t, status="ok", values={"usage": 0.3})
                for t in range(number * CELLS * 1000 * SECOND, (number + 1) * CELLS * 1000 * SECOND, SECOND)
            ),
        )
        writer.leg(
            LegRow(
                leg=number,
                arm=arm,
                engine="vllm",
                pair=number // 2,
                outcome="ok",
                pool=Pool(blocks=900, usable_blocks=899),
                files=[FileHash(path="m/x", sha256="a", size_bytes=1)],
                log_errors=0,
            )
        )
    writer.close()
    writer.save_manifest(status="finished")
    return folder


def judge(folder: Path) -> None:
    """Load and judge, and say what it took."""
    start = time.perf_counter()
    from evenhand.judge.gate import judge_gate
    from evenhand.judge.verdict import encode
    from evenhand.store import open_run

    verdict = judge_gate(open_run(folder), "")
    size = len(encode(verdict))
    took = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{verdict.status}: {took:.1f} s, {peak / (1 << 20):.0f} MiB, verdict {size / 1024:.0f} KiB")
    sys.exit(0 if took <= MUST_S and peak <= MUST_BYTES else 1)


def main() -> int:
    """Write, then judge in a fresh process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.judge:
        judge(asked.judge)
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.keep or Path(temporary) / "large"
        if not folder.exists():
            write(folder, asked.requests, asked.tokens)
        return subprocess.run([sys.executable, __file__, "--judge", str(folder)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
