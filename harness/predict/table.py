"""Text of `evenhand predict`: Markdown tables that also read well in a console. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.predict.findings import Finding
from evenhand.predict.forecast import EngineForecast, Prediction, PromptForecast, predict
from evenhand.predict.pages import GIB

__all__ = ["findings_text", "markdown", "predict", "render"]


def render(prediction: Prediction) -> str:
    """The whole prediction: model and pages, seats by engine, peaks by prompt length, findings."""
    model, budget = prediction.model, prediction.budget
    shape = model.shape
    lines = [
        f"# Prediction for {model.source}",
        "",
        f"{model.layers} layers: {shape.attention_layers} attention, {shape.state_layers} recurrent state. "
        f"Cache {model.cache_dtype}, state {model.state_dtype if shape.state_layers else 'none'}, "
        f"depth {budget.depth} (drafted tokens), {budget.seats} seats, batch {budget.batch_tokens:,} tokens, "
        f"{'one step' if budget.in_flight else 'no step'} in flight.",
        "",
        markdown(("figure", "value"), _pages(prediction), left=2),
        "",
        "## Seats",
        "",
        markdown(_SEATS, [_seat_row(row, budget.seats) for row in prediction.engines], left=2),
    ]
    reasons = [f"- {row.engine}: {reason}" for row in prediction.engines if (reason := _reason(row))]
    if reasons:
        lines += ["", *reasons]
    for row in prediction.engines:
        if row.prompts:
            lines += ["", *_prompts(row, prediction.state_groups)]
    lines += ["", findings_text(prediction.findings)]
    return "\n".join(lines) + "\n"


def findings_text(findings: Sequence[Finding]) -> str:
    """Findings as a list that stands under a table."""
    if not findings:
        return "Findings: none."
    return "\n".join(["Findings", "", *(f"- **{finding.name}**: {finding.text}" for finding in findings)])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """A Markdown table with aligned columns; the first `left` columns are text, the others figures."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(head))]
    shown = [
        "| "
        + " | ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (w + 2) if i < left else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([shown[0], rule, *shown[1:]])


_SEATS = (
    "engine",
    "outcome",
    "block, tokens",
    "padding",
    "pool, blocks",
    "slots per seat",
    "state needed, GiB",
    "available, GiB",
    "seats asked",
    "seat ceiling",
    "seats that fit",
)


def _pages(prediction: Prediction) -> list[tuple[str, str]]:
    shape, budget = prediction.model.shape, prediction.budget
    rows = [("attention, per token and layer", f"{prediction.attn_bytes_per_token:,} B")]
    if shape.state_layers:
        rows += [
            ("state page, per layer and slot", f"{prediction.state_page_bytes:,} B"),
            ("unified block", f"{prediction.block_tokens} tokens, padding {prediction.padding:.2%}"),
            ("state groups beside attention", str(prediction.state_groups)),
        ]
    rows.append(("block over all its layers", f"{prediction.block_bytes:,} B"))
    if shape.state_layers:
        what = f"state of {budget.seats} seats, {1 + budget.depth} slots each"
        rows.append((what, f"{prediction.state_need_bytes:,} B = {_gib(prediction.state_need_bytes)} GiB"))
    return rows


def _seat_row(row: EngineForecast, asked: int) -> list[str]:
    got = row.allocation
    if got is None:
        return [row.engine, "not predicted", *["-"] * 6, str(asked), "-", "-"]
    return [
        row.engine,
        got.outcome,
        f"{got.block_tokens:,}",
        f"{got.padding:.2%}" if row.unified else "-",
        _count(got.pool_blocks),
        str(got.state_slots_per_seat),
        _gib(got.state_bytes_needed),
        _gib(got.state_bytes_available),
        str(asked),
        _count(got.seat_ceiling),
        _count(got.seats_that_fit),
    ]


def _reason(row: EngineForecast) -> str:
    return row.error or (row.allocation.reason if row.allocation else "")


def _prompts(row: EngineForecast, groups: int) -> list[str]:
    title = f"## Blocks of one prompt alone, {row.engine}"
    if not row.unified or not groups:
        head: tuple[str, ...] = ("prompt", "output", "steps", "peak, blocks", "fits")
        return [title, "", markdown(head, [_plain_row(prompt) for prompt in row.prompts], left=0)]
    head = (
        "prompt",
        "output",
        "steps",
        "attention",
        "states unpatched",
        "peak unpatched",
        "states patched",
        "peak patched",
        "change",
        "plateaus",
        "follow-up cached",
        "fits",
    )
    table = markdown(head, [_prompt_row(prompt, groups) for prompt in row.prompts], left=0)
    notes = [
        f"- {prompt.prompt_tokens:,} tokens, retained states per group: {_series(prompt.retained_unpatched)} unpatched "
        f"against {_series(prompt.retained_patched)} patched, counted before each step allocates"
        for prompt in row.prompts
    ]
    return [title, "", table, "", *notes]


def _plain_row(prompt: PromptForecast) -> list[str]:
    return [
        f"{prompt.prompt_tokens:,}",
        str(prompt.output_tokens),
        str(prompt.steps),
        f"{prompt.unpatched.blocks:,}",
        _yes(prompt.fits),
    ]


def _prompt_row(prompt: PromptForecast, groups: int) -> list[str]:
    without, fixed = prompt.unpatched, prompt.patched
    return [
        f"{prompt.prompt_tokens:,}",
        str(prompt.output_tokens),
        str(prompt.steps),
        str(fixed.attention_blocks),
        f"{groups} x {without.held}",
        f"{without.blocks:,}",
        f"{groups} x {fixed.held}",
        f"{fixed.blocks:,}",
        f"{fixed.blocks / without.blocks - 1:+.1%}",
        f"{without.plateau_blocks} / {fixed.plateau_blocks}",
        _count(prompt.follow_up_cached_tokens),
        _yes(prompt.fits),
    ]


def _series(series: Sequence[tuple[int, int]]) -> str:
    """ "4, 5, 6, ..., 16": the ramp to the largest count, its middle left out."""
    counts = [states for _, states in series]
    ramp = list(dict.fromkeys(counts[: counts.index(max(counts)) + 1])) if counts else []
    if not ramp:
        return "-"
    return ", ".join(map(str, ramp)) if len(ramp) <= 4 else f"{ramp[0]}, {ramp[1]}, {ramp[2]}, ..., {ramp[-1]}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _gib(value: int | None) -> str:
    return "-" if value is None else f"{value / GIB:.2f}"


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"
