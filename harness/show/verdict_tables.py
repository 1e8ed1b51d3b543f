"""The tables of a verdict: rules, configuration, paired pressure, outputs, timing. The same for console, comment and page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evenhand.judge.equality import Comparison, Pair
from evenhand.judge.fairness import Reason
from evenhand.judge.ledger import LedgerRow
from evenhand.judge.pressure import PairedPressure
from evenhand.judge.timing import TimingResult
from evenhand.judge.verdict import RuleVerdict, Verdict
from evenhand.records import Manifest
from evenhand.show.table import Column, Table, number, whole
from evenhand.units import gib

SHOWN_PAIRS = 20
"""Diverging requests that a table lists; all are counted."""
CONFIGURATION = (
    "engine", "version", "commit", "patched files (sha256)", "model", "model files (sha256)", "draft", "drafted depth",
    "seats resolved", "pool blocks", "pool block tokens", "cannot express",
)  # fmt: skip
"""Facts of the ledger that a comment always shows; facts that differ are shown too."""


def signed_percent(share: float | None) -> str:
    """ "-40.5" for -0.405; "-" for null."""
    if share is None:
        return "-"
    text = f"{share * 100:+.1f}"
    return "0.0" if float(text) == 0 else text


def rules_table(verdict: Verdict) -> Table:
    """One line per rule: what was asked, what became of it, why."""
    return Table(
        title="Rules",
        columns=(Column("rule", "", "left"), Column("status", "", "left"), Column("why", "", "left")),
        rows=[[rule.text, rule.status, _why(rule, verdict.reasons)] for rule in verdict.rules],
        simulated=verdict.simulated,
    )


def _why(rule: RuleVerdict, reasons: Sequence[Reason]) -> str:
    """The reason; broken preconditions are listed once, below, and not in every row."""
    broken = sum(reason.text in rule.reason for reason in reasons) if rule.status == "void" else 0
    if not broken:
        return rule.reason
    return f"{broken} precondition{'s are' if broken > 1 else ' is'} broken, listed below"


def configuration_facts(verdict: Verdict) -> list[LedgerRow]:
    """The facts that name the configuration, and every fact in which the arms differ."""
    return [f for f in verdict.ledger if any(f.values.values()) and (f.differs or f.name in CONFIGURATION)]


def configuration_table(verdict: Verdict) -> Table | None:
    """What both arms' engines resolved, as far as it names the configuration or differs."""
    arms = [verdict.baseline, verdict.candidate]
    rows = [
        ["!=" if fact.differs else "", fact.name, *(fact.values.get(arm) or "-" for arm in arms)]
        for fact in configuration_facts(verdict)
    ]
    if not rows:
        return None
    return Table(
        title="Configuration",
        columns=(Column("", "", "left"), Column("fact", "", "left"), *(Column(arm, "", "left") for arm in arms)),
        rows=rows,
        notes=["!= marks facts in which the arms differ; the other facts are in the fairness ledger"],
        simulated=verdict.simulated,
    )


def box_table(manifest: Manifest) -> Table:
    """The machine and the software, as recorded when the run began."""
    machine = dict(manifest.machine)
    memory = machine.pop("memory_bytes", None)
    rows = [[str(name), str(value)] for name, value in machine.items() if value is not None]
    if isinstance(memory, int):
        rows.append(["memory", f"{gib(memory)} GiB"])
    rows += [["evenhand", manifest.evenhand], *([name, version] for name, version in manifest.versions.items())]
    rows += [["started", manifest.started_utc], ["ended", manifest.ended_utc or "-"]]
    return Table(
        title="Box",
        columns=(Column("fact", "", "left"), Column("value", "", "left")),
        rows=rows,
        simulated=manifest.simulated,
    )


# --- pressure -------------------------------------------------------------------------------------------------------------


def paired_tables(verdict: Verdict) -> list[Table]:
    """Peaks of both arms side by side; rows with a large cached prefix stand in a table of their own."""
    large = [row for row in verdict.pressure if row.prefix == "large"]
    others = [row for row in verdict.pressure if row.prefix != "large"]
    found = []
    if others:
        found.append(_paired_table("Peak pool pressure, paired", others, verdict))
    if large:
        found.append(_paired_table("Peak pool pressure, paired, large cached prefix", large, verdict))
    return found


def _paired_table(title: str, rows: Sequence[PairedPressure], verdict: Verdict) -> Table:
    notes = [f"{verdict.baseline} is the baseline, {verdict.candidate} the candidate; the highest peak of all boots of each"]
    if not all(row.exact for row in rows):
        notes.append("sampled peaks are lower bounds: a prefill's own peak can hide between two samples")
    notes.append(
        "extra tokens: pool tokens that the baseline held beyond the candidate at its peak, per prompt token; "
        "settle: blocks in use once idle"
    )
    notes += [f"{row.cell}: {row.reason}" for row in rows if row.reason]
    return Table(
        title=title,
        columns=(
            Column("cell", "", "left"),
            Column("prompt", "tokens"),
            Column("baseline", "peak blocks"),
            Column("candidate", "peak blocks"),
            Column("difference", "blocks", spare=1),
            Column("change", "%"),
            Column("ratio", spare=1),
            Column("peak is", "", "left"),
            Column("A/A spread", "blocks", spare=1),
            Column("samples", spare=1),
            Column("settle", "blocks", spare=1),
            Column("cached prefix", "tokens", spare=1),
            Column("extra tokens", "per prompt token", spare=1),
            Column("retained states", "", "left"),
        ),
        rows=[_paired_line(row, all(r.cell == f"pressure/{r.prompt_tokens}" for r in rows)) for row in rows],
        notes=notes,
        simulated=verdict.simulated,
    )


def _paired_line(row: PairedPressure, plain: bool) -> list[str]:
    """`plain`: every cell is named by its prompt length alone, so the name would say it twice."""
    judged = row.blocks is not None
    return [
        "-" if plain else row.cell,
        whole(row.prompt_tokens),
        whole(row.baseline_blocks),
        whole(row.candidate_blocks),
        "-" if row.blocks is None else (f"{row.blocks:+d}" if row.blocks else "0"),
        signed_percent(row.change),
        "-" if row.ratio is None else f"{row.ratio:.3f}",
        ("exact" if row.exact else "sampled") if judged else "-",
        whole(row.spread_blocks),
        _both(row.baseline_samples, row.candidate_samples),
        _both(row.baseline_settle_blocks, row.candidate_settle_blocks),
        _both(row.baseline_cached, row.candidate_cached),
        "-" if row.extra_tokens_per_prompt_token is None else f"{row.extra_tokens_per_prompt_token:.2f}",
        row.retained or "-",
    ]


def _both(a: int | None, b: int | None) -> str:
    """ "47 / 46"; "-" where neither is known."""
    return "-" if a is None and b is None else f"{whole(a)} / {whole(b)}"


# --- outputs --------------------------------------------------------------------------------------------------------------


def outputs_table(verdict: Verdict) -> Table | None:
    """Requests compared between the arms, pair by pair, and the baseline with itself."""
    named = [("arms", c) for c in verdict.comparisons] + [("control", c) for c in verdict.controls]
    if not named:
        return None
    notes = [f"arms: {verdict.candidate} against {verdict.baseline}, by boot pair; control: {verdict.baseline} against itself"]
    result = verdict.outputs
    if result is not None and result.planted is not None:
        notes.append(f"planted fault: {result.planted.what}")
    if result is not None and result.control_compared is None:
        notes.append("no control: the baseline was not compared with itself")
    return Table(
        title="Outputs",
        columns=(
            Column("kind", "", "left"),
            Column("boots", "", "left"),
            Column("compared"),
            Column("identical"),
            Column("differ"),
            Column("near ties", spare=1),
            Column("unpaired", spare=1),
            Column("failed"),
            Column("ids known", spare=1),
            Column("cached differ", spare=1),
        ),
        rows=[[kind, *_comparison_line(c, verdict)] for kind, c in named],
        notes=notes,
        simulated=verdict.simulated,
    )


def _comparison_line(found: Comparison, verdict: Verdict) -> list[str]:
    """Without the arms' names, which a note says once."""
    label = found.label.removesuffix(f": {verdict.candidate} against {verdict.baseline}").removesuffix(
        f" of {verdict.baseline}"
    )
    counts = (
        found.compared, found.identical, found.mismatches, found.classes.get("near tie", 0), found.unpaired, found.failed,
        found.ids_known, found.cached_differ,
    )  # fmt: skip
    return [label, *(whole(n) for n in counts)]


def divergence_table(verdict: Verdict) -> Table | None:
    """First divergence of each request that differs between the arms, with both tokens and the margin there."""
    seen: dict[Pair, int] = {}
    for comparison in verdict.comparisons:
        for pair in comparison.pairs:
            if pair.mismatch:
                seen[pair] = seen.get(pair, 0) + 1
    pairs = list(seen)
    if not pairs:
        return None
    notes = ["near tie: the two best tokens lie within 0.01 nat; it explains, it never excuses"]
    if all(pair.margin_nat is None for pair in pairs):
        notes[0] = "margins are not known: no untimed replay asked for log-probabilities"
    total = sum(c.mismatches for c in verdict.comparisons)
    shown = sum(seen[pair] for pair in pairs[:SHOWN_PAIRS])
    if total > shown:
        notes.append(f"{shown} of {total} differences are listed")
    return Table(
        title="First divergences",
        columns=(
            Column("request", "", "left"),
            Column("boot pairs", "in which"),
            Column("class", "", "left"),
            Column("token", "index"),
            Column("baseline", "token id"),
            Column("candidate", "token id"),
            Column("byte", spare=1),
            Column("margin", "nat", spare=1),
            Column("what", "", "left"),
        ),
        rows=[_divergence_line(pair, f"{seen[pair]} of {len(verdict.comparisons)}") for pair in pairs[:SHOWN_PAIRS]],
        notes=notes,
        simulated=verdict.simulated,
    )


def _divergence_line(pair: Pair, where: str) -> list[str]:
    tokens = ["-", "-"] if pair.tokens is None else ["end" if t is None else str(t) for t in pair.tokens]
    return [
        pair.key,
        where,
        pair.kind,
        whole(pair.index),
        *tokens,
        whole(pair.byte),
        "-" if pair.margin_nat is None else f"{pair.margin_nat:.4g}",
        pair.detail,
    ]


# --- timing ---------------------------------------------------------------------------------------------------------------


def timing_table(verdict: Verdict) -> Table | None:
    """Every timing rule: change, its 90 % interval, the A/A control beside it, and the power there was."""
    if not verdict.timing:
        return None
    notes = ["change: candidate against baseline, + is worse; the boot is the unit, the interval is 90 %"]
    for result in verdict.timing:
        if result.cells:
            each = ", ".join(f"{cell} {signed_percent(change)} %" for cell, change in result.cells.items())
            notes.append(f"{result.rule} by cell, for information: {each}")
    return Table(
        title="Timing",
        columns=(
            Column("rule", "", "left"),
            Column("status", "", "left"),
            Column("baseline"),
            Column("candidate"),
            Column("unit", "", "left"),
            Column("change", "%"),
            Column("from", "%"),
            Column("to", "%"),
            Column("margin", "%"),
            Column("A/A change", "%", spare=1),
            Column("A/A spread", "%", spare=1),
            Column("sign flip", "p", spare=1),
            Column("pairs", "had / needed", spare=1),
            Column("could pass", "%", spare=1),
            Column("planted", "", "left", spare=1),
        ),
        rows=[_timing_line(result) for result in verdict.timing],
        notes=[*notes, *verdict.power],
        simulated=verdict.simulated,
    )


def _timing_line(result: TimingResult) -> list[str]:
    decision, control = result.decision, result.control
    spread = decision.spread if decision else None
    rate = result.rule == "throughput"
    figures = [_mean(result.baseline), _mean(result.candidate)]
    return [
        result.rule,
        result.status,
        *(number(v if v is None or rate else v * 1e3) for v in figures),
        "tokens/s" if rate else "ms",
        _change(spread.mean if spread else None),
        _change(spread.low if spread else None),
        _change(spread.high if spread else None),
        f"{result.margin * 100:g}",
        _change(control.spread.mean if control else None),
        "-" if result.control_spread is None else f"{result.control_spread * 100:.1f}",
        "-" if spread is None or spread.p is None else f"{spread.p:.3g}",
        f"{len(spread.d) if spread else 0} / {result.pairs_needed}",
        "-" if decision is None or decision.smallest_margin is None else f"{decision.smallest_margin * 100:.1f}",
        {True: "seen", False: "not seen", None: "-"}[result.planted_seen],
    ]


def _change(log_ratio: float | None) -> str:
    return "-" if log_ratio is None else signed_percent(math.expm1(log_ratio))


def _mean(values: Sequence[float | None]) -> float | None:
    """Geometric mean over legs; null where any is missing."""
    known = [v for v in values if v is not None and v > 0]
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if known and len(known) == len(values) else None


# --- device ---------------------------------------------------------------------------------------------------------------


def device_table(verdict: Verdict) -> Table | None:
    """Clocks, power and memory of every device, per arm."""
    if not verdict.gpu:
        return None
    devices = dict.fromkeys(gpu.uuid for gpu in verdict.gpu)
    return Table(
        title="Devices",
        columns=(
            Column("arm", "", "left"),
            Column("device", "", "left"),
            Column("busy", "samples"),
            Column("clock", "MHz"),
            Column("power cap", "% of busy"),
            Column("power limit", "W", spare=1),
            Column("memory peak", "GiB", spare=1),
            Column("slowdowns", "", "left"),
            Column("foreign pids", "", "left"),
        ),
        rows=[
            [
                gpu.arm,
                gpu.uuid if len(devices) > 1 else "-",
                whole(gpu.busy),
                number(gpu.clock_mhz, 4),
                "-" if gpu.power_cap_share is None else f"{gpu.power_cap_share * 100:.1f}",
                "/".join(f"{w:g}" for w in gpu.power_limits_w) or "-",
                gib(gpu.memory_peak_bytes),
                _observed(None if gpu.slowdowns is None else [f"{name} in {count}" for name, count in gpu.slowdowns.items()]),
                _observed(gpu.foreign_pids),
            ]
            for gpu in verdict.gpu
        ],
        notes=[f"one device: {uuid}" for uuid in devices if len(devices) == 1],
        simulated=verdict.simulated,
    )


def _observed(found: Sequence[object] | None) -> str:
    return "not observed" if found is None else ", ".join(map(str, found)) or "none"


def memory_table(verdict: Verdict) -> Table | None:
    """Device memory of every arm against its budget."""
    if not verdict.memory:
        return None
    return Table(
        title="Device memory",
        columns=(
            Column("arm", "", "left"),
            Column("before boot", "GiB"),
            Column("idle", "GiB"),
            Column("per sequence", "GiB"),
            Column("pool budget", "GiB"),
            Column("beyond weights", "GiB"),
            Column("bounded", "", "left"),
            Column("why", "", "left"),
        ),
        rows=[
            [
                m.arm,
                gib(m.before_bytes),
                gib(m.idle_bytes),
                "-" if m.slope_gib_per_sequence is None else f"{m.slope_gib_per_sequence:+.3f}",
                gib(m.budget_bytes),
                gib(m.beyond_weights_bytes),
                {True: "yes", False: "no", None: "-"}[m.bounded],
                m.bounded_reason or m.slope_reason or "-",
            ]
            for m in verdict.memory
        ],
        simulated=verdict.simulated,
    )
