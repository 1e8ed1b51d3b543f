"""Outputs compared bit for bit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_runs import columns, failed, request

from evenhand.judge.equality import compare, margins_of

K = "ladder/c=1#0"


def one(a, b, **kw):
    left, right = columns(a), columns(b)
    found = compare(left, [0], right, [0], label="t", legs=(0, 1), **kw)
    return found, (found.pairs[0] if found.pairs else None)


def many(a, b):
    return compare(columns(*a), range(len(a)), columns(*b), range(len(b)), label="t", legs=(0, 1))


def test_identical_needs_every_field():
    found, pair = one(request(K), request(K))
    assert (found.compared, found.identical, found.mismatches, pair) == (1, 1, 0, None)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"finish_reason": "stop"}, "finish_reason length vs stop"),
        ({"reasoning": "hm"}, "reasoning byte 0"),
        ({"output_tokens": 5}, "tokens reported 4 vs 5"),
    ],
)
def test_each_field_has_its_own_verdict(change, word):
    found, pair = one(request(K), request(K, **change))
    assert found.mismatches == 1
    assert word in pair.detail


def test_cached_tokens_are_compared_but_are_no_output():
    found, pair = one(request(K), request(K, cached_tokens=4))
    assert (found.mismatches, found.cached_differ, found.identical) == (0, 1, 1)
    assert pair.cached_tokens is False


def test_b18_prompts_of_other_length_are_no_pair():
    """B18: neither identical nor diverged."""
    found, pair = one(request(K, prompt_tokens=5, prompt_tokens_asked=5), request(K, prompt_tokens=6, prompt_tokens_asked=5))
    assert pair.detail == "prompt differs (5 vs 6)"
    assert (found.compared, found.prompt_differs, found.mismatches) == (0, 1, 0)


def test_prompts_of_other_hash_are_no_pair():
    found, _ = one(request(K), request(K, prompt_sha256="00"))
    assert found.prompt_differs == 1


def test_b65_keys_pair_and_positions_do_not():
    """B65: duplicates, extras and null keys pair with nothing."""
    a = [request(f"x#{i}") for i in range(3)]
    b = [request(f"x#{i}") for i in (0, 1, 1, 2, 3)]
    found = many(a, b)
    assert (found.compared, found.identical, found.unpaired) == (2, 2, 2)
    assert {(p.key, p.detail) for p in found.pairs} == {("x#1", "duplicate in B"), ("x#3", "only in B")}
    nameless = many([request("", cell="x", index=7)], [request("", cell="x", index=7)])
    assert (nameless.compared, nameless.unpaired) == (0, 1)
    assert nameless.pairs[0].detail == "no key in both"


def test_b67_normalisation_is_a_difference():
    """B67: bytes, not how it looks; told apart by escapes."""
    a = request(K, ids=None, text="caf\u00e9", output_tokens=3)
    b = request(K, ids=None, text="cafe\u0301", output_tokens=3)
    found, pair = one(a, b)
    assert (pair.kind, pair.byte, found.mismatches) == ("normalisation only", 3, 1)
    assert "\\xe9" in pair.detail
    assert "e\\u0301" in pair.detail
    assert "(5 vs 6 bytes)" in pair.detail


def test_b68_same_text_other_ids():
    """B68: text equality is weaker than equality of ids, and unknown ids are unknown."""
    a = request(K, ids=[10, 11], text="ab")
    found, pair = one(a, request(K, ids=[12], text="ab"))
    assert (pair.text, pair.ids, pair.index, pair.tokens) == (True, False, 0, (10, 12))
    assert (pair.kind, found.mismatches) == ("differs", 1)
    found, pair = one(a, request(K, ids=None, text="ab", output_tokens=2))
    assert (pair.kind, pair.ids, found.mismatches, found.ids_known) == ("text identical, ids unknown", None, 0, 0)


def test_first_divergence_names_both_tokens():
    _, pair = one(request(K, ids=[1, 2, 3], text="abc"), request(K, ids=[1, 9, 3], text="axc"))
    assert (pair.index, pair.tokens, pair.byte) == (1, (2, 9), 1)


def test_one_trailing_token_without_text():
    _, pair = one(request(K, ids=[1, 2], text="ab"), request(K, ids=[1, 2, 0], text="ab"))
    assert (pair.kind, pair.index, pair.tokens) == ("trailing EOS only", 2, (None, 0))
    assert pair.mismatch


def test_same_ids_other_text_is_the_detokeniser():
    found, pair = one(request(K, text="ab"), request(K, text="a\ufffd"))
    assert (pair.kind, found.mismatches, found.text_mismatches) == ("detokenisation artefact", 1, 1)


def test_a_near_tie_explains_and_never_excuses():
    replay = request(K, ids=[1, 2, 3], top2_margin_nats=[2.0, 0.004, 1.0])
    margins = margins_of([replay], {K: [1, 2, 3]})
    a, b = request(K, ids=[1, 2, 3], text="abc"), request(K, ids=[1, 9, 3], text="axc")
    found, pair = one(a, b, margins=margins)
    assert (pair.kind, pair.margin_nat, found.mismatches) == ("near tie", 0.004, 1)
    _, wide = one(a, b, margins={(K, 1): 0.02})
    assert (wide.kind, wide.margin_nat) == ("differs", 0.02)


def test_a_replay_that_took_another_path_says_nothing_beyond():
    replay = request(K, ids=[1, 7, 3], top2_margin_nats=[2.0, 0.5, 0.001])
    assert margins_of([replay], {K: [1, 2, 3]}) == {(K, 0): 2.0, (K, 1): 0.5}


def test_a_failed_side_is_no_evidence():
    found, pair = one(request(K), failed(K, "HTTP 500"))
    assert (found.compared, found.failed, pair.failed) == (0, 1, "B")
    assert "HTTP 500" in pair.detail


def test_b62_a_body_without_temperature_is_counted():
    """B62: greedy only where the recorded body says so."""
    found, _ = one(request(K), request(K, sampling={"seed": 0}))
    assert found.not_greedy == 1
    assert one(request(K), request(K))[0].not_greedy == 0


LISTS = st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=5), st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=5)
)
def test_comparing_is_symmetric_and_equal_only_for_equal(left, right):
    a = [request(f"x#{i}", ids=ids) for i, ids in enumerate(left)]
    b = [request(f"x#{i}", ids=ids) for i, ids in enumerate(right)]
    one, other = many(a, b), many(b, a)
    assert (one.mismatches, one.unpaired, one.compared) == (other.mismatches, other.unpaired, other.compared)
    assert one.identical == sum(bool(x) and x == y for x, y in zip(left, right, strict=False))
    assert one.unpaired == abs(len(left) - len(right))


EMPTY = {"ids": [], "text": "", "output_tokens": 0, "ttft_s": None, "tpot_s": None, "finish_reason": "stop"}


def test_two_empty_answers_are_evidence_of_nothing():
    found, pair = one(request(K, **EMPTY), request(K, **EMPTY))
    assert (found.compared, found.identical, found.mismatches, found.empty, pair.kind) == (0, 0, 0, 1, "nothing generated")
    no_ids = EMPTY | {"ids": None, "output_tokens": None}
    assert one(request(K, **no_ids), request(K, **no_ids))[0].compared == 0


def test_an_empty_answer_beside_another_is_a_difference():
    for other in (request(K), request(K, **EMPTY | {"finish_reason": "length"}), request(K, **EMPTY | {"reasoning": "hm"})):
        found, _ = one(request(K, **EMPTY), other)
        assert (found.compared, found.mismatches, found.empty) == (1, 1, 0)
