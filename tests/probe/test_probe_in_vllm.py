"""The probe in a whole vLLM on a CPU: exact beside sampled, equal in two boots, outputs the same as without it."""

import http.client
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from evenhand.engines.registry import engine
from evenhand.records import SampleRow
from evenhand.tiny_model import write_tiny_model
from evenhand.watch.probe_reader import ProbeLog, exact_peak, read
from evenhand.watch.sampler import Sampler, whole_lines

pytestmark = pytest.mark.vllm

PLUGIN = Path(__file__).parents[2] / "engines" / "probes" / "vllm_plugin"
LENGTHS = (3000, 6000, 12000, 15000)
OUTPUT = 48
BLOCK = 256
"""vLLM's choice for the tiny hybrid model on a CPU, checked against the probe's own row."""


class Answer(NamedTuple):
    """One streamed request."""

    ids: list[int]
    ttft_s: float
    tpot_s: float
    start_ns: int
    end_ns: int


class Boot(NamedTuple):
    """One boot and what it did."""

    answers: dict[int, Answer]
    samples: list[SampleRow]
    probe: ProbeLog


def ask(port: int, prompt: list[int]) -> Answer:
    """One request, ids streamed back."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": OUTPUT, "temperature": 0, "seed": 0, "top_p": 1, "n": 1}
    body |= {"ignore_eos": True, "stream": True, "return_token_ids": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    start_ns = time.monotonic_ns()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 200, reply.read()
    ids: list[int] = []
    stamps: list[int] = []
    while line := reply.readline():
        if line.startswith(b"data: {"):
            new = json.loads(line[6:])["choices"][0].get("token_ids") or []
            ids += new
            if new:
                stamps.append(time.monotonic_ns())
    connection.close()
    assert len(ids) == OUTPUT
    return Answer(
        ids, (stamps[0] - start_ns) / 1e9, (stamps[-1] - stamps[0]) / 1e9 / (OUTPUT - 1), start_ns, time.monotonic_ns()
    )


def boot(environment: Path, model: Path, folder: Path, probe: bool) -> Boot:
    """Serve, warm up with unrelated prompts, ask each length three times (cold each time: other prompts), stop."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    env |= {"VLLM_CPU_KVCACHE_SPACE": "1"}
    if probe:
        env |= {"PYTHONPATH": str(PLUGIN), "EVENHAND_PROBE_LOG": str(folder / "probe.jsonl")}
    command = [str(environment / "bin" / "vllm"), "serve", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--max-model-len", "16384", "--max-num-seqs", "4", "--enforce-eager"]
    command += ["--max-num-batched-tokens", "1024", "--enable-prefix-caching", "--mamba-cache-mode", "align"]
    with (folder / "engine.log").open("wb") as log:
        child = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            wait_ready(child, port, folder / "engine.log")
            for n, length in enumerate(LENGTHS):
                ask(port, random.Random(1000 + n).choices(range(300, 2000), k=length))
            answers = {}
            with Sampler(
                0, f"http://127.0.0.1:{port}", engine("vllm").facts.gauges, "/metrics", 0.05, folder, nvml="off"
            ) as sampler:
                for turn in range(3):
                    for length in LENGTHS:
                        answers[length * 10 + turn] = ask(
                            port, random.Random(length + turn).choices(range(300, 2000), k=length)
                        )
            assert sampler.stop().status == "ok"
            deadline = time.monotonic() + 5
            while probe and read(folder / "probe.jsonl").steps[-1]["used"] and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    rows = [msgspec.json.decode(line, type=SampleRow) for line in whole_lines((folder / "samples.jsonl").read_bytes())]
    return Boot(answers, rows, read(folder / "probe.jsonl"))


def wait_ready(child: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until the server answers; fails with the log's end."""
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        assert child.poll() is None, log.read_text()[-2000:]
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.25)
    pytest.fail(f"vLLM was not ready in 150 s: {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def boots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Boot]:
    """Two boots with the probe and one without, in the order on, off, on."""
    place = os.environ.get("EVENHAND_VLLM_ENV")
    if not place or not (Path(place) / "bin" / "vllm").exists():
        if os.environ.get("EVENHAND_NO_SKIP"):
            pytest.fail("EVENHAND_VLLM_ENV names no vLLM environment")
        pytest.skip("EVENHAND_VLLM_ENV names no vLLM environment")
    folder = tmp_path_factory.mktemp("vllm")
    model = folder / "model"
    write_tiny_model(model, "hybrid")
    return {name: boot(Path(place), model, folder / name, probe=name != "off") for name in ("on", "off", "again")}


def sampled_peak(boot: Boot, answer: Answer) -> int:
    """Largest usage gauge in the request's window, in blocks."""
    inside = [row.values["usage"] for row in boot.samples if answer.start_ns <= row.end_ns <= answer.end_ns]
    usable = boot.probe.usable_blocks
    assert usable
    return round(max(value for value in inside if value is not None) * usable)


def test_exact_peaks_are_above_every_sample_equal_in_two_boots_and_as_predicted(boots: dict[str, Boot]) -> None:
    table = []
    for key, answer in boots["on"].answers.items():
        length = key // 10
        exact = exact_peak(boots["on"].probe, answer.start_ns, answer.end_ns)
        other = boots["again"].answers[key]
        again = exact_peak(boots["again"].probe, other.start_ns, other.end_ns)
        assert exact is not None
        assert again is not None
        sampled = sampled_peak(boots["on"], answer)
        table.append((length, exact["used"], again["used"], sampled, sampled_peak(boots["again"], other)))
        assert exact["used"] == again["used"]
        assert sampled <= exact["used"]
        # nothing is in flight on a CPU: two states a group while prefilling, the attention of the tokens prefilled till then
        assert abs(exact["used"] - (-(-(length + OUTPUT) // BLOCK) + 3 * 2)) <= 1
    print("tokens, exact, exact again, sampled, sampled again:", *table, sep="\n")


def test_every_block_has_a_kind_and_the_pool_returns_to_idle(boots: dict[str, Boot]) -> None:
    log = boots["on"].probe
    assert (log.status, log.missing, log.warnings) == ("on", [], [])
    assert [(group["kind"], group["block_tokens"]) for group in log.groups].count(("state", BLOCK)) == 3
    assert all(row["used"] == row["attention"] + row["state"] for row in log.steps)
    assert log.steps[-1]["used"] == 0
    assert max(max(row["state"]) for row in log.requests) == 2


def test_outputs_are_identical_with_and_without(boots: dict[str, Boot]) -> None:
    for key, answer in boots["off"].answers.items():
        assert boots["on"].answers[key].ids == answer.ids
        assert boots["again"].answers[key].ids == answer.ids


def test_what_it_costs(boots: dict[str, Boot]) -> None:
    """At most 1 % of step time by its own count; the medians are printed, not judged: the machine is shared."""
    for name in ("on", "again"):
        share = boots[name].probe.cost_share
        assert share is not None
        assert share <= 0.01
    for name, one in boots.items():
        for figure in ("ttft_s", "tpot_s"):
            values = {n: [getattr(a, figure) * 1e3 for k, a in one.answers.items() if k // 10 == n] for n in LENGTHS}
            print(name, figure, "median ms:", {n: round(statistics.median(v), 2) for n, v in values.items()})
        print(name, "probe's share of step time:", one.probe.cost_share)
