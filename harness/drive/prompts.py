"""Prompts: random token ids that are exact in length and share no prefix, or text from a file repaired to an exact length."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec


class PromptError(Exception):
    """One sentence for the user."""


class Vocabulary(msgspec.Struct, frozen=True):
    """Ids a random prompt may use: 0..size-1 without the special ones."""

    size: int
    special: frozenset[int] = frozenset()


def vocabulary(folder: str) -> Vocabulary:
    """Read `tokenizer.json` in `folder` (or the file itself). Raises PromptError when there is none."""
    from tokenizers import Tokenizer

    path = Path(folder)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises a bare Exception
        raise PromptError(f"{path}: no usable tokenizer.json ({error}); set `tokenizer` to a folder that has one") from None
    table = tokenizer.get_vocab(with_added_tokens=True)
    size = max(table.values(), default=-1) + 1
    holes = set(range(size)).difference(table.values())
    return Vocabulary(size, frozenset(holes | set(tokenizer.get_added_tokens_decoder())))


def _allowed(vocab: int, special: frozenset[int]) -> Sequence[int]:
    allowed: Sequence[int] = range(vocab) if not special else [i for i in range(vocab) if i not in special]
    if not allowed:
        raise PromptError(f"a vocabulary of {vocab} ids, all of them special, leaves none for random prompts")
    return allowed


def random_ids(
    seed: int,
    key: str,
    length: int,
    vocab: int,
    special: frozenset[int] = frozenset(),
    *,
    ordinal: int | None = None,
) -> list[int]:
    """`length` ids that depend on (seed, key) alone, on any machine and any library version.

    `ordinal` numbers the requests of a run: their first ids are then all different (until the vocabulary is used up), so not
    even a cache that matches single tokens finds a shared prefix.
    """
    allowed = _allowed(vocab, special)
    count = len(allowed)
    words = struct.unpack(f"<{length}Q", hashlib.shake_256(f"{seed}\0{key}".encode()).digest(8 * length))
    ids = [allowed[word % count] for word in words]
    if ordinal is not None and ids:
        ids[0] = allowed[_permuted(seed, ordinal, count)]
    return ids


def _permuted(seed: int, ordinal: int, count: int) -> int:
    """`ordinal` through a permutation of 0..count-1 that depends on the seed (affine: stride prime to count)."""
    word = int.from_bytes(hashlib.sha256(f"first\0{seed}".encode()).digest()[:8], "little")
    stride = word % count or 1
    while math.gcd(stride, count) != 1:
        stride += 1
    return (stride * ordinal + (word >> 17)) % count


def random_prompts(
    seed: int, keys: Sequence[str], length: int, vocabulary: Vocabulary, *, first_ordinal: int = 0, shared: Sequence[int] = ()
) -> list[list[int]]:
    """One prompt of exactly `length` ids per key; `shared` leads all of them where a scenario asks for a common prefix."""
    own = length - len(shared)
    if own < 0:
        raise PromptError(f"a shared prefix of {len(shared)} tokens is longer than prompts of {length}")
    return [
        [*shared, *random_ids(seed, key, own, vocabulary.size, vocabulary.special, ordinal=first_ordinal + number)]
        for number, key in enumerate(keys)
    ]


def read_texts(path: str) -> list[str]:
    """Prompts of a file: JSONL with a "prompt" or "text" field, else paragraphs of plain text (blank lines between)."""
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    if not path.endswith((".jsonl", ".ndjson")):
        texts = [part.strip() for part in content.replace("\r\n", "\n").split("\n\n")]
    else:
        texts = []
        for number, line in enumerate(content.split("\n"), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise PromptError(f"{path}:{number}: not JSON ({error})") from None
            text = row.get("prompt", row.get("text")) if isinstance(row, dict) else None
            if not isinstance(text, str):
                raise PromptError(f'{path}:{number}: needs a "prompt" or "text" field that holds a string')
            texts.append(text)
    texts = [text for text in texts if text]
    if not texts:
        raise PromptError(f"{path}: holds no prompt")
    return texts


def file_ids(texts: Sequence[str], index: int, length: int, encode: Callable[[str], list[int]]) -> list[int]:
    """`length` ids of running text, starting at text `index` and going on with those after it (round and round)."""
    ids: list[int] = []
    for step in range(len(texts) * (length + 1)):
        more = encode(texts[(index + step) % len(texts)])
        ids += more
        if len(ids) >= length:
            return ids[:length]
        if step >= len(texts) and not ids:
            break
    raise PromptError("the prompt file holds no token: its texts encode to nothing")


class Repaired(msgspec.Struct, frozen=True):
    """A text prompt and the length a server with the same tokenizer will count."""

    text: str
    tokens: int


def repair(
    ids: Sequence[int], encode: Callable[[str], list[int]], decode: Callable[[Sequence[int]], str], *, tries: int = 32
) -> Repaired:
    """Text whose encoding has exactly len(ids) tokens, starting from decode(ids).

    decode then encode is not the identity for BPE: too short is lengthened by repeating ids, too long is cut, until it holds.
    The caller compares `tokens` with what was asked: it can differ when no text of that length is found.
    """
    asked = len(ids)
    current = list(ids)
    best: Repaired | None = None
    for attempt in range(tries):
        text = decode(current)
        found = encode(text)
        if best is None or abs(len(found) - asked) < abs(best.tokens - asked):
            best = Repaired(text, len(found))
        if len(found) == asked:
            break
        if len(found) > asked:
            current = found[:asked]
        else:
            missing = asked - len(found)
            filler = [ids[(attempt - number - 1) % asked] for number in range(missing)] if attempt else list(ids[-missing:])
            current = [*found, *filler]
    assert best is not None
    return best


def prompt_sha256(prompt: Sequence[int] | str) -> str:
    """Identity of a prompt: sha256 over its ids (64-bit little-endian) or its UTF-8 text."""
    if isinstance(prompt, str):
        return hashlib.sha256(prompt.encode()).hexdigest()
    return hashlib.sha256(struct.pack(f"<{len(prompt)}q", *prompt)).hexdigest()
