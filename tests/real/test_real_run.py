"""The main job on a real vLLM: the ladder, the pressure table, and a pool that is too small."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import pytest
from real_runs import Ended, evenhand

from evenhand.judge.ladder import ladder_rows
from evenhand.judge.pressure import PressureRow, pressure_rows

pytestmark = pytest.mark.vllm

RUNGS = [1, 2, 4, 8]
LENGTHS = [3000, 6000, 12000, 15000]
BLOCK = 256
STATE_GROUPS = 3


def test_every_request_of_the_ladder_succeeds_and_its_tokens_are_counted_from_ids(tiny_run: Ended) -> None:
    print(tiny_run.out)
    rows = ladder_rows(tiny_run.run)
    assert [row.concurrency for row in rows] == RUNGS
    assert [(row.ok, row.failed) for row in rows] == [(max(20, 5 * c), 0) for c in RUNGS]
    unwoken = {cell.cell for cell in tiny_run.run.cells if cell.lag is not None and not cell.lag.realtime}
    for row in rows:
        # where the kernel grants no real-time priority, a client beside a busy engine on two cores may come too late
        assert row.outcome == "ok" or (row.cell in unwoken and "starved" in (row.reason or "")), row.reason
    assert tiny_run.code == (0 if all(row.outcome == "ok" for row in rows) else 2)
    requests = [row for row in tiny_run.run.requests() if row.cell.startswith("ladder/")]
    assert {(row.token_source, len(row.token_ids or []), row.output_tokens) for row in requests} == {("ids", 16, 16)}
    assert {row.cached_tokens for row in requests} == {0}
    assert {cell.cold for cell in tiny_run.run.cells} == {True}


def test_the_tables_are_printed_and_stored(tiny_run: Ended) -> None:
    assert tiny_run.folder is not None
    assert "Traceback" not in tiny_run.out + tiny_run.err
    for name in ("concurrency-ladder", "peak-pool-pressure-of-long-prompts"):
        assert (tiny_run.folder / "tables" / f"{name}.csv").read_text("utf-8").count("\n") == 1 + 4
    assert "reference model" not in tiny_run.out


def plateau(row: PressureRow) -> int:
    """Blocks while decoding: attention of all tokens, one state per group."""
    assert row.output_tokens is not None
    return ceil((row.prompt_tokens + row.output_tokens) / BLOCK) + STATE_GROUPS


def test_sampled_peaks_lie_between_decode_plateau_and_prefill_peak(tiny_run: Ended) -> None:
    rows = pressure_rows(tiny_run.run)
    assert [(row.prompt_tokens, row.outcome) for row in rows] == [(length, "ok") for length in LENGTHS]
    for row in rows:
        assert row.peak_blocks is not None
        assert plateau(row) - 1 <= row.peak_blocks <= plateau(row) + STATE_GROUPS + 1, row
        assert row.settle_blocks == 0
        assert row.samples >= 4
        assert row.ttft_s is not None


def test_the_leg_says_what_ran(tiny_run: Ended) -> None:
    (leg,) = tiny_run.run.legs
    assert (leg.outcome, leg.seats_resolved, leg.survivors) == ("ok", 8, [])
    assert leg.pool is not None
    assert (leg.pool.blocks, leg.pool.block_tokens) == (8192, BLOCK)
    assert leg.version is not None
    assert "0.32.0" in leg.version
    assert (leg.log_errors, leg.exit_code) == (0, 0)


def test_wall_time_of_the_ladder_is_that_of_its_requests(tiny_run: Ended) -> None:
    """Printed for the record; judged only against gross idling of the client: seats are busy in most of every rung."""
    for cell in tiny_run.run.cells:
        if cell.kind == "ladder":
            assert cell.start_ns is not None
            assert cell.end_ns is not None
            wall_s = (cell.end_ns - cell.start_ns) / 1e9
            rows = tiny_run.run.requests(cell=cell.cell)
            busy_s = sum((row.end_ns - row.send_ns) / 1e9 for row in rows if row.end_ns and row.send_ns)
            print(f"{cell.cell}: wall {wall_s:.3f} s, sum of requests {busy_s:.3f} s, at once {busy_s / wall_s:.2f}")
            assert busy_s <= wall_s * cell.concurrency * 1.001


TOO_SMALL = """
name = "too-small"
model = "tiny:hybrid"
served_name = "tiny"
seats = 8
context = 32768
prefix_caching = true
chunk_tokens = 1024
[pool]
bytes = "8 MiB"
[[arm]]
name = "vllm"
engine = "vllm"
environment = "$EVENHAND_VLLM_ENV"
args = ["--enforce-eager"]
[ladder]
concurrency = [1]
prompt_tokens = 64
output_tokens = 8
"""


@pytest.mark.parametrize(("expect", "code"), [([], 2), (["--set", "expect.vllm@1=refused"], 0)])
def test_a_pool_too_small_is_one_row_with_needed_and_available_figures(
    vllm_env: Path, tmp_path: Path, expect: list[str], code: int
) -> None:
    scenario = tmp_path / "too-small.toml"
    scenario.write_text(TOO_SMALL)
    ended = evenhand(tmp_path, "run", str(scenario), *expect)
    print(ended.out)
    assert ended.code == code
    assert "Traceback" not in ended.out + ended.err
    (row,) = ladder_rows(ended.run)
    assert row.outcome == "refused"
    (leg,) = ended.run.legs
    assert leg.refusal is not None
    assert leg.refusal.needed_bytes is not None
    assert leg.refusal.available_bytes is not None
    assert leg.refusal.needed_bytes > leg.refusal.available_bytes > 0
    assert leg.survivors == []
