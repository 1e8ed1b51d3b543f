"""Ids and text: the model folder's own byte-level tokenizer if it has one, else a small vocabulary of bytes and words.

Text of a token is JSON-escaped once and kept, as every event needs it. Bytes that are no whole character wait for the rest.
"""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

_BYTES_FROM = 3
_WORDS_FROM = _BYTES_FROM + 256
_SYLLABLES = ("ba", "ce", "di", "fo", "gu", "ha", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "zu", "kan")


class Vocabulary:
    """Token ids <-> text."""

    def __init__(self, size: int, eos: int | None, folder: str | None = None) -> None:
        self.size = size
        self.eos = eos
        self._tokenizer: Any = None
        self._file: Path | None = None
        self._bytes: dict[int, bytes] = {}
        self._json: dict[int, bytes] = {}
        special = {0, 1, 2} if eos is None else {0, 1, 2, eos}
        file = Path(folder) / "tokenizer.json" if folder else None
        if file is not None and file.is_file():
            self._file = file
            special = self._load(file) | ({eos} if eos is not None else set())
        self.ordinary: Sequence[int] = self._contiguous(special)

    def _load(self, file: Path) -> set[int]:
        """Every id's bytes from a byte-level tokenizer.json; returns the special ids."""
        data = msgspec.json.decode(file.read_bytes())
        back = {char: byte for byte, char in _byte_level().items()}
        for token, number in data["model"]["vocab"].items():
            try:
                self._bytes[number] = bytes(back[char] for char in token)
            except KeyError:
                self._bytes[number] = token.encode()
        special: set[int] = set()
        for entry in data.get("added_tokens", ()):
            self._bytes[entry["id"]] = b"" if entry.get("special") else entry["content"].encode()
            if entry.get("special"):
                special.add(entry["id"])
        return special

    def _contiguous(self, special: set[int]) -> Sequence[int]:
        known = range(self.size) if self._file is None else sorted(n for n in self._bytes if n < self.size)
        first = next((i for i in range(self.size) if i not in special), 0)
        if self._file is None and special <= set(range(first)):
            return range(first, self.size)
        return [number for number in known if number not in special]

    def encode(self, text: str) -> array[int]:
        """Ids of a text prompt."""
        if self._file is not None:
            if self._tokenizer is None:
                from tokenizers import Tokenizer  # only text prompts need it

                self._tokenizer = Tokenizer.from_file(str(self._file))
            return array("I", self._tokenizer.encode(text, add_special_tokens=False).ids)
        return array("I", (byte + _BYTES_FROM for byte in text.encode()))

    def bytes_of(self, token: int) -> bytes:
        found = self._bytes.get(token)
        if found is None:
            found = b"" if self._file is not None else _plain(token)
            self._bytes[token] = found
        return found

    def escaped(self, token: int) -> bytes:
        """JSON text (without quotes) of a token that is whole characters; empty bytes where it is not, or has no text."""
        found = self._json.get(token)
        if found is None:
            try:
                found = msgspec.json.encode(self.bytes_of(token).decode())[1:-1]
            except UnicodeDecodeError:
                found = b""
            self._json[token] = found
        return found


class Detokenizer:
    """Text of one stream of tokens: characters split over tokens come with their last one."""

    __slots__ = ("_decoder", "_vocabulary", "_waiting")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = False

    def escaped(self, ids: Iterable[int], final: bool) -> bytes:
        """JSON text (without quotes) that these tokens make visible."""
        vocabulary = self._vocabulary
        if not self._waiting:
            parts = []
            for token in ids:
                part = vocabulary.escaped(token)
                if not part and vocabulary.bytes_of(token):
                    break
                parts.append(part)
            else:
                return parts[0] if len(parts) == 1 else b"".join(parts)
        return msgspec.json.encode(self.text(ids, final))[1:-1]

    def text(self, ids: Iterable[int], final: bool) -> str:
        """Text that these tokens make visible; with `final` an incomplete character becomes U+FFFD."""
        raw = b"".join(self._vocabulary.bytes_of(token) for token in ids)
        text = self._decoder.decode(raw, final)
        self._waiting = bool(self._decoder.getstate()[0])
        return text


def _plain(token: int) -> bytes:
    if token < _BYTES_FROM:
        return b""
    if token < _WORDS_FROM:
        return bytes((token - _BYTES_FROM,))
    number, word = token - _WORDS_FROM, ""
    while True:
        number, digit = divmod(number, len(_SYLLABLES))
        word += _SYLLABLES[digit]
        if not number:
            return f" {word}".encode()


def _byte_level() -> dict[int, str]:
    """The printable stand-in of every byte in byte-level vocabularies (GPT-2's table)."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in keep}
    for extra, byte in enumerate(b for b in range(256) if b not in table):
        table[byte] = chr(256 + extra)
    return table
