"""What a campaign decides between legs."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenhand.campaign import still_held
from evenhand.execute import execute
from evenhand.load import load
from evenhand.plan import make_plan
from evenhand.progress import Event
from evenhand.records import LegRow


def test_b52_leftover_processes_end_the_campaign() -> None:
    row = LegRow(leg=1, arm="a", engine="vllm", outcome="ok", survivors=[41, 42])
    assert "leftover processes [41, 42] of leg 1" in (still_held(row, "run") or "")
    assert still_held(LegRow(leg=1, arm="a", engine="vllm", outcome="ok"), "gate") is None


def test_b60_memory_that_does_not_come_back_ends_a_gate() -> None:
    """A gate's next boot would get another pool; a ladder's says so in its own row."""
    row = LegRow(
        leg=0, arm="a", engine="vllm", outcome="ok", device_bytes_before=1, reason="after 60 s the device still holds 3 GiB"
    )
    assert "did not give its device's memory back: after 60 s" in (still_held(row, "gate") or "")
    assert still_held(row, "run") is None
    back = LegRow(leg=0, arm="a", engine="vllm", outcome="ok", device_bytes_before=1, released_s=6.0)
    assert still_held(back, "gate") is None


SMALL = f"""name = "small"
model = "{Path(__file__).parents[2]}/scenarios/models/4b-hybrid"
seats = 4
context = 8192
[pool]
bytes = "1 GiB"
[[arm]]
name = "a"
engine = "reference"
[ladder]
concurrency = [2]
prompt_tokens = 64
output_tokens = 64
requests = 4
[watch]
interval_s = 0.05
"""


@pytest.mark.e2e
def test_a_run_tells_how_many_requests_run_and_how_full_the_pool_is(tmp_path: Path) -> None:
    told: list[Event] = []
    (tmp_path / "small.toml").write_text(SMALL)
    scenario, file = load(str(tmp_path / "small.toml"))
    execute(scenario, file, make_plan(scenario), tmp_path, (), told.append)
    going = [event for event in told if event.what == "requests" and event.cell == "ladder/c=2"]
    assert max(event.running or 0 for event in going) == 2
    assert 0 < max(event.usage or 0 for event in going) < 1
