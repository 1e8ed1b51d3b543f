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
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as results/NAME-STAMP.")]


def fail(sentence: object, code: int = 2) -> NoReturn:
    """One sentence on stderr, and out."""
    from evenhand.boot.log import printable

    typer.echo(f"evenhand: {printable(str(sentence))}", err=True)
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
        from evenhand.execute import with_tiny_models
        from evenhand.show.dry import dry_run_text

        try:
            typer.echo(dry_run_text(with_tiny_models(scenario), plan))
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


@app.command()
def judge(run: RunFolder) -> None:
    """Judge a stored run again, without its engines: same tables, same verdict, same exit code."""
    from evenhand.recover import recover

    try:
        recover(run)
    except _known_errors() as error:
        fail(error)
    raise typer.Exit(_report(run))


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
        typer.echo(f"{target} written; its relative paths count from its own folder")
        return
    import tomllib

    for file in sorted(shipped_folder().glob("*.toml")):
        data = tomllib.loads(file.read_text("utf-8"))
        typer.echo(f"{file.stem:24} {data.get('description', '')}")


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
    except (*_known_errors(), OSError) as error:
        fail(error)
    for file in files:
        typer.echo(f"{file}")


def main() -> None:
    """Entry point: errors that we know are one sentence, Ctrl-C is 130."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
