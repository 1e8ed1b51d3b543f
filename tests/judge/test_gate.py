"""Whole gates: rules under their own preconditions, verdict and exit code."""

import json
import shutil

import msgspec
import pytest
from judge_runs import POOL, S, cell, columns, gate, gpu, leg, manifest, request, run, sample

from evenhand.judge.equality import compare
from evenhand.judge.gate import across_arms, judge_gate
from evenhand.judge.planted import plant_token
from evenhand.judge.verdict import Verdict, decode, encode, overall, write
from evenhand.judge.view import JudgeError
from evenhand.records import FileHash, Lag, PatchedFile
from evenhand.store import RunWriter, open_run

TIMED = {"outputs": "identical", "ttft_p50": {"not_worse_by": 0.05}}


def judge(made) -> Verdict:
    return judge_gate(made, "2026-01-01T00:00:00Z")


def rule(verdict, name="outputs"):
    return next(r for r in verdict.rules if r.rule == name)


def test_equal_arms_pass_with_a_claim_that_names_its_count():
    got = judge(gate(rules={"outputs": "identical", "errors": 0, "engine_errors": 0}))
    assert (got.status, got.exit_code, got.reasons) == ("pass", 0, [])
    assert rule(got).reason == "identical on 40 of 40"
    assert "vllm 0.32.0, model m, 8 seats, pool 900 blocks of 272 tokens, 2 and 2 boots" in got.claims[0]
    assert got.outputs.planted.seen
    assert (len(got.comparisons), len(got.controls)) == (2, 2)
    assert got.order == ["base", "new", "new", "base"]
    assert got.not_measured
    assert got.widen


def changed_token(number, arm, cell, i, again):
    return {"ids": [10, 11, 99, 13], "text": "kl?n"} if arm == "new" and i == 3 else {}


def test_one_token_changed_fails_with_index_and_both_tokens():
    got = judge(gate(requests=changed_token))
    assert (got.status, got.exit_code) == ("fail", 1)
    assert "2 of 40 differ, the control 0 of 40; first ladder/c=1#3: token 2: 12 vs 99" in rule(got).reason


def test_b71_a_control_that_differs_blames_nobody():
    """B71: `identical` ends as control failed; without differing control, B is named."""

    def unstable(number, arm, cell, i, again):
        return {"ids": [10, 11, 90 + number, 13]} if i < 3 else {}

    got = judge(gate(requests=unstable))
    assert (got.status, got.exit_code) == ("control failed", 3)
    assert "the baseline differs from itself on 3 of 40" in rule(got).reason
    got = judge(gate(requests=unstable, rules={"outputs": "no worse than control"}))
    assert (got.status, got.exit_code) == ("pass", 0)
    assert rule(got).reason == "no worse than the control (6 of 40, control 3 of 20)"


def test_no_worse_than_control_fails_by_an_exact_test():
    got = judge(
        gate(requests=lambda n, arm, c, i, r: {"ids": [1]} if arm == "new" else {}, rules={"outputs": "no worse than control"})
    )
    assert got.exit_code == 1
    assert "exact one-sided p" in rule(got).reason


def unstable(base, new):
    """The first so many prompts of an arm read differently in every boot."""
    return lambda n, arm, c, i, again: {"ids": [10, 11, 90 + n, 13]} if i < (base if arm == "base" else new) else {}


@pytest.mark.parametrize(
    ("base", "new", "status", "words"),
    [
        (0, 3, "inconclusive", "6 of 20 differ, the control 0 of 10: more often on 3 prompts, less often on 0; 5 would tell"),
        (
            0,
            5,
            "fail",
            "10 of 20 differ, the control 0 of 10: more often on 5 prompts, less often on 0, exact one-sided p = 0.03",
        ),
        (3, 3, "pass", "no worse than the control (6 of 20, control 3 of 10)"),
    ],
)
def test_requests_of_one_prompt_are_one_observation(base, new, status, words):
    """The same prompts recur in every boot pair, so two boots do not double what is known of them."""
    got = judge(gate(rules={"outputs": "no worse than control"}, requests=unstable(base, new), count=10, repeat=False))
    assert (rule(got).status, got.outputs.mismatches) == (status, 2 * new)
    assert rule(got).reason.startswith(words)


def test_a_control_that_differs_enough_could_show_a_doubling():
    """24 of 80 prompts are unstable in the baseline and 26 in the candidate: twice as many would have been seen, as 4 not."""
    rules = {"outputs": "no worse than control"}
    got = judge(gate(rules=rules, requests=unstable(24, 26), count=80, repeat=False))
    assert (rule(got).status, rule(got).reason) == ("pass", "no worse than the control (52 of 160, control 24 of 80)")
    assert rule(judge(gate(rules=rules, requests=unstable(2, 3), count=80, repeat=False))).status == "inconclusive"


def test_one_odd_boot_of_the_candidate_is_not_blamed():
    """A boot that batches otherwise changes many prompts at once: they are one piece of luck, not many."""

    def odd(n, arm, c, i, again):
        return {"ids": [10, 11, 90, 13]} if n == 2 and i < 10 else {}

    got = judge(gate(rules={"outputs": "no worse than control"}, requests=odd, repeat=False))
    assert (got.status, got.outputs.p < 0.001) == ("inconclusive", True)
    assert "10 of 40 differ, the control 0 of 20: only in 1 of 2 boot pairs more often" in rule(got).reason


def test_without_a_control_nobody_is_blamed():
    made = gate(pairs=1, requests=changed_token, repeat=False)
    got = judge(made)
    assert got.status == "inconclusive"
    made = gate(requests=changed_token, repeat=False)
    assert judge(made).exit_code == 1  # two boots of the baseline are a control


def test_within_boot_control_is_compared():
    got = judge(gate(requests=lambda n, arm, c, i, again: {"ids": [5, 6]} if again and i == 0 else {}))
    within = [c for c in got.controls if c.label.startswith("within")]
    assert [c.mismatches for c in within] == [1]
    assert got.exit_code == 3


def test_b72_nothing_from_both_arms_is_no_evidence():
    """B72: never 20/20 identical."""
    got = judge(
        gate(requests=lambda *_: {"outcome": "failed", "reason": "HTTP 500"}, rules={"outputs": "identical", "errors": 0})
    )
    assert (got.status, got.exit_code) == ("void", 2)
    assert "no evidence: 0 of 40" in rule(got).reason
    assert rule(got, "errors").status == "void"
    empty = judge(gate(requests=lambda *_: None, count=20))
    assert (empty.status, empty.exit_code) == ("void", 2)
    assert "no evidence" in rule(empty).reason


NOTHING = {"ids": [], "output_tokens": 0, "text": "", "ttft_s": None, "tpot_s": None, "finish_reason": "stop"}


def test_empty_answers_on_both_sides_are_no_evidence():
    got = judge(gate(requests=lambda *_: NOTHING))
    assert (got.status, got.exit_code) == ("void", 2)
    assert "no evidence: 0 of 40 pairs could be compared" in rule(got).reason
    some = judge(gate(requests=lambda n, arm, c, i, again: NOTHING if i < 2 else {}))
    assert rule(some).reason == "identical on 36 of 36, in 4 more neither side generated anything"


def test_failures_of_the_candidate_alone_fail_the_errors_rule():
    got = judge(
        gate(
            requests=lambda n, arm, c, i, r: {"outcome": "failed"} if arm == "new" and i == 0 else {},
            rules={"outputs": "identical", "errors": 0},
        )
    )
    assert rule(got, "errors").status == "fail"
    assert rule(got).status == "void"  # not all could be compared
    assert got.exit_code == 1


def test_b65_unpaired_requests_void_every_rule():
    """B65: a request that one arm lacks is never 19/19 identical."""
    got = judge(gate(requests=lambda n, arm, c, i, r: None if arm == "new" and i == 7 else {}, rules=TIMED))
    assert {r.status for r in got.rules} == {"void"}
    assert "unpaired requests: 2" in rule(got).reason
    assert got.exit_code == 2


def test_b18_other_prompts_are_an_invalid_pairing():
    """B18: even where both texts are equal."""
    got = judge(gate(requests=lambda n, arm, c, i, r: {"prompt_tokens": 9, "prompt_tokens_asked": 9} if arm == "new" else {}))
    assert got.exit_code == 2
    assert "invalid pairing" in rule(got).reason
    assert "prompt differs (8 vs 9)" in rule(got).reason


def test_b62_sampled_runs_cannot_be_compared_bit_for_bit():
    """B62: temperature must stand in the recorded body."""
    got = judge(gate(requests=lambda *_: {"sampling": {"seed": 0}}))
    assert (rule(got).status, "sampled, not greedy" in rule(got).reason) == ("void", True)


def test_b68_identical_needs_ids_unless_text_was_asked_for():
    """B68: ids unknown do not satisfy a bit-for-bit gate."""

    def textual(*_):
        return {"ids": None, "text": "ab", "output_tokens": 2, "token_source": "usage"}

    assert "token ids are unknown" in rule(judge(gate(requests=textual))).reason
    got = judge(gate(requests=textual, rules={"outputs": "identical text"}))
    assert rule(got).reason == "text-identical on 40 of 40; the engine returns no ids"


def test_b48_a_warm_cache_against_a_cold_one():
    """B48: no speed-up is claimed."""
    got = judge(
        gate(
            pairs=6,
            rules={"ttft_p50": {"not_worse_by": 0.05}},
            requests=lambda n, arm, c, i, r: {"cached_tokens": None, "ttft_s": 0.4 if arm == "base" else 0.2},
            cells=lambda n, arm, c: {"counters": {"prefix_queries": 10000, "prefix_hits": 9800 if arm == "new" else 0}},
        )
    )
    assert got.exit_code == 2
    assert "unequal prefix-cache state: ladder/c=1 0.0 % and 98.0 %" in rule(got, "ttft_p50").reason
    by_request = judge(gate(rules=TIMED, requests=lambda n, arm, c, i, r: {"cached_tokens": 8 if arm == "new" else 0}))
    assert "100.0 %" in rule(by_request, "ttft_p50").reason
    assert rule(by_request).status == "pass"


def test_b61_arms_that_do_not_differ():
    """B61: the same effective configuration twice is no comparison."""
    got = judge(gate(compare="differ", rules=TIMED))
    assert (got.status, got.exit_code) == ("void", 2)
    assert "A/A: arms do not differ" in rule(got).reason
    proved = judge(gate(compare="differ", legs=lambda n, arm: {"config": {"fast": arm == "new"}}))
    assert proved.exit_code == 0


def test_an_undeclared_equality_and_a_declared_one():
    arms = [{"name": "base", "engine": "vllm"}, {"name": "new", "engine": "vllm"}]
    got = judge(gate(compare="differ", scenario={"arm": arms}))
    assert "A/A: arms do not differ" in got.reasons[0].text
    assert judge(gate(compare="same")).exit_code == 0
    arms[1] = arms[1] | {"env": {"X": "1"}}
    assert "the arms differ" in judge(gate(compare="same", scenario={"arm": arms})).reasons[0].text


def test_all_reasons_are_listed_at_once():
    def differing(number, arm):
        if arm == "base":
            return {}
        return {
            "pool": msgspec.structs.replace(POOL, blocks=880),
            "drafted_depth": 3,
            "seats_resolved": 7,
            "files": [FileHash(path="m/model.safetensors", sha256="bb", size_bytes=1)],
            "config": {"mamba_cache_mode": "none"},
        }

    got = judge(gate(legs=differing, rules=TIMED))
    text = " | ".join(r.text for r in got.reasons)
    for words in (
        "pools differ: base 900 blocks of 272 tokens, new 880 blocks of 272 tokens",
        "drafted depth differ: base 0, new 3",
        "seats resolved differ: base 8, new 7",
        "model files differ",
        "mamba_cache_mode 'align' and 'none'",
    ):
        assert words in text
    assert got.exit_code == 2
    assert {r.status for r in got.rules} == {"void"}


PROOF = PatchedFile(
    path="v1/core/x.py", action="modify", installed_sha256_before="i", installed_sha256_after="i", overlay_sha256="o",
    loaded_from="001-new/overlay/vllm/v1/core/x.py", loaded_sha256="o",
)  # fmt: skip


@pytest.mark.parametrize(
    ("proof", "words"),
    [
        ([PROOF], None),
        ([], "left no proof"),
        ([msgspec.structs.replace(PROOF, loaded_sha256="i", loaded_from="/site/vllm/x.py")], "not the patched file"),
        ([msgspec.structs.replace(PROOF, loaded_sha256=None, loaded_from=None)], "was not loaded by the engine"),
        ([msgspec.structs.replace(PROOF, installed_sha256_after="j")], "changed during the run"),
        ([msgspec.structs.replace(PROOF, action="delete", overlay_sha256=None)], "deleted by the patch but loaded"),
    ],
)
def test_a_patch_is_proved_from_the_running_engine(proof, words):
    arms = [{"name": "base", "engine": "vllm"}, {"name": "new", "engine": "vllm", "patch": "fix.patch"}]
    got = judge(gate(compare="differ", scenario={"arm": arms}, legs=lambda n, arm: {"patched": proof if arm == "new" else []}))
    if words is None:
        assert got.exit_code == 0
    else:
        assert got.exit_code == 2
        assert words in got.reasons[0].text


def test_arms_that_differ_in_two_things():
    arms = [{"name": "base", "engine": "vllm"}, {"name": "new", "engine": "vllm", "args": ["--x"], "env": {"Y": "1"}}]
    got = judge(gate(compare="differ", scenario={"arm": arms}, legs=lambda n, arm: {"config": {"x": arm}}))
    assert "arms differ in 2 things" in got.reasons[0].text


def test_a_converted_model_never_passes_a_gate():
    arms = [{"name": "base", "engine": "vllm"}, {"name": "new", "engine": "vllm", "model": "/models/m.gguf"}]
    assert "a converted model may run in a ladder" in judge(gate(compare="differ", scenario={"arm": arms})).reasons[0].text


def test_a_leg_that_died_or_is_missing():
    got = judge(gate(legs=lambda n, arm: {"outcome": "died", "reason": "exit -9"} if n == 1 else {}))
    assert "leg 1 (new) died: exit -9" in got.reasons[0].text
    made = gate()
    made.legs.pop()
    assert "base has 1 of 2 boots" in judge(made).reasons[0].text


def test_b81_an_interrupted_run_is_no_full_arm():
    """B81: refused as evidence, with how much there is."""
    got = judge(gate(manifest={"status": "interrupted", "plan": {"legs": [{"cells": [{}] * 2}] * 4}}))
    assert (got.partial, got.exit_code) == (True, 2)
    assert "the run is interrupted: 5 of 8 cells" in got.reasons[0].text


def timed(pairs=6, slow=1.0, jitter=0.002, rules=None, order=None, **kw):
    def requests(number, arm, cell, i, again):
        wobble = 1 + jitter * ((number * 7) % 5 - 2)
        return {"ttft_s": 0.4 * wobble * (slow if arm == "new" else 1.0) * (1 + 0.001 * i)}

    return gate(pairs=pairs, rules=rules or {"ttft_p50": {"not_worse_by": 0.05}}, requests=requests, order=order, **kw)


def test_timing_passes_fails_and_waits_for_pairs():
    assert judge(timed()).exit_code == 0
    slow = judge(timed(slow=1.10))
    assert slow.exit_code == 1
    assert slow.timing[0].planted_seen
    few = judge(timed(pairs=2))
    assert few.exit_code == 4
    assert "2 boot pairs, 1 timing rule needs 5" in rule(few, "ttft_p50").reason
    assert "5 boot pairs would let 1 timing rule be decided" in few.widen


def test_b75_a_gate_that_is_not_interleaved():
    """B75: AAABBB is void for times, and only for them."""
    got = judge(timed(pairs=6, order="AAAAAABBBBBB", rules=TIMED))
    assert rule(got, "ttft_p50").status == "void"
    assert "not interleaved" in rule(got, "ttft_p50").reason
    assert rule(got).status == "pass"


def test_b76_unequal_clocks_touch_only_timing():
    """B76: 1650 against 1500 MHz, and too few samples are not equal clocks."""

    def with_clocks(base, new, samples=40):
        made = timed(rules=TIMED)
        made._gpu = [
            gpu(leg.leg, leg.leg * 1000 + 0.4 * i, sm_clock_mhz=base if leg.arm == "base" else new)
            for leg in made.legs
            for i in range(samples)
        ]
        return judge(made)

    got = with_clocks(1650, 1500)
    assert rule(got).status == "pass"
    assert "unequal clocks on GPU-a: 1650 and 1500 MHz (-9.1 %)" in rule(got, "ttft_p50").reason
    assert with_clocks(1650, 1650).exit_code == 0
    assert with_clocks(1650, 1665).exit_code == 0
    assert "clock not observed" in rule(with_clocks(1650, 1650, 2), "ttft_p50").reason
    assert any("GPU clocks: not observed" in n for n in judge(timed()).notes)


def test_b64_a_rung_that_the_candidate_lacks():
    """B64: a rung that is not there is no pass."""
    got = judge(timed(cells=lambda n, arm, c: {"outcome": "died", "reason": "exit -9"} if n == 1 else {}))
    assert rule(got, "ttft_p50").status == "void"
    assert "ladder/c=1 on leg 1 (new): died: exit -9" in rule(got, "ttft_p50").reason


def test_b47_an_engine_that_served_somebody_else_is_no_evidence():
    """B47: unexplained tokens void every rule, outputs too."""
    got = judge(gate(cells=lambda n, arm, c: {"counters": {"prompt_tokens": 160 if n else 999}}))
    assert (rule(got).status, got.exit_code) == ("void", 2)
    assert "unexplained 839 tokens: another client?" in rule(got).reason
    restarted = judge(gate(cells=lambda n, arm, c: {"restarted": n == 1}))
    assert "new ladder/c=1 on leg 1: a counter went backwards" in rule(restarted).reason


def test_a_client_that_starved_the_engine_voids_times_and_not_outputs():
    lag = Lag(stamp="kernel", turnaround_p50_s=1.0)
    got = judge(gate(rules=TIMED, cells=lambda n, arm, c: {"lag": lag}))
    assert rule(got).status == "pass"
    assert (rule(got, "ttft_p50").status, "starved" in rule(got, "ttft_p50").reason) == ("void", True)


def test_margins_come_from_replays():
    made = gate(requests=changed_token)
    made._replays = [request("ladder/c=1#3", ids=[10, 11, 12, 13], top2_margin_nats=[1.0, 1.0, 0.002, 1.0])]
    got = judge(made)
    assert got.outputs.first[0].kind == "near tie"
    assert got.exit_code == 1


def test_arms_of_a_plain_run_are_compared_and_never_gated():
    made = run(
        legs=[leg(0), leg(1, "new"), leg(2, "third")],
        cells=[cell(leg=n, arm=a, planned=1) for n, a in enumerate(("base", "new", "third"))],
        requests=[request("ladder/c=1#0", leg=n, arm=a, ids=[1, 2 + n]) for n, a in enumerate(("base", "new", "third"))],
    )
    found = across_arms(made)
    named = [("new", "base"), ("third", "base"), ("third", "new")]
    assert [c.label for c in found] == [f"ladder/c=1: {b} against {a}" for b, a in named]
    assert [c.mismatches for c in found] == [1, 1, 1]


def test_b16_different_work_cannot_pass_a_throughput_rule():
    """B16: an arm that stops early looks faster."""
    rules = {"throughput": {"not_worse_by": 0.05}}
    got = judge(gate(pairs=6, rules=rules, requests=lambda n, arm, c, i, r: {"ids": [1, 2]} if arm == "new" and i == 0 else {}))
    assert "different work" in rule(got, "throughput").reason
    assert got.exit_code == 2


def test_peak_pool_is_judged_in_blocks():
    made = gate(rules={"peak_pool": "not worse"}, cell_names=("pressure/14000",), count=1)
    made._samples = [
        sample(leg.leg * 1000 + 0.5, leg.leg, usage=(61 if leg.arm == "base" else 79) / 899, running=1) for leg in made.legs
    ]
    got = judge(made)
    assert got.exit_code == 1
    assert "pressure/14000 61 -> 79 blocks (+29.5 %)" in rule(got, "peak_pool").reason


def test_what_a_ladder_and_long_prompts_leave_unjudged_is_named():
    """Timing rules look at the ladder, the pool rule at the long prompts: each names what it left out."""
    left_out = {"times of the long prompts: the timing rules looked at the ladder",
                "the pool under concurrency: the pool rule looked at the long prompts"}  # fmt: skip
    rules = {"ttft_p50": {"not_worse_by": 0.05}, "peak_pool": "not worse"}
    assert left_out <= set(judge(gate(rules=rules, cell_names=("ladder/c=32", "pressure/45000"))).not_measured)
    for alone in ("ladder/c=32", "pressure/45000"):
        assert not left_out & set(judge(gate(rules=rules, cell_names=(alone,))).not_measured)


def test_engine_errors_are_lines_of_the_log():
    rules = {"engine_errors": 0}
    assert judge(gate(rules=rules, legs=lambda n, arm: {"log_errors": int(arm == "new")})).exit_code == 1
    assert judge(gate(rules=rules, legs=lambda n, arm: {"log_errors": None})).exit_code == 2


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["pass", "void", "fail"], 1),
        (["inconclusive", "control failed", "void"], 2),
        (["inconclusive", "control failed"], 3),
        (["pass", "inconclusive"], 4),
        (["pass"], 0),
        ([], 2),
    ],
)
def test_the_first_present_decides(statuses, code):
    assert overall(statuses)[1] == code


def test_judged_again_it_is_the_same_but_for_its_time():
    made = timed(pairs=12, rules=TIMED)
    first, second = encode(judge_gate(made, "A")), encode(judge_gate(made, "B"))
    assert first.replace(b'"A"', b'"B"') == second
    assert decode(first).judged_utc == "A"

    def strict(text):
        raise AssertionError(text)

    json.loads(first, parse_constant=strict)


def stored(made, folder):
    """Write a run of memory into a folder."""
    folder.mkdir()
    writer = RunWriter(folder, made.manifest)
    for row in made.legs:
        writer.leg_folder(row.leg, row.arm)
        writer.requests(writer.leg_folder(row.leg, row.arm), made.requests(row.leg))
        writer.leg(row)
    for row in made.cells:
        writer.cell(row)
    writer.close()
    return folder


def test_a_copied_folder_gives_the_same_verdict_byte_for_byte(tmp_path):
    folder = stored(timed(pairs=6, rules=TIMED), tmp_path / "run")
    first = judge_gate(open_run(folder), "T")
    write(folder, first)
    copied = shutil.copytree(folder, tmp_path / "elsewhere")
    assert encode(judge_gate(open_run(copied), "T")) == (folder / "verdict.json").read_bytes()
    assert first.exit_code == 0


def test_a_number_beyond_64_bits_is_one_sentence(tmp_path):
    folder = stored(gate(requests=lambda *_: {"ids": [1], "event_ns": [1 << 63], "event_tokens": [1]}), tmp_path / "run")
    with pytest.raises(JudgeError, match="beyond 64 bits"):
        judge_gate(open_run(folder), "T")


def test_a_run_without_a_gate_cannot_be_judged():
    with pytest.raises(JudgeError, match="no gate"):
        judge_gate(run(manifest=manifest()), "now")


def test_a_planted_token_is_seen_and_a_blind_comparison_is_not():
    a, b = columns(request("x#0"), request("x#1")), columns(request("x#0"), request("x#1"))
    planted = plant_token(a, [0, 1], b, [0, 1])
    assert planted.seen
    assert "token 2 of x#1" in planted.what
    assert compare(a, [0, 1], b, [0, 1], label="", legs=(0, 1)).mismatches == 0  # b is as it was
    textual = [columns(request("x#0", ids=None, text="abcd", output_tokens=4)) for _ in range(2)]
    assert "character 2" in plant_token(textual[0], [0], textual[1], [0]).what
    empty = columns(request("x#0", ids=[], text=""))
    assert plant_token(empty, [0], empty, [0]) is None
    assert S == 10**9


def test_metrics_that_the_scenario_requires_void_a_gate_without_them():
    watch = {"watch": {"interval_s": 0.25, "require_metrics": True}}
    seen = [sample(1000 * n + 1.0, n, usage=0.1) for n in range(3)]
    got = judge(gate(scenario=watch, samples=[*seen, sample(3001.0, 3, status="absent (404)")]))
    assert (got.status, got.exit_code) == ("void", 2)
    words = "base, leg 3: /metrics absent (404); the scenario requires metrics"
    assert [(reason.scope, reason.text) for reason in got.reasons] == [("all", words)]
    got = judge(gate(scenario=watch, samples=seen))
    assert [reason.text for reason in got.reasons] == ["base, leg 3: /metrics was not scraped; the scenario requires metrics"]
    assert judge(gate(scenario=watch, samples=[*seen, sample(3001.0, 3, usage=0.1)])).status == "pass"
    assert judge(gate(samples=seen)).status == "pass"
