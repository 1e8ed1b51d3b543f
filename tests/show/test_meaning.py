"""What a column means where engines differ, and what was not measured: told from the rows."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from judge_runs import S, cell, leg, manifest, request, run, sample
from show_runs import store

from evenhand.judge.ladder import LadderRow
from evenhand.judge.view import MemoryRun
from evenhand.records import Pool
from evenhand.show.console import summarise
from evenhand.show.judged import Judged, judge_folder
from evenhand.show.meaning import pool_unit, stamp_notes
from evenhand.show.sections import run_sections
from evenhand.show.table import Table

TOKENS = Pool(blocks=133_504, usable_blocks=133_504, block_tokens=1, bytes=4_380_866_642, state_slots=160, source="test")


def two_engines() -> MemoryRun:
    """One rung on an engine of large blocks with ids, and on one of single tokens, state slots beside them and text alone."""
    arms = [{"name": "vllm", "engine": "vllm"}, {"name": "sglang", "engine": "sglang"}]
    figures = {"state_conv_bytes": 193_273_528.0, "state_ssm_bytes": 4_048_006_676.0, "weight_memory_bytes": 5e9}
    legs = [leg(0, "vllm"), leg(1, "sglang", engine="sglang", pool=TOKENS, figures=figures)]
    cells = [cell(planned=20, leg=n, arm=arm["name"], start_ns=0, end_ns=20 * S) for n, arm in enumerate(arms)]
    rows = []
    for i in range(20):
        at = {"key": f"ladder/c=1#{i}", "send_ns": i * S, "end_ns": (i + 1) * S, "text": "same"}
        rows.append(request(arm="vllm", **at))
        text = {"ids": None, "ttft_kind": "first text", "tpot_marked": True, "cached_tokens": None, "output_tokens": 4}
        rows.append(request(leg=1, arm="sglang", **at, **text, token_source="usage"))
    samples = [sample(5, 0, usage=8 / 899, running=1, waiting=0), sample(5, 1, used_tokens=318, running=1, waiting=0)]
    scenario = {"name": "two", "arm": arms, "ladder": {"concurrency": [1]}}
    return MemoryRun(manifest=manifest(scenario=scenario), legs=legs, cells=cells, requests=rows, samples=samples)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return judge_folder(store(two_engines(), tmp_path_factory.mktemp("two") / "run"))


def table(judged: Judged, slug: str) -> Table:
    return next(section for section in run_sections(judged) if section.slug == slug).tables[0]


def column(shown: Table, name: str, unit: str) -> list[str]:
    at = [(c.name, c.unit) for c in shown.columns].index((name, unit))
    return [row[at] for row in shown.rows]


def test_pool_use_is_in_tokens_where_blocks_differ_in_size(judged: Judged) -> None:
    shown = table(judged, "ladder")
    assert column(shown, "pool", "tokens") == ["2,176", "318"]
    assert "pool in tokens: blocks in use x tokens per block (vllm 272, sglang 1)" in shown.notes
    assert any(note.startswith("pool of sglang: ") and "state has its own pool" in note for note in shown.notes)
    assert any(note.startswith("pool of vllm: ") and "attention and state share" in note for note in shown.notes)


def test_pool_use_is_in_blocks_where_all_arms_agree() -> None:
    unit = pool_unit([leg(0, "base"), leg(1, "new")], manifest().scenario)
    assert (unit.name, unit.of(0, 8), unit.notes) == ("blocks", 8, [])
    unknown = pool_unit([leg(0, "a"), leg(1, "b", pool=TOKENS), leg(2, "c", engine="none", pool=None)], {})
    assert (unknown.name, unknown.of(2, 8)) == ("tokens", None)


def test_an_arm_without_ids_says_what_its_times_are(judged: Judged) -> None:
    (note,) = [note for note in table(judged, "ladder").notes if "TTFT" in note]
    assert note == (
        "sglang: TTFT is to the first text, TPOT divides by tokens - 1 (no token ids come back); "
        "the other arms' TTFT is to the first token"
    )
    assert stamp_notes([row for row in judged.ladder if row.arm == "vllm"]) == []
    mixed = msgspec.structs.replace(judged.ladder[1], tpot_marked=False)
    assert stamp_notes([mixed]) == ["sglang: TTFT is to the first text (no token ids come back)"]


def test_bytes_of_state_slots_stand_beside_those_of_the_pool(judged: Judged) -> None:
    shown = table(judged, "ledger")
    facts = {row[1]: list(row[2:]) for row in shown.rows}
    assert facts["pool state slots"] == ["-", "160"]
    assert facts["pool state bytes"] == ["-", "4241280204"]
    assert "pool bytes of sglang exclude recurrent state, which has slots of its own" in shown.notes


def test_what_was_not_measured_contradicts_no_table(judged: Judged) -> None:
    said = "\n".join(judged.not_measured)
    assert "prefix reuse: that the prompts of sglang were cold is not proved (1 of 2 cells)" in said
    assert "every prompt was cold" not in said
    assert column(table(judged, "across"), "same text", "") == ["20"]
    assert "equality" not in said
    text, _ = summarise(judged.run.path)
    assert all(line in text for line in judged.not_measured)


def test_one_arm_alone_says_nothing_of_equality(tmp_path: Path) -> None:
    made = run(cells=[cell(planned=1)], requests=[request()])
    alone = judge_folder(store(made, tmp_path / "run"))
    assert "equality of outputs: no two arms answered the same prompts" in alone.not_measured
    assert "prefix reuse: every prompt was cold" in alone.not_measured
    assert isinstance(alone.ladder[0], LadderRow)
