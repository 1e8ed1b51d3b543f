"""Prompts: exact lengths, no shared prefixes, the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from evenhand.drive.prompts import (
    PromptError,
    Vocabulary,
    file_ids,
    prompt_sha256,
    random_ids,
    random_prompts,
    read_texts,
    repair,
    vocabulary,
)

TOY = {1: "a", 2: "b", 3: "ab", 4: "c"}


def encode(text: str) -> list[int]:
    """Greedy longest match over the toy vocabulary."""
    ids: list[int] = []
    while text:
        token = max((i for i, word in TOY.items() if text.startswith(word)), key=lambda i: len(TOY[i]))
        ids.append(token)
        text = text[len(TOY[token]) :]
    return ids


def decode(ids: Sequence[int]) -> str:
    return "".join(TOY[i] for i in ids)


def test_b17_a_text_prompt_is_repaired_to_its_length() -> None:
    assert encode(decode([1, 2, 4])) == [3, 4]
    found = repair([1, 2, 4], encode, decode)
    assert found.tokens == 3
    assert len(encode(found.text)) == 3


def test_b17_a_length_that_no_text_has_is_reported() -> None:
    found = repair([1, 2, 3], lambda text: [9], lambda ids: "x")
    assert found.tokens == 1


@pytest.mark.parametrize("ids", [[1], [1, 2], [1, 2, 1, 2, 1, 2], [4, 1, 2, 4], [2, 1, 2, 1]])
def test_repair_holds_the_length(ids: list[int]) -> None:
    found = repair(ids, encode, decode)
    assert found.tokens == len(ids) == len(encode(found.text))


def test_random_ids_are_the_same_everywhere() -> None:
    assert random_ids(1, "ladder/c=8#0", 6, 1000) == [522, 710, 848, 638, 505, 654]
    assert random_ids(1, "ladder/c=8#0", 3, 1000) == random_ids(1, "ladder/c=8#0", 6, 1000)[:3]
    assert random_ids(2, "ladder/c=8#0", 6, 1000) != random_ids(1, "ladder/c=8#0", 6, 1000)
    assert random_ids(1, "ladder/c=8#1", 6, 1000) != random_ids(1, "ladder/c=8#0", 6, 1000)


def test_special_tokens_are_skipped() -> None:
    special = frozenset({0, 1, 2, 5})
    ids = random_ids(3, "k", 2000, 8, special)
    assert set(ids) == {3, 4, 6, 7}


def test_a_vocabulary_of_special_tokens_is_refused() -> None:
    with pytest.raises(PromptError, match="leaves none"):
        random_ids(1, "k", 3, 2, frozenset({0, 1}))


@pytest.mark.parametrize("seed", range(5))
def test_no_two_prompts_share_even_a_first_token(seed: int) -> None:
    keys = [f"ladder/c=32#{n}" for n in range(160)]
    prompts = random_prompts(seed, keys, 20, Vocabulary(200, frozenset(range(10))))
    assert len({prompt[0] for prompt in prompts}) == 160
    assert all(len(prompt) == 20 for prompt in prompts)
    more = random_prompts(seed, ["x"], 20, Vocabulary(200, frozenset(range(10))), first_ordinal=160)
    assert more[0][0] not in {prompt[0] for prompt in prompts}


def test_a_shared_prefix_when_asked_for() -> None:
    prompts = random_prompts(1, ["a", "b"], 10, Vocabulary(1000), shared=[5, 6, 7])
    assert [prompt[:3] for prompt in prompts] == [[5, 6, 7]] * 2
    assert prompts[0][3] != prompts[1][3]
    assert {len(prompt) for prompt in prompts} == {10}
    with pytest.raises(PromptError, match="longer than prompts of 2"):
        random_prompts(1, ["a"], 2, Vocabulary(1000), shared=[5, 6, 7])


def test_texts_from_jsonl_and_plain_files(tmp_path: Path) -> None:
    rows = tmp_path / "p.jsonl"
    rows.write_text('{"prompt": "one\\u2028two"}\n\n{"text": "three"}\n', encoding="utf-8")
    assert read_texts(str(rows)) == ["one\u2028two", "three"]
    plain = tmp_path / "p.txt"
    plain.write_text("one\nline\n\n\ntwo\n", encoding="utf-8")
    assert read_texts(str(plain)) == ["one\nline", "two"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.jsonl", '{"prompt": 3}\n', "p.jsonl:1: needs"),
        ("p.jsonl", "nonsense\n", "p.jsonl:1: not JSON"),
        ("p.txt", "\n\n", "holds no prompt"),
    ],
)
def test_prompt_files_that_cannot_be_used(tmp_path: Path, name: str, content: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(PromptError, match=words):
        read_texts(str(path))
    with pytest.raises(PromptError, match="cannot be read"):
        read_texts(str(tmp_path / "missing.txt"))


def test_running_text_is_exact_in_length() -> None:
    assert file_ids(["ab", "c"], 0, 5, encode) == [3, 4, 3, 4, 3]
    assert file_ids(["ab", "c"], 1, 2, encode) == [4, 3]
    with pytest.raises(PromptError, match="holds no token"):
        file_ids(["x", "y"], 0, 3, lambda text: [])


def test_vocabulary_knows_special_tokens_and_holes(tmp_path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import WordLevel

    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1, "c": 3}, unk_token="a"))
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = vocabulary(str(tmp_path))
    allowed = set(range(found.size)) - found.special
    assert allowed == {0, 1, 3} - {tokenizer.token_to_id("<s>")}
    with pytest.raises(PromptError, match=r"no usable tokenizer\.json"):
        vocabulary(str(tmp_path / "none"))


def test_the_hash_tells_prompts_apart() -> None:
    assert prompt_sha256([1, 2]) != prompt_sha256([1, 3])
    assert prompt_sha256([1, 2]) == prompt_sha256((1, 2))
    assert prompt_sha256("a") == "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
