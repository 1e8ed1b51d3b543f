"""Hostile input: one sentence for a mistake, no way out of a folder, no secret in a file, nothing raw on a terminal."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from e2e_cli import MODEL, Cli, cells, manifest, only, rows, text
from fuzzing import invoke

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("run", "~nosuchuser/x"), "no such scenario file"),
        (("run", "x" * 5000), "no such scenario file"),
        (("run", "/dev/zero", "--dry-run"), "no such scenario file"),
        (("run", "demo", "--live", "99999999"), "choose a free port"),
        (("judge", "x" * 5000), "is no folder"),
        (("report", "/nonexistent"), "is no folder"),
        (("history", "/nonexistent"), "is no folder"),
        (("predict", "/dev/zero"), "is no file"),
        (("predict", MODEL, "--prompts", "x,y"), "give prompt lengths"),
        (("predict",), "needs a MODEL (a folder with config.json), or --from RUN"),
        (("predict", MODEL, "--pool-bytes", "abc"), "is no size"),
        (("scenarios", "--copy", "demo/../../etc/passwd"), "no such scenario file"),
        (("run", "demo", "--dry-run", "--set", "seed=99999999999999999999999999"), "at most 64 bits"),
        (("run", "demo", "--dry-run", "--set", "served_name="), "served_name"),
        (("run", "demo", "--dry-run", "--set", "ladder.concurrency=100000000"), "at most 16384 streams"),
        (("run", "demo", "--dry-run", "--set", "deadlines.ready_s=nan"), "give a finite number"),
        (("run", "demo", "--dry-run", "--set", "deadlines.ready_s=inf"), "give a finite number"),
        (("run", "demo", "--dry-run", "--set", "deadlines.ready_s=1e15"), "at most 604800"),
        (("run", "demo", "--dry-run", "--set", "arm.vllm.options.clock.base_s=nan"), "give a finite number"),
        (("gate", "vllm-cpu-gate", "--dry-run", "--set", "gate.pairs=1000000000"), "give at most 1000"),
        (("run", "demo", "--dry-run", "--set", "seed=" + "[" * 5000 + "]" * 5000), "nested too deeply"),
        (("run", "demo", "--dry-run", "--set", "arm.vllm.name=../../x"), "use letters"),
        (("run", "demo", "--dry-run", "--set", "name=../x"), "use letters"),
        (("run", "demo", "--dry-run", "--set", 'arm.vllm.env.VLLM_X="a\\u0000b"'), "NUL"),
    ],
)
def test_a_mistake_is_one_sentence(
    args: tuple[object, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*args)
    assert result.exit_code == 2
    assert words in result.output, result.output
    assert not list(tmp_path.glob("results/*"))


def test_names_from_outside_reach_no_shell_and_no_terminal(cli: Cli) -> None:
    """A served name, an argument and an environment full of shell, and an engine that talks in escape sequences."""
    name = "$(touch pwned) `touch pwned`; touch pwned | \u202ered <script>alert(1)</script>"
    content = text(
        concurrency=(1,),
        requests=2,
        output=3,
        top=f"served_name = '{name}'",
        arms={"good": {}, "loud": {"boot_text": "\x1b[31mred\x1b]0;title\x07\x1b[2J\u202e refused: <script>alert(1)</script>"}},
        deadlines="stop_s = 2.0\nsettle_s = 0.5\nready_s = 20.0",
    )
    ended = cli.run("run", cli.scenario(content), "--out", "out")
    assert ended.code == 2, ended
    run = only(cli.folder / "out")
    found = cells(run)
    assert found["good ladder/c=1"]["outcome"] == "ok", found
    assert found["loud ladder/c=1"]["outcome"] in ("refused", "launch_failed")
    assert not list(cli.folder.rglob("pwned"))
    assert not list(MODEL.parent.rglob("pwned"))
    reported = cli.run("report", run, "--out", "reports")
    assert "Traceback" not in reported.all
    for said in (ended.all, reported.all):
        assert not set(said) & {"\x1b", "\x07", "\u202e"}, said
    for file in [p for folder in (run / "tables", cli.folder / "reports") for p in folder.rglob("*") if p.suffix != ".png"]:
        if file.is_file():
            data = file.read_bytes()
            assert b"<script>alert" not in data, file
            assert b"\x1b" not in data, file


def test_no_secret_is_written_anywhere(cli: Cli) -> None:
    """In the environment, in a scenario's env and args, in an override, and repeated by the engine in its log."""
    secrets = {
        "HF_TOKEN": "hf_envenvenvenvenvenvenvenv",
        "VLLM_API_KEY": "inherited-key-0123456789",
        "NCCL_PASSWORD": "inherited-password",
    }
    told = "using hf_token='hf_loglogloglogloglogloglog' key inherited-key-0123456789 mine-0123456789"
    content = text(
        concurrency=(1,),
        requests=2,
        output=3,
        arms={"tells": {"boot_text": told}},
        deadlines="stop_s = 2.0\nsettle_s = 0.5\nready_s = 20.0",
    ).replace(
        'engine = "reference"',
        'engine = "reference"\nenv = { MY_SECRET = "mine-0123456789", VLLM_X = "1" }\n'
        'args = ["--api-key", "sk-argsargsargsargsargsargs"]',
    )
    override = "arm.tells.env.OTHER_TOKEN=override-0123456789"
    ended = cli.run("run", cli.scenario(content), "--out", "out", "--set", override, env=secrets)
    assert ended.code == 2, ended
    run = only(cli.folder / "out")
    cli.run("report", run, "--out", "reports")
    hidden = [*secrets.values(), "hf_logloglog", "mine-0123456789", "sk-argsargs", "override-0123456789"]
    for file in [p for folder in (run, cli.folder / "reports") for p in folder.rglob("*") if p.is_file()]:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        for secret in hidden:
            assert secret.encode() not in data, (file, secret)
    for secret in hidden:
        assert secret not in ended.all
    assert manifest(run)["scenario"]["arm"][0]["env"]["VLLM_X"] == "1", "what is no secret is on record"
    (leg,) = rows(run / "legs.jsonl")
    assert leg["env"]["MY_SECRET"] == "<redacted>"
    dry = cli.run("run", cli.folder / "s.toml", "--dry-run", "--set", override, env=secrets)
    for secret in hidden:
        assert secret not in dry.all, dry


def test_a_patch_leads_nowhere(cli: Cli) -> None:
    """A patch whose paths leave the package is refused before anything boots."""
    (cli.folder / "p.patch").write_text("--- a/../../evil.py\n+++ b/../../evil.py\n@@ -0,0 +1 @@\n+import os\n")
    content = text(concurrency=(1,), requests=2).replace('engine = "reference"', 'engine = "reference"\npatch = "p.patch"')
    ended = cli.run("run", cli.scenario(content), "--out", "out")
    assert ended.code == 2, ended
    assert "Traceback" not in ended.all
    assert sum(line.startswith("evenhand: ") for line in ended.err.splitlines()) == 1, ended
    assert not list(cli.folder.rglob("evil.py"))


def test_nothing_in_the_working_directory_is_imported(cli: Cli) -> None:
    """A folder from somewhere else may hold more than a run: judging a killed run in it starts our own code only."""
    ended = cli.run("run", cli.scenario(text(concurrency=(1,), requests=2, output=3)), "--out", "out")
    assert ended.fine, ended
    run = only(cli.folder / "out")
    (run / "manifest.json").write_text((run / "manifest.json").read_text().replace('"finished"', '"running"'))
    trap = "import pathlib\npathlib.Path(__file__).with_name('pwned').touch()\n"
    for name in ("msgspec", "json", "ctypes", "itertools", "pyarrow", "numpy", "sitecustomize", "usercustomize"):
        (cli.folder / f"{name}.py").write_text(trap)
    (cli.folder / "evenhand").mkdir()
    (cli.folder / "evenhand" / "__init__.py").write_text(trap.replace("__file__", "__file__).parent.with_name('x'"))
    judged = cli.run("judge", run)
    assert judged.code == 2, judged
    assert manifest(run)["status"] == "interrupted"
    assert not list(cli.folder.rglob("pwned"))
    again = cli.run("run", cli.folder / "s.toml", "--out", "again")
    assert again.fine, again
    assert not list(cli.folder.rglob("pwned"))
