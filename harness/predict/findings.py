"""What a reader must know, as named findings with their figures. Pure, over numbers; None where there is nothing to say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from evenhand.predict.pages import GIB, state_groups, state_page_bytes
from evenhand.predict.seats import slots_per_seat, state_bytes_needed
from evenhand.predict.shape import ModelShape

TOLERANCE_BLOCKS = 1
"""Prediction and measurement agree within one block."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A named finding: one sentence, and the figures in it by name (units at the end of the names)."""

    name: str
    text: str
    figures: Mapping[str, float] = {}


def some(findings: Iterable[Finding | None]) -> tuple[Finding, ...]:
    """Those that found something."""
    return tuple(finding for finding in findings if finding is not None)


def peak_against_prediction(where: str, measured_blocks: float, predicted_blocks: float, *, exact: bool) -> Finding | None:
    """A peak more than a block above prediction; an exact one also when more than a block below (a sampled one may miss it)."""
    off = measured_blocks - predicted_blocks
    if off > TOLERANCE_BLOCKS:
        name, how = "peak-above-prediction", "above"
    elif exact and off < -TOLERANCE_BLOCKS:
        name, how = "exact-peak-below-prediction", "below"
    else:
        return None
    kind = "exact" if exact else "sampled"
    return Finding(
        name=name,
        text=(
            f"{where}: the {kind} peak of {_n(measured_blocks)} blocks is {_n(abs(off))} {how} the "
            f"{_n(predicted_blocks)} predicted."
        ),
        figures={"measured_blocks": measured_blocks, "predicted_blocks": predicted_blocks, "off_blocks": off},
    )


def retention_grows(where: str, series: Sequence[tuple[int, int]], needed: int) -> Finding | None:
    """Retained states that grow with the tokens computed (or with the prompt) beyond the `needed` ones.

    `series` holds (tokens, retained states per group). Growth is a later half whose maximum exceeds the earlier half's: a ramp
    up to `needed` is none, nor is a count that merely stands above it.
    """
    points = sorted(set(series))
    if len(points) < 3 or max(states for _, states in points) <= needed:
        return None
    half = len(points) // 2
    (first_at, first), (top_at, top) = points[0], max(points, key=lambda point: point[1])
    if top <= max(states for _, states in points[:half]):
        return None
    per = (top_at - first_at) / (top - first)
    return Finding(
        name="retention-grows-with-prompt",
        text=(
            f"{where}: retained states grow from {first} to {top} per group by {top_at:,} tokens, one per {per:,.0f} tokens; "
            f"{needed} are needed."
        ),
        figures={"first_states": first, "max_states": top, "needed_states": needed, "tokens_per_state": per},
    )


def pool_not_idle(where: str, settled_blocks: float) -> Finding | None:
    """A pool that holds blocks once the engine is idle again (half a block is rounding)."""
    if settled_blocks < 0.5:
        return None
    return Finding(
        name="pool-does-not-return-to-idle",
        text=f"{where}: {_n(settled_blocks)} blocks are still in use when idle again.",
        figures={"settled_blocks": settled_blocks},
    )


def seats_below_asked(where: str, asked: int, resolved: int, reason: str = "") -> Finding | None:
    """Seats that the engine resolved below those asked."""
    if resolved >= asked:
        return None
    return Finding(
        name="seats-below-asked",
        text=f"{where}: {resolved} seats of the {asked} asked{': ' + reason.rstrip('.') if reason else ''}.",
        figures={"asked_seats": asked, "resolved_seats": resolved},
    )


def ceiling_above_room(where: str, ceiling: int, fit: int) -> Finding | None:
    """A stated seat ceiling above the seats that the pool can hold at once."""
    if ceiling <= fit:
        return None
    return Finding(
        name="ceiling-above-room",
        text=f"{where}: the seat ceiling of {ceiling} is not the room: the pool holds {fit} sequences at once, the rest queue.",
        figures={"ceiling_seats": ceiling, "fit_seats": fit},
    )


def state_dtype_doubles(shape: ModelShape, depth: int, seats: int, state_dtype: str) -> Finding | None:
    """A 4-byte state where 2 bytes would do: need = state_page * layers * (1 + depth) * seats at both sizes, bytes."""
    if not shape.state_layers or shape.ssm_bytes < 4:
        return None
    need = state_bytes_needed(shape, depth, seats)
    half = state_bytes_needed(msgspec.structs.replace(shape, ssm_bytes=2), depth, seats)
    return Finding(
        name="state-dtype-doubles-need",
        text=(
            f"{state_dtype} states need {need / GIB:.2f} GiB for {seats} seats at depth {depth}; "
            f"a 16-bit state would need {half / GIB:.2f} GiB (factor {need / half:.2f})."
        ),
        figures={"need_bytes": need, "need_16_bit_bytes": half, "factor": need / half},
    )


def refusal_figure(shape: ModelShape, depth: int, seats: int, printed_gib: float) -> Finding | None:
    """An engine's own figure of the state needed that the arithmetic does not give, GiB as printed with two decimals.

    need = state_page * state_layers * (1 + depth) * seats. When need divided (or multiplied) by a layer or group count prints
    as the engine's figure, that factor is named: 0.90 against 43.40 GiB is one layer of 48.
    """
    need = state_bytes_needed(shape, depth, seats) / GIB
    if not need or round(need, 2) == round(printed_gib, 2):
        return None
    counts = {
        "state layers": shape.state_layers,
        "attention layers": shape.attention_layers,
        "layers in all": shape.state_layers + shape.attention_layers,
        "state groups": state_groups(shape),
    }
    factor, what = 0, ""
    for name, count in counts.items():
        if count > 1 and round(printed_gib, 2) in (round(need / count, 2), round(need * count, 2)):
            factor, what = count, name
            break
    page = state_page_bytes(shape, depth)
    told = (
        f"the figure is off by {factor}, the number of {what}" if factor else "no layer or group count explains the difference"
    )
    return Finding(
        name="refusal-figure-not-derivable",
        text=(
            f"the engine says {printed_gib:.2f} GiB of state; {page:,} B * {shape.state_layers} layers * "
            f"{slots_per_seat(depth)} slots * {seats} sequences are {need:.2f} GiB: {told}."
        ),
        figures={"printed_gib": printed_gib, "need_gib": need, **({"factor": factor} if factor else {})},
    )


def _n(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
