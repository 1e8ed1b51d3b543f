"""Load and soak on the embedded engine: `python tests/benchmarks/soak.py [load|ladder] [SECONDS] [CONCURRENCY,...]`.

load: one rung at c=1024 (120 s). ladder: c = 32 to 1, as long as asked (1800 s). Prints descriptors, memory and processes of
the harness and the engine at the start and at the end, and whether every request has its row. Exits 1 when something leaked.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

MODEL = Path(__file__).parents[2] / "scenarios" / "models" / "4b-hybrid"
STEP_S = 0.1
OUTPUT = 32


def scenario(rungs: list[int], seconds: float) -> str:
    """A ladder that takes so long: a request takes (OUTPUT + 1) steps."""
    requests = max(*rungs, round(seconds / ((OUTPUT + 1) * STEP_S * sum(1 / c for c in rungs))), 1)
    options = f"{{ clock = {{ base_s = {STEP_S}, decode_token_s = 0.0 }} }}"
    arm = f'[[arm]]\nname = "soak"\nengine = "reference"\noptions = {options}\n'
    return (
        f'name = "soak"\nmodel = "{MODEL}"\nseats = {max(rungs)}\ncontext = 1024\n{arm}[pool]\nbytes = "64 GiB"\n'
        f"[ladder]\nconcurrency = {rungs}\nprompt_tokens = 32\noutput_tokens = {OUTPUT}\nrequests = {requests}\n"
        "[watch]\ninterval_s = 0.25\n"
    )


class Watch:
    """Descriptors, threads and memory of the processes below a command, by role."""

    def __init__(self, pid: int) -> None:
        self.root = psutil.Process(pid)
        self.seen: dict[str, list[dict[str, float]]] = {}

    def look(self) -> None:
        """One sample of every process."""
        with contextlib.suppress(psutil.Error):
            count: dict[str, int] = {}
            for process in [self.root, *self.root.children(recursive=True)]:
                line = " ".join(process.cmdline())
                roles = {"boot.warden": "guardian", "engines.reference": "engine", "watch.child": "sampler", "worker": "client"}
                role = next((name for word, name in roles.items() if word in line), "harness")
                count[role] = count.get(role, 0) + 1
                with process.oneshot():
                    sample = {
                        "fds": process.num_fds(),
                        "rss_bytes": process.memory_info().rss,
                        "threads": process.num_threads(),
                    }
                if count[role] == 1:
                    self.seen.setdefault(role, []).append(sample)
            self.seen.setdefault("processes", []).append({"count": float(sum(count.values()))})


def main() -> int:
    """Run, watch, count."""
    kind = sys.argv[1] if len(sys.argv) > 1 else "load"
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else (120.0 if kind == "load" else 1800.0)
    default = [1024] if kind == "load" else [32, 16, 8, 4, 2, 1]
    rungs = [int(c) for c in sys.argv[3].split(",")] if len(sys.argv) > 3 else default
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "s.toml").write_text(scenario(rungs, seconds))
        begin = time.monotonic()
        with (Path(home) / "log").open("wb") as log:
            child = subprocess.Popen(
                [str(Path(sys.executable).with_name("evenhand")), "run", "s.toml", "--out", "out"],
                cwd=home,
                stdout=log,
                stderr=log,
            )
        watch = Watch(child.pid)
        while child.poll() is None:
            if "ladder/c=" in (Path(home) / "log").read_text("utf-8", "replace"):
                watch.look()
            time.sleep(1.0)
        elapsed = time.monotonic() - begin
        text = (Path(home) / "log").read_text("utf-8", "replace")
        run = next((Path(home) / "out").glob("soak-*"))
        planned = sum(
            cell["requests"]
            for leg in json.loads((run / "manifest.json").read_bytes())["plan"]["legs"]
            for cell in leg["cells"]
        )
        rows = sum(file.read_bytes().count(b"\n") for file in run.glob("0*/requests.jsonl"))
        good = sum(file.read_bytes().count(b'"outcome":"ok"') for file in run.glob("0*/requests.jsonl"))
        size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    print(
        "\n".join(line for line in text.splitlines() if "ladder/c=" in line or line.startswith("soak") or "no figures" in line)
    )
    print(f"\n{kind}: c={rungs}, {elapsed:.0f} s, exit code {child.returncode}, run folder {size / 1e6:.0f} MB")
    print(f"requests planned {planned}, rows {rows}, ok {good}, lost {planned - rows}")
    leaked = rows != planned
    for role, samples in watch.seen.items():
        # before the decoding that ends the last rung, where memory is on purpose
        first, last, most = samples[min(3, len(samples) - 1)], samples[-2 if len(samples) > 1 else -1], {}
        for key in first:
            most[key] = max(sample[key] for sample in samples)
        print(f"{role}: " + ", ".join(f"{key} {first[key]:,.0f} -> {last[key]:,.0f} (most {most[key]:,.0f})" for key in first))
        if role != "processes" and last["fds"] > first["fds"] + 8:
            leaked = True
    return 1 if leaked else 0


if __name__ == "__main__":
    sys.exit(main())
