"""The prompts of every cell, drawn from the seed and the cell's name: arms, boots and repeats get the same ones."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from evenhand import scenario as sc
from evenhand.drive.prompts import (
    PromptError,
    Vocabulary,
    file_ids,
    random_ids,
    random_prompts,
    read_texts,
    repair,
    vocabulary,
)
from evenhand.plan import CellPlan

EXTENSION_TOKENS = 64
"""How far the third request of a reuse cell goes beyond its prefix."""
FEWEST_WORDS = 64
"""Below this many one-token words, text prompts are drawn from the whole vocabulary."""
FALLBACK_VOCABULARY = 1000
"""For an attached engine without a tokenizer: ids that every vocabulary has."""


class Workload:
    """Makes prompts. Raises PromptError in one sentence for a tokenizer or file that cannot be used."""

    def __init__(self, scenario: sc.Scenario, model: str, as_text: bool = False) -> None:
        """`as_text`: some engine of the comparison takes no ids, so every arm gets the same texts of the exact length."""
        self._scenario = scenario
        self._as_text = as_text or (scenario.prompts.source == "file" and scenario.prompts.send == "text")
        self._folder = scenario.tokenizer or model
        self._vocabulary = self._words() if self._as_text else _vocabulary(self._folder)
        self._texts = read_texts(scenario.prompts.file) if scenario.prompts.source == "file" and scenario.prompts.file else None

    def prompts(self, cell: CellPlan) -> list[list[int]] | list[str]:
        """The prompts of a cell, in request order."""
        ids = self._prompt_ids(cell)
        return [self._text(one) for one in ids] if self._as_text else ids

    def _prompt_ids(self, cell: CellPlan) -> list[list[int]]:
        seed, name = self._scenario.seed, cell.cell
        if cell.kind == "reuse":
            whole = self._ids(f"{name}#0", cell.prompt_tokens + EXTENSION_TOKENS)
            prefix = whole[: cell.prompt_tokens]
            return [prefix, list(prefix), whole]
        if self._texts is not None and cell.kind != "warmup":
            first = _ordinal(name)
            return [file_ids(self._texts, first + i, cell.prompt_tokens, self._encode) for i in range(cell.requests)]
        shared = self._scenario.prompts.shared_prefix if cell.kind != "warmup" else 0
        lead = random_ids(seed, f"{name}/shared", shared, self._vocabulary.size, self._vocabulary.special)
        keys = [f"{name}#{index}" for index in range(cell.requests)]
        return random_prompts(seed, keys, cell.prompt_tokens, self._vocabulary, first_ordinal=_ordinal(name), shared=lead)

    def _text(self, ids: list[int]) -> str:
        """Text that the same tokenizer counts as exactly len(ids) tokens. Raises PromptError when none is found."""
        made = repair(ids, self._encode, lambda some: str(self._tokenizer.decode(list(some), skip_special_tokens=False)))
        if made.tokens != len(ids):
            raise PromptError(f"no text of exactly {len(ids)} tokens was found for this tokenizer (nearest has {made.tokens})")
        return made.text

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        file = Path(self._folder) / "tokenizer.json"
        if not file.is_file():
            raise PromptError(f"{file} does not exist, but text prompts need it; set `tokenizer` to a folder that has one")
        return Tokenizer.from_file(str(file))

    def _words(self) -> Vocabulary:
        """Ids that stand for one word with its leading space and come back from their text alone: a text made of them is
        split at its spaces, so it has as many tokens as words. Where a tokenizer has too few, its whole vocabulary is used
        and `repair` has to find exact lengths."""
        whole = vocabulary(str(Path(self._folder)))
        ids = [i for i in range(whole.size) if i not in whole.special]
        texts = [str(self._tokenizer.decode([i], skip_special_tokens=False)) for i in ids]
        back = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        words = {
            i
            for i, text, found in zip(ids, texts, back, strict=True)
            if found.ids == [i] and text[:1] == " " and text[1:].isascii() and text[1:].isalpha()
        }
        if len(words) < FEWEST_WORDS:
            return whole
        return Vocabulary(whole.size, frozenset(range(whole.size)) - words)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _ids(self, key: str, length: int) -> list[int]:
        return random_ids(self._scenario.seed, key, length, self._vocabulary.size, self._vocabulary.special)


def _ordinal(name: str) -> int:
    """Where a cell's first tokens start in the vocabulary: cells of one run begin with different tokens."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")


def _vocabulary(folder: str) -> Vocabulary:
    """From the tokenizer; else the size that config.json states; an attached engine without either gets ids that all have."""
    path = Path(folder)
    if (path / "tokenizer.json").is_file() or path.suffix == ".json":
        return vocabulary(folder)
    config = path / "config.json"
    if config.is_file():
        try:
            data = json.loads(config.read_text("utf-8"))
            size = data.get("vocab_size") or data.get("text_config", {}).get("vocab_size")
        except (OSError, ValueError) as error:
            raise PromptError(f"{config}: cannot be read as JSON ({error})") from error
        if isinstance(size, int) and size > 16:
            return Vocabulary(size, frozenset(range(16)))
        raise PromptError(f"{config}: has no vocab_size; set `tokenizer` to a folder with tokenizer.json")
    return Vocabulary(FALLBACK_VOCABULARY, frozenset(range(16)))
