"""What a column means where engines count or report unlike things: the unit of pool use, and notes per arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from evenhand.engines import engine_for
from evenhand.engines.base import EngineError, Settings
from evenhand.judge.fairness import arm_of
from evenhand.judge.ladder import LadderRow
from evenhand.judge.pressure import PressureRow
from evenhand.records import LegRow


class PoolUnit(msgspec.Struct, frozen=True, kw_only=True):
    """How a table gives pool use: in blocks where those of all arms are of one size, else in tokens that these blocks hold."""

    block_tokens: Mapping[int, int] = {}
    """leg -> tokens of a block; empty: blocks are shown as they are."""
    notes: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The column's unit."""
        return "tokens" if self.block_tokens else "blocks"

    def of(self, leg: int, blocks: int | None) -> int | None:
        """Blocks of a leg in this unit; None where either is not known."""
        if blocks is None or not self.block_tokens:
            return blocks
        size = self.block_tokens.get(leg)
        return None if size is None else blocks * size


BLOCKS = PoolUnit()


def pool_unit(legs: Sequence[LegRow], scenario: Mapping[str, Any]) -> PoolUnit:
    """The unit for a table of these legs, and what each arm's engine counts where they count differently."""
    sizes = {leg.leg: leg.pool.block_tokens for leg in legs if leg.pool and leg.pool.block_tokens}
    words: dict[str, str] = {}
    for leg in legs:
        if leg.pool and leg.arm not in words and (text := _counted(leg, scenario)):
            words[leg.arm] = text
    notes = [f"pool of {arm}: {text}" for arm, text in words.items()] if len(set(words.values())) > 1 else []
    if len(set(sizes.values())) < 2:
        return PoolUnit(notes=notes)
    each = ", ".join(dict.fromkeys(f"{leg.arm} {sizes[leg.leg]}" for leg in legs if leg.leg in sizes))
    return PoolUnit(block_tokens=sizes, notes=[f"pool in tokens: blocks in use x tokens per block ({each})", *notes])


def _counted(leg: LegRow, scenario: Mapping[str, Any]) -> str | None:
    """What the gauge behind a leg's pool use counts, in its adapter's words; None where the adapter is not at hand."""
    options = arm_of(scenario, leg.arm).get("options") or {}
    try:
        facts = engine_for(leg.engine, Settings(model="", served_name="", options=options)).facts
    except (KeyError, EngineError, ImportError):
        return None
    said = next((gauge.meaning for gauge in facts.gauges if gauge.name == "usage"), "")
    return said.partition(": ")[2] or said or None  # without the engine's name, which the arm's stands for


def stamp_notes(rows: Sequence[LadderRow | PressureRow]) -> list[str]:
    """Arms whose TTFT or TPOT is not what the column says of the others, one sentence each."""
    said: dict[str, list[str]] = {}
    for row in rows:
        parts = [f"TTFT is to the {row.ttft_kind}"] if row.ttft_kind not in (None, "first token") else []
        if isinstance(row, LadderRow) and row.tpot_marked:
            parts.append("TPOT divides by tokens - 1")
        if parts:
            said.setdefault(row.arm, []).extend(parts)
    arms: dict[str, list[str]] = {}
    for arm, parts in said.items():
        arms.setdefault(", ".join(dict.fromkeys(parts)), []).append(arm)
    plain = any(row.ttft_kind == "first token" for row in rows)
    rest = "; the other arms' TTFT is to the first token" if plain else ""
    return [f"{', '.join(names)}: {what} (no token ids come back){rest}" for what, names in arms.items()]


def state_note(slots: Mapping[str, str | None]) -> list[str]:
    """`slots`: arm -> state slots of its pool, as the ledger has them."""
    beside = [arm for arm, count in slots.items() if count]
    if not beside:
        return []
    return [f"pool bytes of {', '.join(beside)} exclude recurrent state, which has slots of its own"]
