"""Mangled scenario files and run folders for the command line, in this process: nothing but a sentence may come of them."""

from __future__ import annotations

import copy
import json
import shutil
import tomllib
import traceback
import unicodedata
from pathlib import Path
from typing import Any

from e2e_cli import MODEL, Cli, only, toml
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from evenhand.cli import app
from evenhand.load import shipped_folder

CODES = frozenset({0, 1, 2, 3, 4})

BOTH = f"""name = "e2e"
model = "{MODEL}"
seats = 4
context = 8192
prefix_caching = true
seed = 3
[pool]
blocks = 100
[[arm]]
name = "base"
engine = "reference"
options = {{ clock = {{ base_s = 0.005 }} }}
[[arm]]
name = "other"
engine = "reference"
options = {{ null_gap_fix = true, clock = {{ base_s = 0.005 }} }}
[ladder]
concurrency = [1, 2]
prompt_tokens = 32
output_tokens = 3
requests = 3
[pressure]
prompt_tokens = [2000]
output_tokens = 4
[watch]
interval_s = 0.05
probe = true
[gate]
baseline = "base"
candidate = "other"
pairs = 2
warm_boot = false
[gate.rules]
outputs = "identical"
peak_pool = "not worse"
tpot_p50 = {{ not_worse_by = 0.05 }}
errors = 0
engine_errors = 0
[deadlines]
settle_s = 0.5
stop_s = 2.0
release_s = 1.0
"""

odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(1 << 70), max_value=1 << 70),
    st.sampled_from([0, -1, 1, 1 << 31, 1 << 63, 1e308, -1e308, 5e-324, 0.5, float("inf"), float("nan")]),
    st.sampled_from(
        ["", " ", "ok", "0", "..", "../../x", "/etc/passwd", "\x1b[31mred\x1b]0;t\x07", "\x00", "\u202e\u2028", "x" * 5000]
    ),
    st.sampled_from(["<script>alert(1)</script>", "=1+1", "|a|b|", "@all", "tiny:dense", "NaN", "9" * 400, "\ud800"]),
    st.text(max_size=20),
    st.sampled_from([[], {}, [[]], [{}], {"": {}}, [1, "a", None], {"a": [{"b": None}]}]),
)


def places(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of every value in a tree."""
    found = [at] if at else []
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        found += places(value, (*at, key))
    return found


def put(tree: Any, at: tuple[Any, ...], value: Any, how: str) -> Any:
    """A copy with the value at a path replaced, removed or doubled."""
    tree = copy.deepcopy(tree)
    node = tree
    for key in at[:-1]:
        node = node[key]
    if how == "remove":
        del node[at[-1]]
    elif how == "double" and isinstance(node, list):
        node.insert(0, copy.deepcopy(node[at[-1]]))
    elif how == "rename" and isinstance(node, dict):
        node[f"{at[-1]}_"] = node.pop(at[-1])
    else:
        node[at[-1]] = value
    return tree


def at_place(tree: Any, place: tuple[Any, ...]) -> Any:
    """The value at a path."""
    for key in place:
        tree = tree[key]
    return tree


def alike(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same type, which a row's schema lets through, and now and then any."""
    kinds: dict[type, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.one_of(st.sampled_from([0, -1, 1, 2, 999, 1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 63]), st.integers(-5, 5)),
        float: st.sampled_from([0.0, -1.0, 1e-300, 1e308, -1e308, 0.5, 1e19]),
        str: st.one_of(
            st.sampled_from(
                ["ok", "void", "died", "queued", "failed", "a", "base", "other", "ladder/c=1", "ladder/c=", "pressure/x", ""]
            ),
            st.sampled_from(["\x1b[31mred\x1b]0;t\x07", "\u202e", "../..", "0" * 300, "<b>", "=1+1"]),
        ),
        list: st.just([]),
        dict: st.just({}),
    }
    same = kinds.get(type(value), odd_values)
    return st.one_of(same, same, same, odd_values, st.none())


hows = st.sampled_from(["replace", "replace", "replace", "remove", "double", "rename"])


@st.composite
def mangled_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes cut, doubled, overwritten or flipped somewhere."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        end = min(len(data), at + draw(st.integers(0, 40)))
        patch = draw(
            st.one_of(
                st.binary(max_size=8), st.sampled_from([b"", b"\n", b'"', b"{", b"[" * 200, b"\x00", b"\xff\xfe", b"1e999"])
            )
        )
        how = draw(st.sampled_from(["cut", "overwrite", "double", "flip"]))
        if how == "cut":
            data = data[:at] if draw(st.booleans()) else data[:at] + data[end:]
        elif how == "double":
            data = data[:end] + data[at:]
        elif how == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
        else:
            data = data[:at] + patch + data[end:]
    return data


@st.composite
def scenario_files(draw: st.DrawFn) -> bytes:
    """A shipped scenario, or one with everything in it, mangled."""
    files = sorted(shipped_folder().glob("*.toml"))
    there = f'"{shipped_folder()}/'.encode()
    shipped = [
        f.read_bytes().replace(b'"models/', there + b"models/").replace(b'"patches/', there + b"patches/") for f in files
    ]
    source = draw(st.sampled_from([*shipped, BOTH.encode()]))
    if draw(st.booleans()):
        return draw(mangled_bytes(source))
    tree = tomllib.loads(source.decode())
    for _ in range(draw(st.integers(1, 3))):
        if not (paths := places(tree)):
            break
        tree = put(tree, draw(st.sampled_from(paths)), draw(odd_values), draw(hows))
    return as_toml(tree).encode("utf-8", "surrogatepass")


def as_toml(tree: dict[str, Any]) -> str:
    """Any tree as inline TOML (what TOML cannot say becomes text)."""

    def value(item: Any) -> str:
        if isinstance(item, dict):
            return "{ " + ", ".join(f"{json.dumps(str(key))} = {value(one)}" for key, one in item.items()) + " }"
        if isinstance(item, list):
            return "[" + ", ".join(value(one) for one in item) + "]"
        if item is None:
            return '""'
        if isinstance(item, float):
            return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(repr(item), repr(item))
        return toml(item)

    return "\n".join(f"{json.dumps(str(key))} = {value(item)}" for key, item in tree.items()) + "\n"


class Folders:
    """Finished runs to mangle copies of."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.runs: list[Path] = []
        for verb in ("run", "gate"):
            (home / verb).mkdir(parents=True)
            cli = Cli(home / verb)
            ended = cli.run(verb, cli.scenario(BOTH), "--out", "out")
            assert ended.code in CODES, ended
            self.runs.append(only(home / verb / "out"))
        self._count = 0

    def fresh(self, run: Path) -> Path:
        """A copy (the one before is removed)."""
        shutil.rmtree(self.home / "copy", ignore_errors=True)
        return Path(shutil.copytree(run, self.home / "copy" / run.name))


FILES = (
    *["manifest.json"] * 4,
    "cells.jsonl",
    "legs.jsonl",
    "events.jsonl",
    "sha256.json",
    "000-base/requests.jsonl",
    "000-base/samples.jsonl",
    "000-base/gpu.jsonl",
    "000-base/probe.jsonl",
    "001-other/requests.jsonl",
)

GPU = (
    b'{"leg":0,"t_ns":1,"uuid":"GPU-a","index":0,"memory_used_bytes":1,"memory_total_bytes":2,"utilisation_pct":50.0,'
    b'"sm_clock_mhz":1500,"power_w":100.0,"clock_reasons":0,"power_limit_w":700.0,"temperature_c":40.0,"foreign_pids":[]}\n'
)
"""Where a machine has no GPU."""


@st.composite
def mangled_rows(draw: st.DrawFn, file: Path) -> bytes:
    """The file with some rows mangled as bytes or as values."""
    data = (file.read_bytes() if file.exists() else b"") or GPU
    if draw(st.integers(0, 3)) == 0:
        return draw(mangled_bytes(data))
    lines = [data] if file.suffix == ".json" else data.splitlines()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        try:
            tree = json.loads(lines[at])
            paths = places(tree)
            place = draw(st.sampled_from(paths))
            changed = put(tree, place, draw(alike(at_place(tree, place))), draw(hows))
            lines[at] = json.dumps(changed).encode()
        except (ValueError, IndexError, KeyError):
            continue
    return b"\n".join(lines) + b"\n"


def invoke(*args: object) -> Result:
    """The command line in this process. Raises AssertionError for a traceback, a strange exit code or a control character."""
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError("".join(traceback.format_exception(result.exception)))
    assert result.exit_code in CODES, result.output
    wrong = {c for c in result.output if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"}
    assert not wrong, (wrong, result.output)
    return result
