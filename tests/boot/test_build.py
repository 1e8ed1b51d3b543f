"""Executables that a scenario's command builds from a commit, before anything boots."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from evenhand.boot.build import build, placed
from evenhand.boot.guardian import Guardian
from evenhand.engines.base import EngineError
from evenhand.load import ScenarioError, load
from evenhand.plan import make_plan
from evenhand.scenario import Arm
from evenhand.show.dry import dry_run_text
from evenhand.stop import Stop

COMMAND = "echo building && mkdir bin && cp server.sh bin/server && echo built >> count"


@pytest.fixture
def guardian() -> Iterator[Guardian]:
    with Guardian() as guardian:
        yield guardian


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of two commits; its tree is ahead of both."""
    if shutil.which("git") is None:
        pytest.skip("no git")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "source"
    folder.mkdir()
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (None, "one", "two", "not committed"):
        if words is None:
            subprocess.run(["git", "-C", folder, "init", "-q"], check=True)
            continue
        (folder / "server.sh").write_text(f"#!/bin/sh\necho {words}\n")
        (folder / "server.sh").chmod(0o755)
        if words != "not committed":
            subprocess.run(["git", "-C", folder, "add", "."], check=True)
            subprocess.run(["git", "-C", folder, *who, "commit", "-q", "-m", words], check=True)
    return folder


def arm(source: Path, commit: str = "HEAD", command: str = COMMAND) -> Arm:
    return Arm(name="a", engine="vllm.cpp", source=str(source), commit=commit, build=command, executable="bin/server")


def test_each_commit_is_built_once_in_a_copy(source: Path, guardian: Guardian, tmp_path: Path) -> None:
    before = sorted(source.iterdir())
    said = []
    for commit in ("HEAD~1", "HEAD", "HEAD"):
        one = placed(arm(source, commit))
        build(one, guardian, Stop(), tmp_path / "log")
        said.append(subprocess.run([str(one.executable)], capture_output=True, text=True, check=True).stdout.strip())
        assert (Path(str(one.executable)).parents[1] / "count").read_text() == "built\n"
    assert said == ["one", "two", "two"]
    assert (tmp_path / "log").read_text() == "building\n"
    assert sorted(source.iterdir()) == before
    assert placed(arm(source)).commit == placed(arm(source, "HEAD^0")).commit


def test_arms_that_differ_in_their_environment_share_no_build(source: Path, guardian: Guardian, tmp_path: Path) -> None:
    command = 'mkdir bin && printf "#!/bin/sh\\necho $CXXFLAGS\\n" > bin/server && chmod +x bin/server'
    said = []
    for env in ({"CXXFLAGS": "-O2", "A": "1"}, {"CXXFLAGS": "-O3", "A": "1"}):
        one = placed(msgspec.structs.replace(arm(source, command=command), env=env))
        build(one, guardian, Stop(), tmp_path / "log")
        said.append(subprocess.run([str(one.executable)], capture_output=True, text=True, check=True).stdout.strip())
        turned = dict(reversed(env.items()))
        assert placed(msgspec.structs.replace(one, env=turned, executable="bin/server")).executable == one.executable
    assert said == ["-O2", "-O3"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo no such compiler; exit 3", "arm 'a': its build command ended with exit code 3 (no such compiler)"),
        ("true", "arm 'a': its build command left no file 'bin/server'"),
    ],
)
def test_a_build_that_fails_is_one_sentence(source: Path, guardian: Guardian, tmp_path: Path, command: str, words: str) -> None:
    for _ in (1, 2):  # and what failed is tried again
        with pytest.raises(EngineError) as caught:
            build(placed(arm(source, command=command)), guardian, Stop(), tmp_path / "log")
        assert words in str(caught.value)
        assert str(tmp_path / "log") in str(caught.value)


def test_a_build_ends_with_the_run(source: Path, guardian: Guardian, tmp_path: Path) -> None:
    stop = Stop()
    threading.Timer(0.2, stop.set).start()
    begin = time.monotonic()
    one = placed(arm(source, command="sleep 60"))
    build(one, guardian, stop, tmp_path / "log")
    assert time.monotonic() - begin < 10
    assert not Path(str(one.executable)).exists()


SCENARIO = """
name = "x"
model = "tiny:dense"
[[arm]]
name = "a"
engine = "vllm.cpp"
source = "source"
commit = "HEAD"
executable = "bin/server"
build = "make"
[ladder]
concurrency = [1]
"""


def test_a_dry_run_says_what_will_be_built(source: Path, tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(SCENARIO)
    scenario, _ = load(str(file))
    assert str(scenario.arm[0].executable).endswith("/bin/server")
    text = dry_run_text(scenario, make_plan(scenario, "run"))
    assert f"to be built first: make (in a copy of {source} at {scenario.arm[0].commit})" in text
    for change, words in (
        (('commit = "HEAD"', 'commit = "nowhere"'), "nowhere"),
        (('executable = "bin/server"\n', ""), "a build needs source, commit, and executable"),
        (('"bin/server"', '"../server"'), "a build needs"),
        (('source = "source"\ncommit = "HEAD"\n', ""), "a build needs"),
    ):
        assert change[0] in SCENARIO
        file.write_text(SCENARIO.replace(*change))
        with pytest.raises(ScenarioError, match=words):
            load(str(file))
    assert msgspec.structs.asdict(scenario.arm[0])["build"] == "make"
