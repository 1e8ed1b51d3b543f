"""Going on with a run: only what is missing, only the same scenario, the same rows as without the interruption."""

from __future__ import annotations

import signal

import pytest
from e2e_cli import MODEL, Cli, cells, manifest, only, rows, text, wait_for, work

pytestmark = pytest.mark.e2e


def test_resume_refuses_another_scenario_and_a_finished_run(cli: Cli) -> None:
    arm = 'engine = "reference"'  # with a secret: scenarios are compared as they are recorded
    scenario = cli.scenario(text(requests=4, output=4).replace(arm, arm + '\nenv = { MY_TOKEN = "mine-0123456789" }'))
    child = cli.start("run", scenario, "--out", "out")
    child.says("ladder/c=1 starts")
    child.signal(signal.SIGINT)
    assert child.end().code == 130
    run = only(cli.folder / "out")
    for change, words in (
        ("ladder.requests=5", "ladder.requests: was 4, is 5"),
        ("seed=7", "seed: was 0, is 7"),
        ("arm.a.env.VLLM_X=1", "arm[0].env.VLLM_X"),
    ):
        refused = cli.run("run", scenario, "--resume", run, "--set", change)
        assert refused.code == 2, refused
        assert words in refused.err, refused
    # neither refusal touched the run
    assert manifest(run)["status"] == "interrupted"
    assert "changed" not in cli.run("judge", run).out
    resumed = cli.run("run", scenario, "--resume", run)
    assert resumed.fine, resumed
    assert {row["outcome"] for row in cells(run).values()} == {"ok"}
    again = cli.run("run", scenario, "--resume", run)
    assert again.code == 2
    assert "this run is finished; there is nothing to resume" in again.err
    other = cli.run("run", scenario, "--resume", cli.folder)
    assert other.code == 2
    assert "is no run folder" in other.err


GATE = f"""name = "e2e-gate"
model = "{MODEL}"
seats = 4
context = 16384
prefix_caching = true
chunk_tokens = 2048
seed = 3
[pool]
blocks = 400
[[arm]]
name = "base"
engine = "reference"
options = {{ null_gap_fix = false, clock = {{ base_s = 0.02 }} }}
[[arm]]
name = "fixed"
engine = "reference"
options = {{ null_gap_fix = true, clock = {{ base_s = 0.02 }} }}
[pressure]
prompt_tokens = [3000, 6000]
output_tokens = 8
[watch]
interval_s = 0.02
probe = true
[gate]
baseline = "base"
candidate = "fixed"
pairs = 2
warm_boot = false
[gate.rules]
outputs = "identical"
peak_pool = "not worse"
errors = 0
engine_errors = 0
[deadlines]
settle_s = 1.0
stop_s = 2.0
release_s = 1.0
"""


def test_a_gate_goes_on_leg_by_leg_after_kill_9(cli: Cli) -> None:
    """The boot is the unit of statistics: the leg that was cut is measured whole on another boot, those before it stand."""
    scenario = cli.scenario(GATE)
    child = cli.start("gate", scenario, "--out", "out")
    wait_for(lambda: any("pressure/6000 starts" in line and "leg 2/4" in line for line in child.err.splitlines()), "leg 2")
    child.look()
    child.signal(signal.SIGKILL)
    child.end()
    wait_for(lambda: not cli.left(), "the end of all", 10.0)
    run = only(cli.folder / "out")
    judged = cli.run("judge", run)
    assert judged.code != 0, "an unfinished gate never passes"
    assert "Traceback" not in judged.all, judged
    first = (run / "000-base" / "requests.jsonl").read_bytes()
    resumed = cli.run("gate", scenario, "--resume", run)
    assert resumed.code == 0, resumed
    assert (run / "000-base" / "requests.jsonl").read_bytes() == first
    legs = rows(run / "legs.jsonl")
    assert [leg["leg"] for leg in legs] == [0, 1, 2, 3]
    assert {leg["outcome"] for leg in legs} == {"ok"}
    keys = [(c["leg"], c["cell"], c["repeat"]) for c in rows(run / "cells.jsonl")]
    assert len(keys) == len(set(keys)) == 10, "four legs of two cells, and the within-boot control"
    assert (run / "before-resume-1" / "001-fixed").is_dir()
    assert len({one[:6] for one in work(run)}) == len(work(run)), "no request has two rows"
    judged = cli.run("judge", run)
    assert judged.code == 0, judged
    assert "evidence changed" not in judged.out
    verdict = (run / "verdict.json").read_text()
    assert '"pass"' in verdict
