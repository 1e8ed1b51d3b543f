"""This client against its peers on one calibration server, in one run: `python tests/benchmarks/client.py [PART...]`.

Parts: c32, c256 (stamp error and CPU per event, medians of interleaved rounds), held (highest event rate), tools (whole tools:
TTFT error, load time, CPU, memory). Peers get environments of their own under ~/.cache/evenhand/. Server and clients are pinned
to one core each where there are two.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from evenhand.drive.overhead import calibration_server, measure_rung

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "evenhand"
PEERS = ["recvmsg loop", "asyncio.Protocol", "raw + orjson", "aiohttp", "httpx", "httpx-sse"]
PACKAGES = ["aiohttp==3.14.*", "httpx==0.28.*", "httpx-sse==0.4.*", "orjson==3.*", "uvloop==0.22.*"]
OURS = "evenhand"


def environment(name: str, packages: list[str]) -> str:
    """Python of a cached environment, made on first use."""
    folder = CACHE / f"bench-{name}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--retries", "5", *packages], check=True)
        (folder / "ready").touch()
    return str(python)


def pin(core: int) -> None:
    """This process, and what it starts from now on, on one core."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[core]})


ALL_CORES = os.sched_getaffinity(0)


def serving(step_s: float, per_write: int) -> Any:
    """The server on the last core; this process goes back to all of them."""
    pin(-1)
    server = calibration_server(step_s, per_write)
    url = server.__enter__()
    os.sched_setaffinity(0, ALL_CORES)
    return server, url


def one(
    python: str, client: str, url: str, concurrency: int, laps: int, tokens: int, step_s: float, per_write: int
) -> dict[str, Any]:
    """One client's load, in a fresh process on the first core."""
    pin(0)
    try:
        words = [url, str(concurrency), str(laps), str(tokens)]
        if client == OURS:
            command = [sys.executable, __file__, OURS, *words, str(step_s), str(per_write)]
        else:
            command = [python, str(HERE / "peers.py"), client, *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120)
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["events"] == concurrency * laps * tokens, (client, found["events"])
        return {**found, "cpu_us": found["cpu_ns"] / found["events"] / 1e3}
    finally:
        os.sched_setaffinity(0, ALL_CORES)


def ours(url: str, concurrency: int, laps: int, tokens: int, step_s: float, per_write: int) -> dict[str, Any]:
    """The same figures that peers.py prints, of this client."""
    rung = measure_rung(url, concurrency, step_s, per_write=per_write, tokens=tokens, laps=laps)
    return {
        "events": concurrency * laps * tokens,
        "cpu_ns": (rung.lag.cpu_per_event_s or 0.0) * rung.lag.events * 1e9,
        "p50_us": (rung.stamp.p50_s or 0.0) * 1e6,
        "p99_us": (rung.stamp.p99_s or 0.0) * 1e6,
        "wall_s": (1 + rung.load_over_ideal) * laps * -(-tokens // per_write) * step_s,
    }


def median(rows: list[dict[str, Any]], key: str) -> float:
    return statistics.median(row[key] for row in rows)


def compare(concurrency: int, step_s: float, laps: int, rounds: int) -> str:
    """Stamp error and CPU per event, one event a write."""
    python = environment("client", PACKAGES)
    found: dict[str, list[dict[str, Any]]] = {client: [] for client in [OURS, *PEERS]}
    server, url = serving(step_s, 1)
    try:
        one(python, OURS, url, concurrency, 1, 20, step_s, 1)
        for number in range(rounds):
            order = list(found) if number % 2 == 0 else list(reversed(found))
            for client in order:
                found[client].append(one(python, client, url, concurrency, laps, 100, step_s, 1))
                print(f"c={concurrency} round {number + 1}/{rounds} {client}", file=sys.stderr)
    finally:
        server.__exit__(None, None, None)
    ours = {key: median(found[OURS], key) for key in ("cpu_us", "p50_us", "p99_us")}
    lines = [
        f"c={concurrency}, steps of {step_s * 1e3:g} ms, an event a write; medians of {rounds} interleaved rounds; a core each",
        "",
        "| client | stamp error p50, us | p99, us | p50 over evenhand's | CPU per event, us | evenhand's CPU over it |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for client, rows in found.items():
        p50, p99, cpu = median(rows, "p50_us"), median(rows, "p99_us"), median(rows, "cpu_us")
        ratio = statistics.median(a["cpu_us"] / b["cpu_us"] for a, b in zip(found[OURS], rows, strict=True))
        lines.append(f"| {client} | {p50:,.1f} | {p99:,.1f} | {p50 / ours['p50_us']:,.1f} | {cpu:.2f} | {ratio:.2f} |")
    return "\n".join(lines)


def held(rounds: int) -> str:
    """Highest event rate at 8 events a write whose load takes no more than 5 % over its ideal time.

    Where the recvmsg loop that only stores holds no more, the server is the limit: the rate at which a client's core would be
    full (1 / CPU per event, at 64,000 events/s) stands beside it.
    """
    python = environment("client", PACKAGES)
    clients = [OURS, "recvmsg loop", "asyncio.Protocol", "raw + orjson", "aiohttp"]
    rates: dict[str, list[float]] = {client: [] for client in clients}
    full: dict[str, list[float]] = {client: [] for client in clients}
    for number in range(rounds):
        for client in clients:
            best = 0.0
            for step_ms in (
                4.0,
                3.0,
                2.5,
                2.0,
                1.75,
                1.5,
                1.35,
                1.2,
                1.1,
                1.0,
                0.9,
                0.8,
                0.7,
                0.65,
                0.6,
                0.55,
                0.5,
                0.45,
                0.4,
                0.35,
                0.3,
            ):
                server, url = serving(step_ms / 1e3, 8)
                try:
                    tokens = 8 * round(1500 / step_ms)
                    row = one(python, client, url, 32, 1, tokens, step_ms / 1e3, 8)
                finally:
                    server.__exit__(None, None, None)
                if row["wall_s"] > 1.05 * tokens / 8 * step_ms / 1e3:
                    break
                best = 32 * 8 / step_ms * 1e3
                if step_ms == 4.0:
                    full[client].append(1e6 / row["cpu_us"])
            rates[client].append(best)
            print(f"held round {number + 1}/{rounds} {client}: {best:,.0f}", file=sys.stderr)
    lines = ["32 streams, 8 events a write: highest rate held (load at most 5 % over ideal)", ""]
    lines += ["| client | held, events/s | evenhand's over it | core full at, events/s | evenhand's over it |"]
    lines += ["|---|---:|---:|---:|---:|"]
    ours, ours_full = statistics.median(rates[OURS]), statistics.median(full[OURS])
    for client, found in rates.items():
        rate, most = statistics.median(found), statistics.median(full[client] or [0.0])
        if not most:
            lines.append(f"| {client} | {rate:,.0f} | - | below 64,000 | - |")
        else:
            lines.append(f"| {client} | {rate:,.0f} | {ours / rate:.2f} | {most:,.0f} | {ours_full / most:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Run the asked parts and print their tables."""
    if sys.argv[1:2] == [OURS]:
        url, concurrency, laps, tokens, step_s, per_write = sys.argv[2:]
        print(json.dumps(ours(url, int(concurrency), int(laps), int(tokens), float(step_s), int(per_write))))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=["c32", "c256", "held", "tools"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for part in options.parts:
        begun = time.monotonic()
        if part == "c32":
            print(compare(32, 0.01, 2, options.rounds))
        elif part == "c256":
            print(compare(256, 0.02, 1, options.rounds))
        elif part == "held":
            print(held(options.rounds))
        elif part == "tools":
            from tools import tools

            print(tools())
        print(f"\n({part}: {time.monotonic() - begun:.0f} s)\n", flush=True)


if __name__ == "__main__":
    main()
