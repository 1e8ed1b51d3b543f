"""Runs on disk, as small as a test needs: rows of memory runs written the way a campaign writes them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent / "judge"))

from judge_runs import S, gate, gpu, manifest, request, sample, sha

from evenhand.judge.view import MemoryRun
from evenhand.records import CellRow, Lag, LegRow, Refusal
from evenhand.store import RunWriter

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> @everyone | `x`"
"""What an engine may say."""


def store(run: MemoryRun, folder: Path, logs: dict[int, str] | None = None) -> Path:
    """Write a memory run into `folder` and seal it."""
    folder.mkdir(parents=True)
    wanted = run.manifest.status
    writer = RunWriter(folder, msgspec.structs.replace(run.manifest, run=folder.name))
    for leg in run.legs:
        place = writer.leg_folder(leg.leg, leg.arm)
        writer.leg(leg)
        writer.append(place / "samples.jsonl", run.samples(leg.leg))
        writer.append(place / "gpu.jsonl", run.gpu(leg.leg))
        lines = b"".join(msgspec.json.encode(row) + b"\n" for row in run.probe(leg.leg))
        if lines:
            (place / "probe.jsonl").write_bytes(lines)
        writer.requests(place, run.requests(leg.leg))
        (place / "engine.log").write_text((logs or {}).get(leg.leg, f"engine of leg {leg.leg} started\nready\n"))
    for cell in run.cells:
        writer.cell(cell)
    writer.finish(wanted, "2026-01-01T01:00:00Z")
    return folder


def rich_gate(pairs: int = 6, simulated: bool = False) -> MemoryRun:
    """A gate with everything a report can draw: tokens that differ, a slow-down, exact and sampled peaks, a device."""
    rules = {
        "outputs": "identical",
        "peak_pool": "not worse",
        "ttft_p50": {"not_worse_by": 0.05},
        "tpot_p50": {"not_worse_by": 0.05},
        "errors": 0,
    }

    def requests(number: int, arm: str, cell: str, i: int, again: int) -> dict[str, Any]:
        wobble = 1 + 0.01 * ((number * 7) % 5 - 2)
        ids = [10 + (i + n) % 7 for n in range(48)]
        if arm == "new" and i % 6 == 3:
            ids[8 + i] += 1
        tokens = {"event_ns": [int(4e8 + 1e7 * n) for n in range(48)], "event_tokens": [1] * 48}
        slow = 1.09 if arm == "new" else 1.0
        return {"ids": ids, "ttft_s": 0.4 * wobble * slow, "tpot_s": 0.02 * wobble, **tokens}

    scenario = {
        "name": "rich",
        "description": "everything at once",
        "arm": [{"name": "base", "engine": "vllm"}, {"name": "new", "engine": "vllm", "args": ["--fast"]}],
        "ladder": {"concurrency": [1], "arrivals": "closed"},
    }
    run = gate(
        pairs=pairs, rules=rules, requests=requests, compare="differ", scenario=scenario, count=24,
        cell_names=("ladder/c=1", "pressure/14000"), legs=lambda n, arm: {"config": {"fast": arm == "new"}},
        cells=lambda n, arm, c: {"settle_ns": n * 1000 * S + 25 * S, "output_tokens": 48},
        manifest={"simulated": simulated, "command": ["evenhand", "gate", "rich.toml"]},
    )  # fmt: skip
    for leg in run.legs:
        top = 79 if leg.arm == "new" else 61
        start = leg.leg * 1000
        levels = [min(top, 8 * n) for n in range(20)] + [0, 0, 0]
        run._samples += [
            sample(start + n, leg.leg, usage=level / 899, running=1, waiting=0)
            for n, level in enumerate(levels)
            if n not in (6, 7, 8)
        ]
        run._probe[leg.leg] = [
            {"t_ns": start * S + n * S, "request": "r", "computed": 1600 * n, "state": [4 + n if leg.arm == "base" else 5]}
            for n in range(1, 9)
        ]
        run._probe[leg.leg] += [{"t_ns": start * S + S, "step": 3, "used": top + 1}]
        run._gpu += [gpu(leg.leg, start + 0.4 * n, power_w=300.0 + n % 9, memory_used_bytes=40 << 30) for n in range(40)]
    return run


def ladder_run(status: str = "finished", simulated: bool = True) -> MemoryRun:
    """Three arms: one that serves, one that is clamped, one that refuses in hostile words and never ran its second rung."""
    arms = [{"name": name, "engine": "reference"} for name in ("_base", "clamped", "refused")]
    legs, cells, rows, samples = [], [], [], []
    for number, arm in enumerate(arms):
        name = arm["name"]
        base = number * 100 * S
        refusal = Refusal(text=HOSTILE, needed_bytes=43 << 30, available_bytes=38 << 30) if name == "refused" else None
        legs.append(
            LegRow(
                leg=number, arm=name, engine="reference", outcome="refused" if refusal else "ok",
                reason=HOSTILE if refusal else None, refusal=refusal, seats_requested=8,
                seats_resolved=2 if name == "clamped" else 8, argv=["engine", "--port", "4242"], port=4242,
                version=HOSTILE if refusal else "1.0", log_errors=0, config={"mode": HOSTILE},
            )
        )  # fmt: skip
        for c in (1, 4):
            start = base + c * 20 * S
            cell: dict[str, Any] = {
                "leg": number, "arm": name, "cell": f"ladder/c={c}", "kind": "ladder", "concurrency": c, "planned": 20,
                "output_tokens": 4,
            }  # fmt: skip
            if refusal:
                cells.append(CellRow(**cell, outcome="refused", reason=HOSTILE))
                continue
            lag = Lag(stamp="kernel", events=80, lag_p99_s=0.00001, turnaround_p50_s=0.0001, max_in_flight=c)
            cells.append(CellRow(**cell, outcome="ok", start_ns=start, end_ns=start + 20 * S // c, lag=lag))
            rows += [
                request(
                    f"ladder/c={c}#{i}", leg=number, arm=name, slot=i % c, send_ns=start + (i // c) * S,
                    end_ns=start + (i // c + 1) * S, ttft_s=0.1 * c + 0.01 * i, prompt_sha256=sha(f"{c} {i}"),
                )
                for i in range(20)
            ]  # fmt: skip
            samples += [sample((start + n * S) / S, number, usage=0.01 * c, running=c, waiting=0) for n in range(20 // c)]
    scenario = {"name": "three", "arm": arms, "ladder": {"concurrency": [1, 4]}, "watch": {"interval_s": 1.0}}
    made = manifest(
        scenario=scenario, status=status, simulated=simulated, plan={"legs": [{"cells": [{}, {}]}] * 3},
        command=["evenhand", "run", "three.toml", "--out", "/tmp/x y"],
    )  # fmt: skip
    return MemoryRun(manifest=made, legs=legs, cells=cells, requests=rows, samples=samples)
