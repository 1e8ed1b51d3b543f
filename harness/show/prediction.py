"""The tables of `evenhand predict`: what each engine should need before it runs, and the same beside what a run measured."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from evenhand.predict.findings import Finding
from evenhand.predict.forecast import EngineForecast, Prediction, PromptForecast
from evenhand.predict.from_run import Compared, Comparison
from evenhand.show.table import Column, Table, as_text, clean, percent, whole
from evenhand.units import gib

# --- before a run ---------------------------------------------------------------------------------------------------------


def prediction_text(made: Prediction, width: int) -> str:
    """Model and pages, seats by engine, peaks by prompt length, findings: for a terminal."""
    tables = [_pages(made), _seats(made), *(_prompts(row, made.state_groups) for row in made.engines if row.prompts)]
    return "\n\n".join([*(as_text(table, width) for table in tables), _findings(made.findings, width)])


def _findings(findings: Sequence[Finding], width: int) -> str:
    said = [clean(f"{finding.name}: {finding.text}") for finding in findings]
    lines = [textwrap.fill(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False) for text in said]
    return "\n".join(["findings:", *lines]) if lines else "findings: none"


def _pages(made: Prediction) -> Table:
    model, shape, budget = made.model, made.model.shape, made.budget
    rows = [["attention, per token and layer", f"{made.attn_bytes_per_token:,} B"]]
    if shape.state_layers:
        rows += [
            ["state page, per layer and slot", f"{made.state_page_bytes:,} B"],
            ["unified block", f"{made.block_tokens} tokens, padding {made.padding:.2%}"],
            ["state groups beside attention", str(made.state_groups)],
        ]
    rows.append(["block over all its layers", f"{made.block_bytes:,} B"])
    if shape.state_layers:
        what = f"state of {budget.seats} seat{'s' * (budget.seats != 1)}, {1 + budget.depth} slots each"
        rows.append([what, f"{made.state_need_bytes:,} B = {gib(made.state_need_bytes)} GiB"])
    return Table(
        title=f"Prediction for {model.source}",
        columns=(Column("figure", "", "left"), Column("value", "", "left")),
        rows=rows,
        notes=[
            f"{model.layers} layers: {shape.attention_layers} attention, {shape.state_layers} recurrent state; cache "
            f"{model.cache_dtype}, state {model.state_dtype if shape.state_layers else 'none'}; {budget.depth} drafted tokens, "
            f"batch {budget.batch_tokens:,} tokens, {'one step' if budget.in_flight else 'no step'} in flight"
        ],
    )


def _seats(made: Prediction) -> Table:
    asked = made.budget.seats
    return Table(
        title="Seats",
        columns=(
            Column("engine", "", "left"),
            Column("outcome", "", "left"),
            Column("block", "tokens"),
            Column("padding", "%", spare=1),
            Column("pool", "blocks"),
            Column("slots", "per seat"),
            Column("state", "GiB needed"),
            Column("room", "GiB"),
            Column("seats", "asked"),
            Column("ceiling", "seats"),
            Column("fit", "seats"),
        ),
        rows=[_seat_line(row, asked) for row in made.engines],
        notes=[f"{row.engine}: {reason}" for row in made.engines if (reason := _reason(row))],
    )


def _seat_line(row: EngineForecast, asked: int) -> list[str]:
    got = row.allocation
    if got is None:
        return [row.engine, "not predicted", *["-"] * 6, whole(asked), "-", "-"]
    return [
        row.engine,
        got.outcome,
        whole(got.block_tokens),
        percent(got.padding, 2) if row.unified else "-",
        whole(got.pool_blocks),
        whole(got.state_slots_per_seat),
        gib(got.state_bytes_needed),
        gib(got.state_bytes_available),
        whole(asked),
        whole(got.seat_ceiling),
        whole(got.seats_that_fit),
    ]


def _reason(row: EngineForecast) -> str:
    return row.error or (row.allocation.reason if row.allocation else "")


def _prompts(row: EngineForecast, groups: int) -> Table:
    unified = row.unified and groups > 0
    states = (
        Column("attention", "blocks", spare=1),
        Column("states", "unpatched", spare=1),
        Column("peak", "unpatched"),
        Column("states", "patched", spare=1),
        Column("peak", "patched"),
        Column("change", "%"),
        Column("plateau", "un- / patched", spare=1),
        Column("follow-up", "cached tokens", spare=1),
    )
    notes = [
        f"{prompt.prompt_tokens:,} tokens: retained states per group {_series(prompt.retained_unpatched)} unpatched against "
        f"{_series(prompt.retained_patched)} patched, counted before each step allocates"
        for prompt in row.prompts
    ]
    return Table(
        title=f"Blocks of one prompt alone, {row.engine}",
        columns=(
            Column("prompt", "tokens"),
            Column("output", "tokens"),
            Column("steps"),
            *(states if unified else (Column("peak", "blocks"),)),
            Column("fits"),
        ),
        rows=[_prompt_line(prompt, groups if unified else 0) for prompt in row.prompts],
        notes=notes if unified else (),
    )


def _prompt_line(prompt: PromptForecast, groups: int) -> list[str]:
    without, fixed = prompt.unpatched, prompt.patched
    states = [
        whole(fixed.attention_blocks),
        f"{groups} x {without.held}",
        whole(without.blocks),
        f"{groups} x {fixed.held}",
        whole(fixed.blocks),
        f"{100 * (fixed.blocks / without.blocks - 1):+.1f}",
        f"{without.plateau_blocks} / {fixed.plateau_blocks}",
        whole(prompt.follow_up_cached_tokens),
    ]
    return [
        whole(prompt.prompt_tokens),
        whole(prompt.output_tokens),
        whole(prompt.steps),
        *(states if groups else [whole(without.blocks)]),
        {None: "-", True: "yes", False: "no"}[prompt.fits],
    ]


def _series(series: Sequence[tuple[int, int]]) -> str:
    """ "4, 5, 6, ..., 16": the ramp to the largest count, its middle left out."""
    counts = [states for _, states in series]
    ramp = list(dict.fromkeys(counts[: counts.index(max(counts)) + 1])) if counts else []
    if not ramp:
        return "-"
    return ", ".join(map(str, ramp)) if len(ramp) <= 4 else f"{ramp[0]}, {ramp[1]}, {ramp[2]}, ..., {ramp[-1]}"


# --- beside a run ---------------------------------------------------------------------------------------------------------


def comparison_text(found: Comparison, simulated: bool, width: int) -> str:
    """A run beside its prediction, for a terminal; where nothing is predicted, why."""
    table = prediction_table(found, simulated)
    return (
        as_text(table, width)
        if table
        else "\n".join(
            _comparison_notes(found)
            or ["no pressure cell of this run has figures: there is nothing to hold a prediction against"]
        )
    )


def prediction_table(found: Comparison | None, simulated: bool) -> Table | None:
    """Peaks that the arithmetic expects beside those that were measured, over all boots of an arm; findings stand below."""
    if found is None:
        return None
    groups: dict[tuple[str, int], list[Compared]] = {}
    for row in found.rows:
        if row.predicted_blocks is not None:
            groups.setdefault((row.arm, row.prompt_tokens), []).append(row)
    if not groups:
        return None
    return Table(
        title="Prediction beside measurement",
        columns=(
            Column("arm", "", "left"),
            Column("prompt", "tokens"),
            Column("predicted", "blocks"),
            Column("exact", "blocks"),
            Column("sampled", "blocks"),
            Column("measured", "- predicted"),
            Column("boots"),
            Column("null-gap fix", "", "left"),
        ),
        rows=[_predicted(arm, prompt, rows) for (arm, prompt), rows in groups.items()],
        notes=_comparison_notes(found),
        simulated=simulated,
    )


def _comparison_notes(found: Comparison) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for row in found.rows:
        if row.predicted_blocks is None:
            reasons.setdefault(row.reason or "no prediction", []).append(row.arm)
    notes = [f"{', '.join(dict.fromkeys(arms))}: not predicted, {reason}" for reason, arms in reasons.items()]
    alike: dict[tuple[str, str], list[str]] = {}
    for finding in found.findings:
        text = _ANY_LEG.sub("", finding.text)
        alike.setdefault((finding.name, text.partition(",")[0]), []).append(text)
    for (name, _), texts in alike.items():
        last = list(dict.fromkeys(texts))
        notes.append(f"{name}: {last[-1]}" + (f" ({len(last) - 1} more like it)" if len(last) > 1 else ""))
    return notes


_ANY_LEG = re.compile(r", leg \d+(?=[,:])")


def _predicted(arm: str, prompt: int, rows: Sequence[Compared]) -> list[str]:
    """Boots that agree are one figure, others "53 / 54"."""
    measured = [row.exact_blocks if row.exact_blocks is not None else row.sampled_blocks for row in rows]
    off = [
        None if m is None or row.predicted_blocks is None else m - row.predicted_blocks
        for m, row in zip(measured, rows, strict=True)
    ]
    return [
        arm,
        whole(prompt),
        _each(whole(row.predicted_blocks) for row in rows),
        _each(whole(row.exact_blocks) for row in rows),
        _each(whole(row.sampled_blocks) for row in rows),
        _each("-" if o is None else (f"{o:+d}" if o else "0") for o in off),
        whole(len({row.leg for row in rows})),
        "with" if rows[0].fixed else "without",
    ]


def _each(values: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(values))
