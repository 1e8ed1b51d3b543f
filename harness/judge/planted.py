"""A planted fault must be seen: one token changed in another boot's rows of the same arm."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from evenhand.judge.columns import Columns
from evenhand.judge.equality import UNUSABLE, compare, compare_rows
from evenhand.judge.view import JudgeRow


class Planted(JudgeRow, frozen=True, kw_only=True):
    """Whether the comparison saw what was planted."""

    seen: bool
    what: str
    """One sentence: what was changed where, and what the comparison made of it."""


def plant_token(a: Columns, a_rows: Sequence[int], b: Columns, b_rows: Sequence[int]) -> Planted | None:
    """Change one token (one character, where there are no ids) of one request in `b` and compare with `a` again.

    Taken from the middle of the middle request that is the same on both boots. None where no request can carry a fault: nothing
    was generated, or no pair is equal.
    """
    by_key = {b.key[j]: j for j in b_rows if b.key[j]}
    equal = []
    for i in a_rows:
        j = by_key.get(a.key[i])
        if j is None or not (b.ids[j] or b.text[j]):
            continue
        pair = compare_rows(a, i, b, j)
        if not pair.mismatch and pair.kind not in UNUSABLE:
            equal.append(j)
    if not equal:
        return None
    j = sorted(equal, key=lambda j: b.key[j])[len(equal) // 2]
    changed = copy.copy(b)
    data = b.ids[j]
    if data:
        ids = np.frombuffer(data, dtype=np.int64).copy()
        at = len(ids) // 2
        ids[at] += 1
        changed.ids = list(b.ids)
        changed.ids[j] = ids.tobytes()
        what = f"token {at} of {b.key[j]}"
    else:
        at = len(b.text[j]) // 2
        character = "~" if b.text[j][at] != "~" else "#"
        changed.text = list(b.text)
        changed.text[j] = b.text[j][:at] + character + b.text[j][at + 1 :]
        what = f"character {at} of {b.key[j]}"
    found = compare(a, a_rows, changed, b_rows, label="planted", legs=(0, 0))
    hit = next((p for p in found.pairs if p.key == b.key[j]), None)
    seen = hit is not None and hit.mismatch and (hit.index == at if data else hit.byte is not None)
    return Planted(seen=seen, what=f"{what} was changed and {'seen' if seen else 'not seen'}")
