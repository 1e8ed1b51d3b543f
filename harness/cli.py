"""The command line: one thin function per verb. Heavy modules are imported inside the verbs, so that --help is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

app = typer.Typer(
    name="evenhand",
    help="Compare LLM inference engines even-handedly: ladders, cache-pool pressure, and merge gates.\n\n"
    "Start with `evenhand run demo` (no GPU, no model needed), then `evenhand scenarios` for files to copy.",
    epilog="Exit codes: 0 every cell ok or as expected, 1 a gate rule failed, 2 no figures or a usage error, "
    "3 the control failed, 4 inconclusive, 130 Ctrl-C, 143 SIGTERM.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Scenario = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A TOML file, or the name of a shipped scenario (see `evenhand scenarios`).")
]
Out = Annotated[Path, typer.Option("--out", help="Folder for runs.", show_default=True)]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. --set ladder.concurrency=1,2.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print every leg and its exact command line; start nothing.")]
Resume = Annotated[
    Path | None, typer.Option("--resume", metavar="RUN", help="Go on with an interrupted run: do only what is missing.")
]
Live = Annotated[
    int | None, typer.Option("--live", metavar="PORT", help="Serve progress for Prometheus on this loopback port.")
]


def fail(sentence: object, code: int = 2) -> NoReturn:
    """One sentence on stderr, and out."""
    from evenhand.show.table import clean

    typer.echo(f"evenhand: {clean(str(sentence))}", err=True)
    raise typer.Exit(code)


def _known_errors() -> tuple[type[Exception], ...]:
    from evenhand.errors import KNOWN

    return KNOWN


@app.command()
def run(
    scenario: Scenario,
    out: Out = Path("results"),
    set_: Set = None,
    dry_run: DryRun = False,
    resume: Resume = None,
    live: Live = None,
) -> None:
    """Run a scenario: boot each arm, climb the ladder, watch the pool, print the tables.

    Exits 0 when every cell is ok or as the scenario expects, 2 when some cell has no figures.
    """
    _execute("run", scenario, out, set_, dry_run, resume, live)


@app.command()
def gate(
    scenario: Scenario,
    out: Out = Path("results"),
    set_: Set = None,
    dry_run: DryRun = False,
    resume: Resume = None,
    live: Live = None,
) -> None:
    """Gate a change on a paired A/B: boots in ABBA order, outputs bit for bit, peaks and times by rule.

    Writes verdict.json and verdict.md (ready for a pull request).
    Exits 0 pass, 1 fail, 2 void, 3 control failed, 4 inconclusive.
    """
    _execute("gate", scenario, out, set_, dry_run, resume, live)


def _execute(
    kind: str, name: str, out: Path, overrides: list[str] | None, dry_run: bool, resume: Path | None, live: int | None
) -> None:
    from evenhand.load import ScenarioError, load
    from evenhand.plan import make_plan

    try:
        scenario, file = load(name, overrides or ())
        plan = make_plan(scenario, "gate" if kind == "gate" else "run")
    except (ScenarioError, ValueError) as error:
        fail(error)
    if dry_run:
        from evenhand.execute import scenario_sha256, with_tiny_models
        from evenhand.secrecy import without_secrets
        from evenhand.show.dry import dry_run_text, took_before

        try:
            placed = with_tiny_models(scenario)
            before = took_before(out, scenario.name, kind, scenario_sha256(placed))
            typer.echo(without_secrets(dry_run_text(placed, plan, before), scenario))
        except _known_errors() as error:
            fail(error)
        return
    from evenhand.execute import execute
    from evenhand.show.progress import listener

    try:
        with listener(live) as tell:
            path, interrupted = execute(scenario, file, plan, out, overrides or (), tell, resume)
    except _known_errors() as error:
        fail(error)
    code = _report(path)
    raise typer.Exit(interrupted if interrupted is not None else code)


def _report(path: Path) -> int:
    """Print what a run shows, write its verdict; the exit code."""
    from evenhand.show.console import summarise

    try:
        text, code = summarise(path)
    except _known_errors() as error:
        fail(error)
    typer.echo(text)
    return code


def _folders(runs: list[Path]) -> list[Path]:
    """Of several names, as a shell's * gives them, the folders; one name alone is taken as it is."""
    return [run for run in runs if run.is_dir()] or runs if len(runs) > 1 else runs


@app.command()
def judge(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, such as results/NAME-STAMP.")],
) -> None:
    """Judge stored runs again, without their engines: same tables, same verdict, same exit code (of several, the gravest)."""
    from evenhand.recover import recover

    code = 0
    for n, run in enumerate(runs := _folders(runs)):
        if len(runs) > 1:
            typer.echo(("\n" if n else "") + f"==> {run}\n")
        try:
            recover(run)
        except _known_errors() as error:
            fail(error)
        code = min((c for c in (code, _report(run)) if c), default=0)  # 1 fail before 2 void before 3 and 4
    raise typer.Exit(code)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, such as results/NAME-STAMP.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for reports.", show_default=True)] = Path("reports"),
    fixed: Annotated[
        str, typer.Option("--fixed-arms", help="Comma list of arms whose engine frees recurrent states behind null blocks.")
    ] = "",
) -> None:
    """Write a report of each stored run: one HTML file that needs no network, Markdown, CSV tables, SVG and PNG pictures."""
    from evenhand.show.report import report as write

    try:
        for page in write(_folders(runs), out, [arm for arm in fixed.split(",") if arm]):
            typer.echo(f"{page}")
    except _known_errors() as error:
        fail(error)


@app.command()
def history(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="A folder of runs, such as results.")] = Path("results"),
    metric: Annotated[
        str, typer.Option("--metric", help="throughput, ttft_p50, ttft_p95, tpot_p50 or peak_pool.", show_default=True)
    ] = "throughput",
    scenario: Annotated[
        str | None, typer.Option("--scenario", metavar="NAME", help="Scenario to follow; by default the newest run's.")
    ] = None,
    arm: Annotated[str | None, typer.Option("--arm", help="Arm to follow; by default the one that most runs have.")] = None,
    cell: Annotated[str | None, typer.Option("--cell", help='Cell to follow, such as "ladder/c=8".')] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the picture.", show_default=True)] = Path("reports"),
) -> None:
    """List the runs of one scenario and draw one metric over them; changes that leave the noise are marked."""
    from evenhand.show.history import draw, history_table
    from evenhand.show.history import history as read
    from evenhand.show.table import as_text, terminal_width

    try:
        found = read(results, metric, arm, cell, scenario)
        typer.echo(as_text(history_table(found), terminal_width()) + "\n")
        for file in draw(found, out / f"history-{metric}"):
            typer.echo(f"{file}")
    except _known_errors() as error:
        fail(error)


@app.command()
def scenarios(
    copy: Annotated[str | None, typer.Option("--copy", metavar="NAME", help="Copy one here to edit.")] = None,
) -> None:
    """List the scenarios that ship with evenhand, or copy one to edit."""
    from evenhand.load import ScenarioError, find, shipped_folder

    if copy:
        try:
            file = find(copy)
        except ScenarioError as error:
            fail(error)
        target = Path(file.name)
        if target.exists():
            fail(f"{target} exists already; move it away first")
        target.write_bytes(file.read_bytes())
        beside = _copy_beside(file, Path())
        typer.echo(" and ".join([str(target), *beside]) + " written; relative paths count from the scenario's own folder")
        return
    import tomllib

    for file in sorted(shipped_folder().glob("*.toml")):
        data = tomllib.loads(file.read_text("utf-8"))
        typer.echo(f"{file.stem:24} {data.get('description', '')}")


def _copy_beside(file: Path, here: Path) -> list[str]:
    """Copy what a shipped scenario names in its own folder (models, patches), so that the copy runs as it is."""
    import re
    import shutil

    done = []
    for name in dict.fromkeys(re.findall(r'"((?:models|patches)/[^"]+)"', file.read_text("utf-8"))):
        source, target = file.parent / name, here / name
        if source.exists() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
            done.append(name)
    return done


@app.command("tiny-model")
def tiny_model(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    kind: Annotated[
        str, typer.Option("--kind", help="dense or hybrid (3 gated-delta-net layers to 1 attention layer).")
    ] = "dense",
    gguf: Annotated[bool, typer.Option("--gguf", help="Also write the same weights as GGUF (dense only).")] = False,
) -> None:
    """Write a tiny random-weight checkpoint with its tokenizer, offline and without torch; real engines serve it."""
    if kind not in ("dense", "hybrid"):
        fail(f"--kind {kind}: no such kind; use dense or hybrid")
    from evenhand.tiny_model import write_tiny_model

    try:
        files = write_tiny_model(out, "hybrid" if kind == "hybrid" else "dense", gguf=gguf)
    except _known_errors() as error:
        fail(error)
    except OSError as error:
        fail(f"cannot write {out}: {error.strerror or error}")
    for file in files:
        typer.echo(f"{file}")


@app.command()
def predict(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL", help="Folder with config.json, or the file itself; with --from the run's own is used."),
    ] = None,
    engines: Annotated[
        str, typer.Option("--engines", help="Comma list of engines whose allocation rule is asked.")
    ] = "vllm,sglang,vllm.cpp",
    seats: Annotated[int, typer.Option("--seats", help="Sequences that are to run at once.")] = 1,
    depth: Annotated[int, typer.Option("--depth", help="Drafted tokens per step.")] = 0,
    context: Annotated[int, typer.Option("--context", help="Longest prompt and output, tokens.")] = 8192,
    batch: Annotated[int, typer.Option("--batch", help="Tokens one step may batch (max_num_batched_tokens).")] = 2048,
    pool_blocks: Annotated[
        int | None, typer.Option("--pool-blocks", help="Blocks of the pool, in the engine's own unit.")
    ] = None,
    pool_bytes: Annotated[str | None, typer.Option("--pool-bytes", help='Bytes of the pool, such as "14.625 GiB".')] = None,
    state_bytes: Annotated[str | None, typer.Option("--state-bytes", help="Bytes free beside the pool (two pools).")] = None,
    block_tokens: Annotated[int | None, typer.Option("--block-tokens", help="Block size that is asked for.")] = None,
    prompts: Annotated[str, typer.Option("--prompts", help="Comma list of prompt lengths, tokens.")] = "",
    output: Annotated[int, typer.Option("--output", help="Output tokens of each prompt.")] = 16,
    cache_dtype: Annotated[str | None, typer.Option("--cache-dtype", help="KV cache type, e.g. bfloat16, fp8.")] = None,
    state_dtype: Annotated[
        str | None, typer.Option("--state-dtype", help="Recurrent state's type, e.g. float32, float16.")
    ] = None,
    drafter: Annotated[bool, typer.Option("--drafter", help="The drafter is an EAGLE or MTP head.")] = False,
    in_flight: Annotated[
        bool, typer.Option("--in-flight/--no-in-flight", help="A step is in flight while the next is scheduled.")
    ] = True,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Put the prediction beside what this run measured.")
    ] = None,
    fixed: Annotated[
        str, typer.Option("--fixed-arms", help="With --from: arms whose engine frees recurrent states behind null blocks.")
    ] = "",
) -> None:
    """What the cache pool should need, before anything runs: pages, slots, seats, refusals and peaks, by each engine's rule."""
    from evenhand.engines import engine
    from evenhand.predict.pages import PredictError
    from evenhand.predict.shape import Budget
    from evenhand.show.prediction import comparison_text, prediction_text
    from evenhand.show.table import terminal_width
    from evenhand.units import parse_bytes

    try:
        if from_ is not None:
            from evenhand.predict.config import read_model
            from evenhand.predict.from_run import compare_run
            from evenhand.show.judged import kept_model
            from evenhand.store import open_run

            run = open_run(from_)
            types = {"cache_dtype": cache_dtype, "state_dtype": state_dtype}
            found = kept_model(run, **types) if model is None else read_model(model, **types)
            compared = compare_run(run, found, fixed_arms=[arm for arm in fixed.split(",") if arm])
            typer.echo(comparison_text(compared, run.manifest.simulated, terminal_width()))
            return
        if model is None:
            fail("predict needs a MODEL (a folder with config.json), or --from RUN, which kept the config of its own")
        from evenhand.predict.forecast import predict as predict_pool

        budget = Budget(
            seats=seats,
            depth=depth,
            context_tokens=context,
            batch_tokens=batch,
            pool_blocks=pool_blocks,
            pool_bytes=None if pool_bytes is None else parse_bytes(pool_bytes),
            state_bytes=None if state_bytes is None else parse_bytes(state_bytes),
            block_tokens=block_tokens,
            in_flight=in_flight,
            drafter=drafter,
        )
        if not all(part.strip().isdecimal() for part in prompts.split(",") if part.strip()):
            fail(f"--prompts {prompts}: give prompt lengths such as 14000,21000")
        lengths = [int(part) for part in prompts.split(",") if part.strip()]
        asked = [engine(name.strip()) for name in engines.split(",")]
        made = predict_pool(
            model, asked, budget, lengths, output_tokens=output, cache_dtype=cache_dtype, state_dtype=state_dtype
        )
        typer.echo(prediction_text(made, terminal_width()))
    except KeyError as error:
        fail(error.args[0])
    except (*_known_errors(), PredictError, ValueError) as error:  # type: ignore[misc]
        fail(error)


@app.command()
def overhead(
    concurrency: Annotated[str, typer.Option("--concurrency", help="Comma list of streams at once.")] = "1,8,32,128,256",
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the sampler's effect.")] = False,
) -> None:
    """Measure the client itself: stamp error and lag per concurrency, CPU per event, highest rate, sampler's effect.

    A calibration server stamps each event with the clock that the kernel stamps with, so the truth is known. About two minutes.
    """
    from evenhand.drive.overhead import as_markdown, measure

    try:
        counts = [int(part) for part in concurrency.split(",")]
        if not counts or min(counts) < 1:
            raise ValueError
    except ValueError:
        fail(f"--concurrency {concurrency}: give whole numbers of at least 1, such as 1,32,256")
    found = measure(counts, sampler_rounds=0 if quick else 15, say=lambda line: typer.echo(line, err=True))
    typer.echo(as_markdown(found))


def main() -> None:
    """Every verb; errors that we know are one sentence. Raises KeyboardInterrupt on Ctrl-C."""
    try:
        app()
    except BrokenPipeError:
        sys.exit(141)
