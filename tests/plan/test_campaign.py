"""What a campaign decides between legs."""

from __future__ import annotations

from evenhand.campaign import still_held
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
