"""Read a scenario file: find it, decode it, resolve its paths, and turn every mistake into one sentence.

The sentence names the file, the key, what was found, and what would do.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from evenhand import scenario as sc
from evenhand.engines.base import EngineError
from evenhand.engines.registry import attaches, engine_names
from evenhand.judge.rules import RuleError, parse_rules
from evenhand.records import Outcome
from evenhand.units import parse_bytes

MAX_SCENARIO_BYTES = 1 << 20
MAX_CONCURRENCY = 16384
"""Streams of one client: each has a socket and a source port of its own."""
MAX_DEADLINE_S = 7 * 24 * 3600
MAX_PAIRS = 1000
METHODS = ("draft_model", "ngram", "mtp", "eagle", "eagle3", "dflash", "suffix", "medusa")


class ScenarioError(Exception):
    """One sentence for the user: file, key, found, remedy."""


def shipped_folder() -> Path:
    """Folder of the shipped scenarios, in a wheel or in a checkout."""
    import evenhand.scenarios

    return Path(next(iter(evenhand.scenarios.__path__)))


def find(name: str) -> Path:
    """The scenario file: a path, or the name of a shipped one ("demo", "scenarios/demo.toml"). Raises ScenarioError."""
    try:
        path = Path(name).expanduser()
        if path.is_file():
            return path.resolve()
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ScenarioError(f"{name[:200]}: there is no such scenario file ({why})") from error
    folder = shipped_folder()
    stem = path.name.removesuffix(".toml")
    if str(path.parent) in (".", "scenarios") and (folder / f"{stem}.toml").is_file():
        return folder / f"{stem}.toml"
    shipped = sorted(p.stem for p in folder.glob("*.toml"))
    close = difflib.get_close_matches(stem, shipped, 1)
    hint = f"did you mean {close[0]}?" if close else f"shipped scenarios are {', '.join(shipped)}"
    raise ScenarioError(f"{name}: there is no such scenario file; {hint}")


def load(name: str, overrides: Sequence[str] = ()) -> tuple[sc.Scenario, Path]:
    """Read, override (`ladder.concurrency=1,2`), check and resolve a scenario. Raises ScenarioError."""
    path = find(name)
    try:
        if path.stat().st_size > MAX_SCENARIO_BYTES:
            raise ScenarioError(f"{path}: the file is larger than {MAX_SCENARIO_BYTES} bytes; a scenario is a short TOML text")
        data = tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path}: this is not TOML: {error}; see a shipped scenario for the form") from error
    except RecursionError as error:
        raise ScenarioError(f"{path}: values are nested too deeply; see a shipped scenario for the form") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from error
    for text in overrides:
        _override(data, text, path)
    _check_leaves(data, path)
    scenario = _convert(data, path)
    _check(scenario, path)
    return _resolve(scenario, path), path


# --- overrides --------------------------------------------------------------------------------------------------------


def _override(data: dict[str, Any], text: str, path: Path) -> None:
    """Apply `key.path=value`; the value is TOML, or a bare text, or a comma list where the key takes a list."""
    key, sep, raw = text.partition("=")
    keys = [part.strip() for part in key.split(".")]
    if not sep or not all(keys):
        raise ScenarioError(f"--set {text}: this is not KEY=VALUE; write for example --set ladder.concurrency=1,2")
    kind = _type_at(keys)
    value: Any
    try:
        value = tomllib.loads(f"v = {raw}")["v"]
    except RecursionError as error:
        raise ScenarioError(f"--set {text[:80]}...: values are nested too deeply") from error
    except tomllib.TOMLDecodeError:
        try:
            value = tomllib.loads(f"v = [{raw}]")["v"] if "," in raw else raw
        except tomllib.TOMLDecodeError:
            value = raw
    if typing.get_origin(kind) is list and not isinstance(value, list):
        value = [value]
    if kind is str and not isinstance(value, str):
        value = raw
    node: Any = data
    for position, part in enumerate(keys[:-1]):
        if isinstance(node, list):
            node = _arm_named(node, part, text)
            continue
        node = node.setdefault(part, {})
        if not isinstance(node, dict | list):
            raise ScenarioError(f"--set {text}: {'.'.join(keys[: position + 1])} is a value, not a section of {path.name}")
    if isinstance(node, list):
        raise ScenarioError(f"--set {text}: name one arm, such as --set arm.NAME.env.X=1")
    node[keys[-1]] = value


def _arm_named(arms: list[Any], name: str, text: str) -> dict[str, Any]:
    for arm in arms:
        if isinstance(arm, dict) and arm.get("name") == name:
            return arm
    raise ScenarioError(f"--set {text}: no arm is called {name!r}")


def _type_at(keys: list[str]) -> Any:
    """Declared type of the key at a path, None when there is no such key (conversion says so later)."""
    kind: Any = sc.Scenario
    for part in keys:
        if isinstance(kind, types.UnionType):
            kind = next((o for o in typing.get_args(kind) if o is not type(None)), None)
        if typing.get_origin(kind) in (list, dict):
            kind = typing.get_args(kind)[-1]  # an arm's name, or any key of a table
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            kind = typing.get_type_hints(kind).get(part)
        else:
            return None
    if isinstance(kind, types.UnionType):
        options = [o for o in typing.get_args(kind) if o is not type(None)]
        return options[0] if len(options) == 1 else kind
    return kind


def _check_leaves(node: Any, path: Path, key: str = "") -> None:
    """What no row can hold and no program can be given, wherever it stands."""
    if isinstance(node, dict):
        for name, value in node.items():
            _check_leaves(value, path, f"{key}.{name}" if key else name)
    elif isinstance(node, list):
        for value in node:
            _check_leaves(value, path, key)
    elif isinstance(node, int) and not -(1 << 63) <= node < 1 << 63:
        raise ScenarioError(f"{path}: key {key!r}: found {node}; whole numbers have at most 64 bits")
    elif isinstance(node, float) and not math.isfinite(node):
        raise ScenarioError(f"{path}: key {key!r}: found {node}; give a finite number")
    elif isinstance(node, str) and "\0" in node:
        raise ScenarioError(f"{path}: key {key!r}: found a NUL character; no program takes one")


# --- conversion -------------------------------------------------------------------------------------------------------


def _convert(data: dict[str, Any], path: Path) -> sc.Scenario:
    try:
        return msgspec.convert(data, sc.Scenario)
    except msgspec.ValidationError as error:
        raise ScenarioError(_sentence(str(error), data, path)) from error


def _sentence(message: str, data: dict[str, Any], path: Path) -> str:
    """One sentence from msgspec's message."""
    text, _, where = message.partition(" - at `$")
    where = where.strip("`.")
    section = f"[{where}] " if where and "[" not in where else ""
    if match := re.search(r"unknown field `([^`]*)`", text):
        known = _known_keys(where)
        close = difflib.get_close_matches(match[1], known, 1)
        key = f"{where}.{match[1]}" if where else match[1]
        remedy = f"did you mean {close[0]!r}?" if close else f"known keys there are {', '.join(known)}"
        return f"{path}: key {key!r} is not known; {remedy}"
    if match := re.search(r"missing required field `([^`]*)`", text):
        key = f"{where}.{match[1]}" if where else match[1]
        return f"{path}: key {key!r} is missing; {_needed(match[1])}"
    found = _value_at(data, where)
    if match := re.fullmatch(r"Expected `([^`]*)`, got `\w+`", text):
        return f"{path}: key {where!r}: found {found!r}; give {_kinds(match[1])}"
    return f"{path}: {section}key {where!r}: found {found!r}, but {text[:1].lower()}{text[1:]}; correct the value"


def _kinds(types_: str) -> str:
    """msgspec's names of types, for people."""
    words = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}
    words |= {"array": "a list", "object": "a table", "null": ""}
    said = [words.get(name, name) for name in types_.split(" | ")]
    return " or ".join(word for word in said if word)


def _needed(key: str) -> str:
    remedies = {
        "name": "give it a short name",
        "model": "give the model's folder (make a tiny one with `evenhand tiny-model OUT --kind dense`)",
        "arm": "add at least one [[arm]] with name and engine",
        "engine": f"name one of {', '.join(engine_names())}",
        "concurrency": "give a list such as [1, 2, 4, 8]",
        "prompt_tokens": "give a list of prompt lengths such as [3000, 6000]",
        "baseline": "name the arm that stands for the code as it is",
        "candidate": "name the arm that carries the change",
        "method": f"name one of {', '.join(METHODS)}",
        "depth": "give the number of drafted tokens per step",
    }
    return remedies.get(key, "add it")


def _known_keys(where: str) -> list[str]:
    kind: Any = sc.Scenario
    for part in [p for p in re.split(r"[.\[\]]+", where) if p and p != "..."]:
        if part.isdigit():
            continue
        hints = typing.get_type_hints(kind)
        for option in _flatten(hints.get(part)):
            if isinstance(option, type) and issubclass(option, msgspec.Struct):
                kind = option
                break
    return [f.name for f in msgspec.structs.fields(kind)]


def _flatten(kind: Any) -> list[Any]:
    inner = typing.get_args(kind)
    return [leaf for part in inner for leaf in _flatten(part)] if inner else [kind]


def _value_at(data: Any, where: str) -> Any:
    node = data
    for part in [p for p in re.split(r"[.\[\]]+", where) if p and p != "..."]:
        try:
            node = node[int(part)] if isinstance(node, list) else node[part]
        except (KeyError, IndexError, ValueError, TypeError):
            return None
    return node


# --- meaning ----------------------------------------------------------------------------------------------------------


def _check(scenario: sc.Scenario, path: Path) -> None:
    """Rules that types cannot say."""

    def wrong(key: str, found: object, remedy: str) -> ScenarioError:
        return ScenarioError(f"{path}: key {key!r}: found {found!r}; {remedy}")

    if not scenario.arm:
        raise wrong("arm", [], "add at least one [[arm]] with name and engine")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,60}", scenario.name):
        raise wrong("name", scenario.name, "use letters, digits, '.', '_' and '-', at most 60 (it names the run's folder)")
    names = [arm.name for arm in scenario.arm]
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,59}", name):
            raise wrong("arm.name", name, "use letters, digits, '.', '_', '+' and '-', at most 60")
    if len(set(names)) != len(names):
        raise wrong("arm.name", names, "give every arm a name of its own")
    known = engine_names()
    for arm in scenario.arm:
        if arm.engine not in known:
            close = difflib.get_close_matches(arm.engine, known, 1)
            raise wrong(
                f"arm.{arm.name}.engine", arm.engine, f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            )
        if attaches(arm.engine) and not arm.url:
            raise wrong(f"arm.{arm.name}.url", arm.url, "an attached engine needs its url, such as http://127.0.0.1:8000")
        if arm.url is not None and not attaches(arm.engine):
            raise wrong(
                f"arm.{arm.name}.url", arm.url, 'this engine is started here; engine = "attached" measures a server at a url'
            )
        if sum(x is not None for x in (arm.patch, arm.patches, arm.commit)) > 1:
            raise wrong(f"arm.{arm.name}", arm.name, "give one of patch, patches or commit")
        if (arm.commit is None) != (arm.source is None):
            raise wrong(
                f"arm.{arm.name}.commit", arm.commit, "commit and source go together: source is the folder of the git checkout"
            )
        if arm.build is not None and (arm.commit is None or not _inside(arm.executable)):
            raise wrong(
                f"arm.{arm.name}.build",
                arm.build,
                "a build needs source, commit, and executable: the file that it makes, seen from the source's folder",
            )
        _check_pool(arm.pool, f"arm.{arm.name}.pool", wrong)
        _check_draft(arm.draft, f"arm.{arm.name}.draft", wrong)
    _check_pool(scenario.pool, "pool", wrong)
    _check_draft(scenario.draft, "draft", wrong)
    if not (scenario.ladder or scenario.pressure or scenario.reuse):
        raise ScenarioError(f"{path}: nothing to run: add a [ladder], a [pressure] or a [reuse] section")
    if not scenario.served_name:
        raise wrong("served_name", "", "give the name that the model is served under")
    if scenario.seed < 0:
        raise wrong("seed", scenario.seed, "give a whole number of at least 0")
    for key in ("seats", "context", "chunk_tokens"):
        if (value := getattr(scenario, key)) is not None and value < 1:
            raise wrong(key, value, "give a number of at least 1")
    if scenario.ladder:
        ladder = scenario.ladder
        _check_positive("ladder.concurrency", ladder.concurrency, wrong)
        if max(ladder.concurrency) > MAX_CONCURRENCY:
            raise wrong("ladder.concurrency", max(ladder.concurrency), f"one machine drives at most {MAX_CONCURRENCY} streams")
        for key in ("prompt_tokens", "output_tokens", "burst"):
            if getattr(ladder, key) < 1:
                raise wrong(f"ladder.{key}", getattr(ladder, key), "give a number of at least 1")
        if ladder.requests is not None and ladder.requests < 1:
            raise wrong("ladder.requests", ladder.requests, "give at least 1, or leave it out for max(20, 5c)")
        if ladder.arrivals != "closed" and (ladder.rate is None or ladder.rate <= 0):
            raise wrong("ladder.rate", ladder.rate, f"{ladder.arrivals} arrivals need a rate in requests per second above 0")
        if len(set(ladder.concurrency)) != len(ladder.concurrency):
            raise wrong("ladder.concurrency", ladder.concurrency, "name each rung once")
        _check_context(scenario, "ladder", ladder.prompt_tokens + ladder.output_tokens, wrong)
    if scenario.pressure:
        _check_positive("pressure.prompt_tokens", scenario.pressure.prompt_tokens, wrong)
        if len(set(scenario.pressure.prompt_tokens)) != len(scenario.pressure.prompt_tokens):
            raise wrong("pressure.prompt_tokens", scenario.pressure.prompt_tokens, "name each length once")
        _check_context(
            scenario, "pressure", max(scenario.pressure.prompt_tokens) + (scenario.pressure.output_tokens or 1), wrong
        )
    if scenario.reuse:
        _check_positive("reuse.prefix_tokens", scenario.reuse.prefix_tokens, wrong)
    if not 0.005 <= scenario.watch.interval_s <= 60:
        raise wrong("watch.interval_s", scenario.watch.interval_s, "give 0.005 to 60 seconds (0.25 by default)")
    for field in msgspec.structs.fields(sc.Deadlines):
        if not 0 < getattr(scenario.deadlines, field.name) <= MAX_DEADLINE_S:
            value = getattr(scenario.deadlines, field.name)
            raise wrong(f"deadlines.{field.name}", value, f"give seconds above 0 and at most {MAX_DEADLINE_S} (a week)")
    if scenario.prompts.source == "file" and not scenario.prompts.file:
        raise wrong("prompts.file", None, 'source = "file" needs the path of a text or JSONL file')
    if scenario.gate:
        for key in ("baseline", "candidate"):
            if getattr(scenario.gate, key) not in names:
                raise wrong(f"gate.{key}", getattr(scenario.gate, key), f"name one of the arms: {', '.join(names)}")
        if scenario.gate.baseline == scenario.gate.candidate:
            raise wrong(
                "gate.candidate",
                scenario.gate.candidate,
                "name two arms; for an A/A gate write the same arm twice under two names",
            )
        if scenario.gate.pairs > MAX_PAIRS:
            raise wrong("gate.pairs", scenario.gate.pairs, f"give at most {MAX_PAIRS}: each pair boots both arms")
        if scenario.gate.pairs < 1:
            raise wrong(
                "gate.pairs", scenario.gate.pairs, "give at least 1 (2 for outputs and exact peaks, 6 for three timing rules)"
            )
        if not scenario.gate.rules:
            raise wrong("gate.rules", {}, 'add rules such as outputs = "identical", or the gate could never fail')
        try:
            parse_rules(scenario.gate.rules)
        except RuleError as error:
            raise ScenarioError(f"{path}: {error}") from error
    outcomes = typing.get_args(Outcome)
    cells = expectable(scenario)
    for key, value in scenario.expect.items():
        if value not in outcomes:
            raise wrong(f"expect.{key}", value, f"use one of {', '.join(outcomes)}")
        if key not in cells:
            close = difflib.get_close_matches(key, cells, 1)
            raise wrong(
                "expect", key, f"no such cell is planned; {f'did you mean {close[0]}?' if close else 'write ARM@CONCURRENCY'}"
            )


def expectable(scenario: sc.Scenario) -> list[str]:
    """Names that `expect` may use: ARM@CONCURRENCY and ARM@pressure/LENGTH."""
    names = []
    for arm in scenario.arm:
        names += [f"{arm.name}@{c}" for c in (scenario.ladder.concurrency if scenario.ladder else [])]
        names += [f"{arm.name}@pressure/{n}" for n in (scenario.pressure.prompt_tokens if scenario.pressure else [])]
        names += [f"{arm.name}@reuse/{n}" for n in (scenario.reuse.prefix_tokens if scenario.reuse else [])]
    return names


def _check_positive(key: str, values: list[int], wrong: Any) -> None:
    if not values or any(v < 1 for v in values):
        raise wrong(key, values, "give a list of whole numbers of at least 1")


def _check_context(scenario: sc.Scenario, section: str, needed: int, wrong: Any) -> None:
    if scenario.context is not None and needed > scenario.context:
        raise wrong(
            "context",
            scenario.context,
            f"[{section}] needs {needed} tokens of prompt and output; raise context to at least that",
        )


def _check_pool(pool: sc.PoolSection | None, key: str, wrong: Any) -> None:
    if pool is None:
        return
    given = [k for k in ("blocks", "bytes", "fraction", "tokens") if getattr(pool, k) is not None]
    if len(given) > 1:
        raise wrong(key, given, "give only one of blocks, bytes, fraction and tokens")
    for name in ("bytes", "state_bytes"):
        try:
            if (value := getattr(pool, name)) is not None and parse_bytes(value) < 1:
                raise ValueError("give a size above 0")
        except ValueError as error:
            raise wrong(f"{key}.{name}", getattr(pool, name), str(error)) from error
    if pool.fraction is not None and not 0 < pool.fraction <= 1:
        raise wrong(f"{key}.fraction", pool.fraction, "give a share above 0 and at most 1")
    for name in ("blocks", "tokens", "block_tokens"):
        if (value := getattr(pool, name)) is not None and value < 1:
            raise wrong(f"{key}.{name}", value, "give a number of at least 1")


def _check_draft(draft: sc.Draft | None, key: str, wrong: Any) -> None:
    if draft is None:
        return
    if draft.method not in METHODS:
        close = difflib.get_close_matches(draft.method, METHODS, 1)
        raise wrong(f"{key}.method", draft.method, f"did you mean {close[0]!r}?" if close else f"known: {', '.join(METHODS)}")
    if draft.depth < 1:
        raise wrong(f"{key}.depth", draft.depth, "give at least 1 drafted token, or leave the draft out")


def _inside(path: str | None) -> bool:
    return bool(path) and not Path(path or "").is_absolute() and ".." not in Path(path or "").parts


# --- paths ------------------------------------------------------------------------------------------------------------


def _resolve(scenario: sc.Scenario, path: Path) -> sc.Scenario:
    """Paths relative to the scenario's folder become absolute; `~` and $VARIABLES are expanded. Missing ones are mistakes."""

    def place(text: str | None, key: str, what: str, *, bare: bool = False) -> str | None:
        if text is None:
            return None
        if text.startswith("tiny:"):
            if text not in ("tiny:dense", "tiny:hybrid"):
                raise ScenarioError(f"{path}: key {key!r}: found {text!r}; tiny models are tiny:dense and tiny:hybrid")
            return text
        expanded = os.path.expandvars(text)
        if "$" in expanded:
            name = re.findall(r"\$\{?(\w+)", expanded)
            variable = name[0] if name else "?"
            raise ScenarioError(
                f"{path}: key {key!r}: found {text!r}, but the environment variable {variable} is not set; set it to the {what}"
            )
        file = Path(expanded).expanduser()
        if bare and "/" not in expanded:
            return expanded  # looked up on PATH
        if not file.is_absolute():
            here = path.parent / file
            file = here if here.exists() or not file.exists() else file
        if not file.exists():
            raise ScenarioError(
                f"{path}: key {key!r}: found {text!r}, but there is no such {what} ({file}); give one that exists"
            )
        return str(file if bare or what.startswith("Python") else file.resolve())

    def draft(d: sc.Draft | None, key: str) -> sc.Draft | None:
        return d and msgspec.structs.replace(d, model=place(d.model, f"{key}.model", "draft model folder"))

    def executable(arm: sc.Arm) -> str | None:
        made = arm.build is not None  # by the build: not there yet
        return arm.executable if made else place(arm.executable, f"arm.{arm.name}.executable", "executable", bare=True)

    arms = [
        msgspec.structs.replace(
            arm,
            executable=executable(arm),
            environment=place(arm.environment, f"arm.{arm.name}.environment", "Python environment"),
            patch=place(arm.patch, f"arm.{arm.name}.patch", "patch file"),
            patches=place(arm.patches, f"arm.{arm.name}.patches", "folder of patches"),
            source=place(arm.source, f"arm.{arm.name}.source", "source folder"),
            model=place(arm.model, f"arm.{arm.name}.model", "model"),
            draft=draft(arm.draft, f"arm.{arm.name}.draft"),
        )
        for arm in scenario.arm
    ]
    try:
        arms = [arm if arm.build is None else _placed(arm) for arm in arms]
    except EngineError as error:
        raise ScenarioError(f"{path}: key 'arm.commit': {error}") from None
    attached_only = all(attaches(arm.engine) for arm in arms)
    return msgspec.structs.replace(
        scenario,
        arm=arms,
        model=scenario.model if attached_only else place(scenario.model, "model", "model folder"),
        tokenizer=place(scenario.tokenizer, "tokenizer", "tokenizer"),
        draft=draft(scenario.draft, "draft"),
        prompts=msgspec.structs.replace(scenario.prompts, file=place(scenario.prompts.file, "prompts.file", "prompt file")),
    )


def _placed(arm: sc.Arm) -> sc.Arm:
    from evenhand.boot.build import placed

    return placed(arm)
