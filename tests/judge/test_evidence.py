"""What a gate may not pass over: cells never measured, patches never proved, engines that changed, evidence that was edited."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from judge_runs import S, cell, gate, leg, request, run

from evenhand.judge.gate import judge_gate
from evenhand.judge.ladder import ladder_rows
from evenhand.judge.ledger import ledger
from evenhand.judge.verdict import Verdict
from evenhand.records import FileHash, PatchedFile

ALL = {"outputs": "identical", "errors": 0, "engine_errors": 0}


def judge(made: Any, changed: tuple[str, ...] = ()) -> Verdict:
    return judge_gate(made, "2026-01-01T00:00:00Z", changed=changed)


def statuses(verdict: Verdict) -> dict[str, str]:
    return {rule.rule: rule.status for rule in verdict.rules}


def reasons(verdict: Verdict) -> str:
    return " | ".join(reason.text for reason in verdict.reasons)


# --- cells that were planned and never measured ----------------------------------------------------------------------------


def two_cells(second: str, outcome: str, reason: str, **kw: Any) -> Any:
    """A gate of ladder/c=1 and a second cell that no arm has figures of."""
    return gate(
        rules=kw.pop("rules", ALL),
        cell_names=("ladder/c=1", second),
        requests=lambda n, arm, c, i, again: None if c == second else {},
        cells=lambda n, arm, c: {"outcome": outcome, "reason": reason, "concurrency": 512} if c == second else {},
        **kw,
    )


@pytest.mark.parametrize(
    ("second", "outcome", "reason"),
    [
        ("ladder/c=512", "void", "client limit: 600 open files are needed"),
        ("pressure/58000", "not_run", "58000 + 16 tokens exceed what this engine can take (8192)"),
    ],
)
def test_a_cell_that_neither_arm_measured_is_no_pass(second: str, outcome: str, reason: str) -> None:
    got = judge(two_cells(second, outcome, reason))
    assert statuses(got) == {"outputs": "void", "errors": "void", "engine_errors": "pass"}
    assert got.exit_code == 2
    assert f"{second} was not measured" in reasons(got)
    assert reason in reasons(got)


def test_a_pool_rule_needs_every_long_prompt() -> None:
    got = judge(two_cells("pressure/58000", "not_run", "too long", rules={"peak_pool": "not worse"}))
    assert "pressure/58000 was not measured" in got.rules[0].reason


def test_a_cell_whose_absence_was_expected_is_said_not_to_be_measured() -> None:
    expect = {"base@512": "void", "new@512": "void"}
    got = judge(two_cells("ladder/c=512", "void", "client limit", scenario={"expect": expect}))
    assert got.exit_code == 0
    assert any("ladder/c=512" in text and "as expected" in text for text in got.not_measured)
    other = judge(two_cells("ladder/c=512", "void", "client limit", scenario={"expect": {"base@512": "void"}}))
    assert other.exit_code == 2


def test_requests_missing_on_both_sides_are_no_pass() -> None:
    got = judge(gate(rules=ALL, requests=lambda n, arm, c, i, again: None if i else {}))
    assert statuses(got) == {"outputs": "void", "errors": "void", "engine_errors": "pass"}
    assert "1 of 20 requests were recorded" in reasons(got)


def test_a_planned_cell_without_any_row_is_no_pass() -> None:
    planned = [
        {"leg": n, "arm": arm, "role": "measure", "cells": [{"cell": c, "kind": "ladder", "concurrency": 1, "requests": 20}
         for c in ("ladder/c=1", "ladder/c=8")]}
        for n, arm in enumerate(("base", "new", "new", "base"))
    ]  # fmt: skip
    got = judge(gate(rules=ALL | {"ttft_p50": {"not_worse_by": 0.05}}, manifest={"plan": {"legs": planned}}))
    assert "ladder/c=8 was not measured" in reasons(got)
    assert {"outputs", "errors", "ttft_p50"} <= {name for name, status in statuses(got).items() if status == "void"}


def test_all_rows_of_a_rung_whose_times_are_void_still_decide_outputs() -> None:
    lag = cell().lag
    assert lag is not None
    slow = msgspec.structs.replace(lag, turnaround_p50_s=1.0)
    assert judge(gate(rules=ALL, cells=lambda n, arm, c: {"lag": slow})).exit_code == 0


# --- patches ----------------------------------------------------------------------------------------------------------------


PATCH_ARMS = {"arm": [{"name": "base", "engine": "vllm"}, {"name": "new", "engine": "vllm", "patch": "moe.patch"}]}
DATA = "model_executor/layers/fused_moe/configs/E=8,N=14336,device_name=NVIDIA_H200.json"


def touched(path: str, arm: str, loaded: bool) -> PatchedFile:
    overlay = "b" if arm == "new" else "a"
    return PatchedFile(
        path=path, action="modify", installed_sha256_before="a", installed_sha256_after="a", overlay_sha256=overlay,
        loaded_sha256=overlay if loaded else None, loaded_from="overlay" if loaded else None,
    )  # fmt: skip


def patched(**loaded: bool) -> Any:
    names = {"data": DATA, "code": "core.py"}
    return gate(
        rules=ALL,
        compare="differ",
        scenario=PATCH_ARMS,
        legs=lambda n, arm: {"patched": [touched(names[name], arm, seen) for name, seen in loaded.items()]},
    )


def test_a_patch_of_data_files_alone_is_not_proved() -> None:
    got = judge(patched(data=False))
    assert (got.status, got.exit_code) == ("void", 2)
    assert "difference not proved" in reasons(got)
    assert DATA in reasons(got)


def test_a_data_file_beside_proved_code_is_named_in_the_claim() -> None:
    got = judge(patched(code=True, data=False))
    assert got.exit_code == 0
    assert all(f"not proved to be loaded: {DATA}" in claim for claim in got.claims)
    assert "not proved" not in judge(patched(code=True)).claims[0]


def test_a_commit_that_only_adds_a_data_file_is_not_proved() -> None:
    arms = [{"name": "base", "engine": "vllm"}, {"name": "new", "engine": "vllm", "source": "/src", "commit": "abc"}]
    added = PatchedFile(path=DATA, action="create", overlay_sha256="b")
    got = judge(
        gate(compare="differ", scenario={"arm": arms}, legs=lambda n, arm: {"patched": [added] if arm == "new" else []})
    )
    assert got.exit_code == 2


# --- the engine itself ------------------------------------------------------------------------------------------------------


def built(version: str, digest: str) -> dict[str, Any]:
    files = [("m/model.safetensors", "aa"), ("vllm", digest)]
    return {"version": version, "files": [FileHash(path=path, sha256=sha, size_bytes=1) for path, sha in files]}


def test_arms_of_another_engine_build_are_not_compared_for_a_patch() -> None:
    def other(n: int, arm: str) -> dict[str, Any]:
        return built("0.32.0" if arm == "base" else "0.33.0", "x" if arm == "base" else "y") | {
            "patched": [touched("core.py", arm, True)]
        }

    for kw in ({"compare": "differ", "scenario": PATCH_ARMS}, {"compare": "same"}):
        got = judge(gate(legs=other, **kw))  # type: ignore[arg-type]
        assert got.exit_code == 2
        assert "engine versions differ: base 0.32.0, new 0.33.0" in reasons(got)
        assert "engine files differ (sha256): vllm" in reasons(got)


def test_an_engine_that_changed_between_boots_is_no_arm() -> None:
    arms = [{"name": "base", "engine": "vllm"}, {"name": "new", "engine": "vllm", "executable": "/other/vllm"}]

    def upgraded(n: int, arm: str) -> dict[str, Any]:
        return built(f"0.3{n}.0", "xyzw"[n])

    for kw in ({"compare": "same"}, {"compare": "differ", "scenario": {"arm": arms}}):
        got = judge(gate(legs=upgraded, **kw))  # type: ignore[arg-type]
        assert got.exit_code == 2
        assert "base changed its engine between boots: version 0.30.0 and 0.33.0" in reasons(got)


def test_arms_that_declare_another_executable_may_differ_in_version_and_files() -> None:
    arms = [{"name": "base", "engine": "vllm"}, {"name": "new", "engine": "vllm", "executable": "/other/vllm"}]
    made = gate(compare="differ", scenario={"arm": arms}, legs=lambda n, arm: built(f"0.3{arm == 'new':d}.0", arm))
    assert judge(made).exit_code == 0


# --- what a declared difference brought with it -----------------------------------------------------------------------------


def test_a_claim_names_every_configuration_key_that_differed() -> None:
    def configured(n: int, arm: str) -> dict[str, Any]:
        new = arm == "new"
        return {"config": {"enable_prefix_caching": not new, "max_num_batched_tokens": 8192 if new else 2048}}

    got = judge(gate(rules=ALL, compare="differ", legs=configured))
    assert got.exit_code == 0
    for claim in got.claims:
        assert "arms differ by args none against ['--fast']" in claim
        assert "with it differ: enable_prefix_caching True and False, max_num_batched_tokens 2048 and 8192" in claim
    assert "differ" not in judge(gate(rules=ALL)).claims[0]


# --- evidence that changed --------------------------------------------------------------------------------------------------


def test_evidence_that_changed_voids_every_rule() -> None:
    got = judge(gate(rules=ALL), ("evidence changed since it was sealed: 001-new/probe.jsonl (changed)",))
    assert (got.status, got.exit_code) == ("void", 2)
    assert set(statuses(got).values()) == {"void"}
    assert "001-new/probe.jsonl (changed)" in got.rules[0].reason


# --- cells of an earlier boot -----------------------------------------------------------------------------------------------


def test_cells_of_an_earlier_boot_say_so() -> None:
    first = leg(version="0.32.0", start_ns=0, ready_ns=1 * S)
    second = leg(version="0.33.0", start_ns=100 * S, ready_ns=110 * S, earlier=[first])
    cells = [cell(planned=1, relaunched=True), cell("ladder/c=2", planned=1, start_ns=120 * S, end_ns=121 * S)]
    made = run(legs=[second], cells=cells, requests=[request(), request("ladder/c=2#0", send_ns=120 * S, end_ns=121 * S)])
    rows = ladder_rows(made)
    assert ["earlier boot" in " ".join(row.notes) for row in rows] == [True, False]
    facts = {row.name: row.values["base"] for row in ledger(made, rows)}
    assert facts["version"] == "0.32.0 / 0.33.0"
    assert facts["cells of an earlier boot"] == "ladder/c=1"
    assert "cells of an earlier boot" not in {row.name for row in ledger(run(), [])}
