"""Outputs compared bit for bit: pairing by key, one verdict per field, the first divergence and its class."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from evenhand.judge.columns import Columns
from evenhand.judge.view import JudgeRow
from evenhand.records import RequestRow

NEAR_TIE_NAT = 0.01
"""Top-2 log-probability margin up to which a divergence is a near tie: it explains, it never excuses."""

Class = Literal[
    "identical",
    "differs",
    "near tie",
    "trailing EOS only",
    "normalisation only",
    "detokenisation artefact",
    "text identical, ids unknown",
    "nothing generated",
    "prompt differs",
    "not comparable",
    "unpaired",
]

SAME: frozenset[str] = frozenset({"identical", "text identical, ids unknown"})
"""Classes in which nothing that was compared differs."""
UNUSABLE: frozenset[str] = frozenset({"nothing generated", "prompt differs", "not comparable", "unpaired"})
"""Classes that are evidence of neither equality nor difference."""


class Pair(JudgeRow, frozen=True, kw_only=True):
    """One request on two boots. A field's verdict is None where either side does not report it."""

    key: str
    kind: Class
    detail: str = ""
    """One phrase for people, escaped."""
    ids: bool | None = None
    text: bool | None = None
    reasoning: bool | None = None
    finish_reason: bool | None = None
    output_tokens: bool | None = None
    prompt_tokens: bool | None = None
    cached_tokens: bool | None = None
    index: int | None = None
    """First token that differs."""
    tokens: tuple[int | None, int | None] | None = None
    """Both tokens there; None where a side had ended."""
    byte: int | None = None
    """First byte of the text that differs (UTF-8)."""
    failed: str = ""
    """Which sides failed: "A", "B", "AB"."""
    margin_nat: float | None = None
    """Top-2 log-probability margin at the divergence, from an untimed replay."""

    @property
    def mismatch(self) -> bool:
        """Whether outputs differ."""
        return self.kind not in SAME and self.kind not in UNUSABLE

    @property
    def text_mismatch(self) -> bool:
        """Whether outputs differ when ids are left aside: bytes, finish_reason and usage counts."""
        fields = (self.text, self.reasoning, self.finish_reason, self.output_tokens)
        return self.kind not in UNUSABLE and any(field is False for field in fields)


class Comparison(JudgeRow, frozen=True, kw_only=True):
    """All requests of two boots (or of two passes within one)."""

    label: str
    legs: tuple[int, int]
    pairs: list[Pair] = msgspec.field(default_factory=list)
    """Everything that is not identical; identical pairs are only counted."""
    planned: int = 0
    """Keys on either side."""
    compared: int = 0
    identical: int = 0
    mismatches: int = 0
    text_mismatches: int = 0
    work_differs: int = 0
    """Compared pairs whose output token counts differ."""
    unpaired: int = 0
    failed: int = 0
    prompt_differs: int = 0
    empty: int = 0
    """Pairs in which both sides succeeded alike and neither generated anything: evidence of nothing."""
    ids_known: int = 0
    """Compared pairs in which both sides sent ids."""
    cached_differ: int = 0
    cached_known: int = 0
    not_greedy: int = 0
    """Compared requests whose recorded body does not say temperature 0 literally."""
    classes: dict[str, int] = msgspec.field(default_factory=dict)


Rows = Sequence[int]


def compare(
    a: Columns,
    a_rows: Rows,
    b: Columns,
    b_rows: Rows,
    *,
    label: str,
    legs: tuple[int, int],
    margins: Mapping[tuple[str, int], float] | None = None,
) -> Comparison:
    """Pair by key and compare every pair. Keys that are empty never pair; keys that occur twice on a side pair with nothing."""
    left, left_odd = _by_key(a, a_rows)
    right, right_odd = _by_key(b, b_rows)
    pairs: list[Pair] = []
    for key, why in sorted({**left_odd, **{k: v for k, v in right_odd.items() if k not in left_odd}}.items()):
        side = "both" if key in left_odd and key in right_odd else ("A" if key in left_odd else "B")
        pairs.append(Pair(key=key, kind="unpaired", detail=f"{why} in {side}"))
    odd = left_odd.keys() | right_odd.keys()
    pairs += [Pair(key=k, kind="unpaired", detail="only in A") for k in left if k not in right and k not in odd]
    pairs += [Pair(key=k, kind="unpaired", detail="only in B") for k in right if k not in left and k not in odd]
    unpaired = len(pairs)
    same = ids_known = cached_differ = cached_known = not_greedy = 0
    for key, i in left.items():
        j = right.get(key)
        if j is None or key in odd:
            continue
        pair = compare_rows(a, i, b, j, margins)
        if pair.kind in UNUSABLE:
            pairs.append(pair)
            continue
        ids_known += pair.ids is not None
        not_greedy += not (a.greedy[i] and b.greedy[j])
        if pair.cached_tokens is not None:
            cached_known += 1
            cached_differ += not pair.cached_tokens
        if pair.kind == "identical" and pair.cached_tokens is not False:
            same += 1
        else:
            pairs.append(pair)
    classes = Counter[str](p.kind for p in pairs)
    classes["identical"] += same
    usable = same + sum(p.kind not in UNUSABLE for p in pairs)
    return Comparison(
        label=label,
        legs=legs,
        pairs=pairs,
        planned=len(left.keys() | right.keys() | odd),
        compared=usable,
        identical=classes["identical"] + classes["text identical, ids unknown"],
        mismatches=sum(p.mismatch for p in pairs),
        text_mismatches=sum(p.text_mismatch for p in pairs),
        work_differs=sum(p.output_tokens is False for p in pairs),
        unpaired=unpaired,
        failed=classes["not comparable"],
        prompt_differs=classes["prompt differs"],
        empty=classes["nothing generated"],
        ids_known=ids_known,
        cached_differ=cached_differ,
        cached_known=cached_known,
        not_greedy=not_greedy,
        classes={k: v for k, v in sorted(classes.items()) if v},
    )


def _by_key(columns: Columns, rows: Rows) -> tuple[dict[str, int], dict[str, str]]:
    """key -> row for keys that occur once, and key -> why for those that cannot pair."""
    found: dict[str, int] = {}
    odd: dict[str, str] = {}
    for i in rows:
        key = columns.key[i]
        if not key:
            odd[f"(row {columns.cell[i]} {columns.index[i]})"] = "no key"
        elif key in found or key in odd:
            odd[key] = "duplicate"
        else:
            found[key] = i
    return {k: i for k, i in found.items() if k not in odd}, odd


def compare_rows(a: Columns, i: int, b: Columns, j: int, margins: Mapping[tuple[str, int], float] | None = None) -> Pair:
    """Compare one request of one boot with the same request of another."""
    key = a.key[i]
    if a.prompt_sha256[i] != b.prompt_sha256[j]:
        return Pair(key=key, kind="prompt differs", detail="the prompts' hashes differ")
    prompts = _same(a.prompt_tokens[i], b.prompt_tokens[j])
    if prompts is False:
        return Pair(
            key=key,
            kind="prompt differs",
            prompt_tokens=False,
            detail=f"prompt differs ({a.prompt_tokens[i]} vs {b.prompt_tokens[j]})",
        )
    failed = "".join(side for side, columns, at in (("A", a, i), ("B", b, j)) if columns.outcome[at] != "ok")
    if failed:
        reason = (a.reason[i] if "A" in failed else b.reason[j]) or "failed"
        return Pair(key=key, kind="not comparable", detail=f"{' and '.join(failed)}: {reason}", failed=failed)
    a_ids, b_ids = a.ids[i], b.ids[j]
    ids = None if a_ids is None or b_ids is None else a_ids == b_ids
    text = a.text[i] == b.text[j]
    reasoning = a.reasoning[i] == b.reasoning[j]
    finish = a.finish_reason[i] == b.finish_reason[j]
    outputs = _same(a.output_tokens[i], b.output_tokens[j])
    cached = _same(a.cached_tokens[i], b.cached_tokens[j])
    base = Pair(
        key=key,
        kind="identical" if ids is not None else "text identical, ids unknown",
        ids=ids,
        text=text,
        reasoning=reasoning,
        finish_reason=finish,
        output_tokens=outputs,
        prompt_tokens=prompts,
        cached_tokens=cached,
    )
    if ids is False:
        return _ids_differ(base, a, i, b, j, margins)
    if not (text and reasoning):
        return _text_differs(base, a, i, b, j)
    if not finish:
        return _differs(base, f"finish_reason {a.finish_reason[i]} vs {b.finish_reason[j]}")
    if outputs is False:
        return _differs(base, f"tokens reported {a.output_tokens[i]} vs {b.output_tokens[j]}")
    if not (a_ids or b_ids or a.text[i] or a.reasoning[i]):
        return msgspec.structs.replace(base, kind="nothing generated", detail="neither side generated anything")
    return base


def _same(a: int | None, b: int | None) -> bool | None:
    return None if a is None or b is None else a == b


def _differs(base: Pair, detail: str) -> Pair:
    return msgspec.structs.replace(base, kind="differs", detail=detail)


def _ids_differ(base: Pair, a: Columns, i: int, b: Columns, j: int, margins: Mapping[tuple[str, int], float] | None) -> Pair:
    left, right = a.token_ids(i) or [], b.token_ids(j) or []
    index = next((n for n, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), min(len(left), len(right)))
    x = left[index] if index < len(left) else None
    y = right[index] if index < len(right) else None
    margin = (margins or {}).get((base.key, index))
    text = bool(base.text and base.reasoning)
    kind: Class = "differs"
    detail = f"token {index}: {_token(x)} vs {_token(y)}"
    if abs(len(left) - len(right)) == 1 and index == min(len(left), len(right)) and text:
        kind = "trailing EOS only"
    elif margin is not None and margin <= NEAR_TIE_NAT:
        kind = "near tie"
        detail += f", margin {margin:.4g} nat"
    elif text:
        detail += " (same text, other token ids)"
    return msgspec.structs.replace(
        base,
        kind=kind,
        detail=detail,
        index=index,
        tokens=(x, y),
        margin_nat=margin,
        byte=None if text else first_byte(a.text[i], b.text[j]),
    )


def _token(token: int | None) -> str:
    return "end" if token is None else str(token)


def _text_differs(base: Pair, a: Columns, i: int, b: Columns, j: int) -> Pair:
    which = "text" if not base.text else "reasoning"
    left, right = (a.text[i], b.text[j]) if which == "text" else (a.reasoning[i], b.reasoning[j])
    at = first_byte(left, right)
    x, y = left.encode("utf-8", "surrogatepass"), right.encode("utf-8", "surrogatepass")
    detail = f"{which} byte {at}: {_around(left, right)} ({len(x)} vs {len(y)} bytes)"
    kind: Class = "differs"
    if unicodedata.normalize("NFC", left) == unicodedata.normalize("NFC", right):
        kind = "normalisation only"
    elif base.ids:  # the same ids became other text
        kind = "detokenisation artefact"
    return msgspec.structs.replace(base, kind=kind, detail=detail, byte=at)


def first_byte(a: str, b: str) -> int:
    """Offset of the first UTF-8 byte that differs; the shorter length where one is the start of the other."""
    x, y = a.encode("utf-8", "surrogatepass"), b.encode("utf-8", "surrogatepass")
    return next((n for n, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))


def _around(a: str, b: str, width: int = 8) -> str:
    """Both texts around the first character that differs, escaped to ASCII so that what looks alike can be told apart."""
    at = next((n for n, (p, q) in enumerate(zip(a, b, strict=False)) if p != q), min(len(a), len(b)))
    cut = slice(max(0, at - 2), at + width)
    return f"{a[cut]!a} vs {b[cut]!a}"


def margins_of(replays: Iterable[RequestRow], emitted: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], float]:
    """(key, token index) -> top-2 margin in nat, from untimed replays.

    Only as far as a replay produced the tokens `emitted` under the same key in the measured run: beyond that it took another
    path, and its margins say nothing about this one.
    """
    found: dict[tuple[str, int], float] = {}
    for row in replays:
        if row.top2_margin_nats is None or row.token_ids is None or row.key not in emitted:
            continue
        original = emitted[row.key]
        for n, margin in enumerate(row.top2_margin_nats):
            if margin is not None:
                found.setdefault((row.key, n), margin)
            if n >= len(original) or n >= len(row.token_ids) or row.token_ids[n] != original[n]:
                break
    return found
