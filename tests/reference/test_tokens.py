"""Tokens and their text."""

from __future__ import annotations

from array import array
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.engines.reference.tokens import Stream, accepted, digest
from evenhand.engines.reference.vocabulary import Detokenizer, Vocabulary


def stream(*ids: int, plant: int | None = None, salt: bytes = b"") -> Stream:
    return Stream(digest(array("I", ids), salt), range(3, 2048), plant)


def test_the_same_prompt_gives_the_same_tokens_in_any_portions() -> None:
    whole = stream(1, 2, 3).take(0, 700)
    other = stream(1, 2, 3)
    assert [token for at in range(0, 700, 7) for token in other.take(at, 7)] == whole
    assert stream(1, 2, 4).take(0, 20) != whole[:20]
    assert stream(1, 2, 3, salt=b"seed").take(0, 20) != whole[:20]
    assert min(whole) >= 3
    assert max(whole) < 2048


def test_a_planted_token_changes_one_position() -> None:
    plain, planted = stream(9, 9).take(0, 100), stream(9, 9, plant=41).take(0, 100)
    assert [at for at in range(100) if plain[at] != planted[at]] == [41]


def test_margins_are_near_ties_here_and_there() -> None:
    margins = [stream(5).margin(at) for at in range(2000)]
    ties = sum(margin <= 0.01 for margin in margins)
    assert 20 < ties < 120
    assert all(margin == 0.005 or margin >= 0.05 for margin in margins)


def test_acceptance_is_a_chain() -> None:
    assert accepted(b"x", 1, 4, 1.0) == 4
    assert accepted(b"x", 1, 4, 0.0) == 0
    mean = sum(accepted(b"x", at, 1, 0.7) for at in range(4000)) / 4000
    assert abs(mean - 0.7) < 0.03


@settings(max_examples=60, deadline=None)
@given(st.text(min_size=0, max_size=40))
def test_text_goes_through_bytes_unharmed(text: str) -> None:
    """Every character, whatever it is split into, comes out once it is whole."""
    vocabulary = Vocabulary(2048, 0)
    detokenizer = Detokenizer(vocabulary)
    ids = vocabulary.encode(text)
    out = b"".join(detokenizer.escaped([token], at == len(ids) - 1) for at, token in enumerate(ids))
    assert msgspec.json.decode(b'"' + out + b'"') == text


def test_half_a_character_waits_and_is_replaced_at_the_end() -> None:
    vocabulary = Vocabulary(2048, 0)
    detokenizer = Detokenizer(vocabulary)
    first, second, third = vocabulary.encode("中")
    assert detokenizer.escaped([first], False) == b""
    assert detokenizer.escaped([second], False) == b""
    assert detokenizer.escaped([third], False).decode() == "中"
    assert detokenizer.escaped([first], True).decode() == "\N{REPLACEMENT CHARACTER}"


def test_the_models_own_tokenizer_is_used(tmp_path: Path) -> None:
    table = {
        "a": 3,
        "b": 4,
        "ab": 5,
        "\u0120": 6,
        "\u00c3": 7,
        "\u00a9": 8,
    }  # the byte-level forms of a space and of é's two bytes
    file = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": 0,
                "content": "<eos>",
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": table, "merges": ["a b"]},
    }
    (tmp_path / "tokenizer.json").write_bytes(msgspec.json.encode(file))
    vocabulary = Vocabulary(9, 0, str(tmp_path))
    assert vocabulary.encode("ab aé").tolist() == [5, 6, 3, 7, 8]
    assert vocabulary.escaped(5) == b"ab"
    assert 0 not in vocabulary.ordinary
    detokenizer = Detokenizer(vocabulary)
    assert detokenizer.text([5, 6, 3, 7], False) == "ab a"
    assert detokenizer.text([8], False) == "é"
