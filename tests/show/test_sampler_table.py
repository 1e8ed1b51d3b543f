"""What the sampler did and cost, per boot."""

from __future__ import annotations

from judge_runs import leg

from evenhand.records import SamplerReport
from evenhand.show.sampler import sampler_table


def report(share: float, **more: object) -> SamplerReport:
    seconds = {
        "effective_interval_s": 0.0201,
        "gap_max_s": 0.1,
        "jitter_p99_s": 0.0003,
        "scrape_p50_s": 0.007,
        "scrape_p99_s": 0.01,
    }
    return SamplerReport(status="ok", samples=400, interval_s=0.02, scrape_share=share, **{**seconds, **more})  # type: ignore[arg-type]


def test_every_boot_has_its_row() -> None:
    table = sampler_table([leg(0, sampler=report(0.371)), leg(1, "other", sampler=report(0.25))], simulated=False)
    assert table is not None
    assert table.rows[0] == ["base", "0", "20.0", "20.1", "400", "0", "0", "100", "0.300", "7.00", "10.0", "37.1", "ok"]
    assert [row[0] for row in table.rows] == ["base", "other"]


def test_on_a_screen_the_costliest_boot_of_each_arm_speaks_and_says_so() -> None:
    legs = [
        leg(n, sampler=report(share, warnings=["a scrape took longer than the interval"]))
        for n, share in enumerate((0.1, 0.4, 0.2))
    ]
    table = sampler_table(legs, simulated=False, brief=True)
    assert table is not None
    assert [row[1] for row in table.rows] == ["1"]
    assert any("all 3 are in the Markdown form" in note for note in table.notes)
    assert table.notes[-1] == "base: a scrape took longer than the interval"


def test_a_server_that_was_not_sampled_has_no_row() -> None:
    assert sampler_table([leg(0), leg(1, sampler=SamplerReport(status="off"))], simulated=False) is None
    failing = sampler_table([leg(0, sampler=SamplerReport(status="unavailable (404)", failed=3))], simulated=False)
    assert failing is not None
    assert failing.rows[0][-1] == "unavailable (404)"
