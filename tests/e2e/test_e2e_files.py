"""Files that go wrong: one sentence each, nothing lost that was written, nothing written outside."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_cli import Cli, Ended, cells, manifest, only, requests, rows, text
from fuzzing import invoke

pytestmark = pytest.mark.e2e


def one_sentence(ended: Ended, *words: str, code: int = 2) -> None:
    """It ended with `code` and one sentence that holds `words`."""
    assert ended.code == code, ended
    assert "Traceback" not in ended.all, ended
    said = [line for line in ended.err.splitlines() if line.startswith("evenhand: ")]
    assert len(said) == 1, ended
    for word in words:
        assert word in said[0], ended


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests work on copies."""
    cli = Cli(tmp_path_factory.mktemp("finished"))
    ended = cli.run("run", cli.scenario(text(concurrency=(1, 2), requests=4, output=4)), "--out", "out")
    assert ended.fine, ended
    return only(cli.folder / "out")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 300 KiB (root only)."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", folder], capture_output=True)
    if made.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(file: Path) -> None:
    """Write until nothing more fits."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(fd, b"x" * 4096)
    except OSError:
        os.close(fd)


def test_the_disk_fills_up_in_a_rung(cli: Cli, small_disk: Path) -> None:
    """ENOSPC for real: rows written before stand, one sentence names the cause; with room again the run is finished."""
    filler = small_disk / "filler"
    scenario = cli.scenario(text(concurrency=(1, 2), requests=8, output=8, base_s=0.02))
    child = cli.start("run", scenario, "--out", small_disk / "out")
    child.says("ladder/c=1 starts (8 requests): ok")
    fill(filler)
    ended = child.end()
    one_sentence(ended, "No space left on device")
    run = only(small_disk / "out")
    assert [r["outcome"] for r in requests(run) if r["cell"] == "ladder/c=1"] == ["ok"] * 8
    filler.unlink()
    judged = cli.run("judge", run)
    assert judged.code == 2, judged
    assert "partial" in judged.out
    resumed = cli.run("run", scenario, "--resume", run)
    assert resumed.fine, resumed
    assert {row["outcome"] for row in cells(run).values()} == {"ok"}
    assert len(requests(run)) == 16


def test_a_file_size_limit_is_one_sentence(cli: Cli) -> None:
    """The same without a mount: no file of ours may grow beyond 200 000 bytes."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    scenario = cli.scenario(text(concurrency=(1,), requests=200, output=32, base_s=0.001))
    ended = cli.start("run", scenario, "--out", "out", before=limit).end()
    one_sentence(ended, "File too large")
    judged = cli.run("judge", only(cli.folder / "out"))
    assert judged.code == 2, judged
    assert "Traceback" not in judged.all
    assert requests(only(cli.folder / "out"))


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/nothing", "/dev/full"])
def test_out_cannot_be_written(cli: Cli, out: str) -> None:
    (cli.folder / "file").write_text("x")
    one_sentence(cli.run("run", cli.scenario(text()), "--out", out), "cannot write results to")
    assert (cli.folder / "file").read_text() == "x"


def test_a_read_only_folder(cli: Cli, run: Path) -> None:
    """A run on a read-only disk is judged all the same, even one that was killed."""
    folder = cli.folder / "ro"
    folder.mkdir()
    as_root = os.geteuid() == 0
    if as_root:
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True)
        if made.returncode:
            pytest.skip("needs the right to mount a tmpfs")
    try:
        shutil.copytree(run, folder / "whole")
        killed = Path(shutil.copytree(run, folder / "killed"))
        status = json.loads((killed / "manifest.json").read_text()) | {"status": "running"}
        (killed / "manifest.json").write_text(json.dumps(status))
        if as_root:
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        else:
            for path in [folder, *folder.rglob("*")]:
                path.chmod(0o555 if path.is_dir() else 0o444)
        judged = cli.run("judge", folder / "whole")
        assert judged.fine, judged
        assert "no tables written there" in judged.out
        judged = cli.run("judge", folder / "killed")
        assert judged.code == 2, judged
        assert "partial" in judged.out
        assert "Traceback" not in judged.all
        one_sentence(cli.run("run", cli.scenario(text()), "--out", folder), "cannot write results to")
    finally:
        if as_root:
            subprocess.run(["umount", "-l", folder], check=True)
        else:
            for path in [folder, *folder.rglob("*")]:
                path.chmod(0o755)


def test_a_changed_file_is_noticed_and_a_torn_one_too(cli: Cli, run: Path) -> None:
    assert cli.run("judge", run).code == 0
    file = run / "000-a" / "requests.jsonl"
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"outcome":"ok"', b'"outcome":"ok" ', 1))
    judged = cli.run("judge", run)
    assert judged.code == 2, judged
    assert "evidence changed since it was sealed: 000-a/requests.jsonl (changed)" in judged.out
    file.write_bytes(data[:-40])
    judged = cli.run("judge", run)
    assert judged.code == 2, judged
    assert "(changed)" in judged.out
    assert "Traceback" not in judged.all
    file.write_bytes(data)
    (run / "sha256.json").unlink()
    judged = cli.run("judge", run)
    assert "sha256 is gone" in judged.out, judged
    assert judged.code == 2


@pytest.mark.parametrize(
    "name", ["manifest.json", "cells.jsonl", "legs.jsonl", "000-a/requests.jsonl", "000-a/samples.jsonl", "000-a", "tables"]
)
def test_a_link_in_a_run_folder_leads_nowhere(cli: Cli, run: Path, name: str) -> None:
    outside = cli.folder / "outside"
    target = run / name
    if target.is_dir():
        target.rename(outside)
    else:
        outside.write_bytes(target.read_bytes())
        target.unlink()
    target.symlink_to(outside)
    before = sorted(p.name for p in outside.rglob("*")) if outside.is_dir() else outside.read_bytes()
    judged = invoke("judge", run)
    assert judged.exit_code != 0 or name == "tables", judged.output
    assert before == (sorted(p.name for p in outside.rglob("*")) if outside.is_dir() else outside.read_bytes())


@pytest.mark.parametrize(
    "name", [".manifest.json.tmp", "sha256.json", "tables/tables.md", ".requests.parquet.tmp", "junit.xml"]
)
def test_a_planted_link_is_never_written_through(cli: Cli, run: Path, name: str) -> None:
    """Judging a killed run writes into its folder, and nowhere else."""
    outside = cli.folder / "outside"
    outside.write_text("mine")
    target = run / name
    target.unlink(missing_ok=True)
    target.parent.mkdir(exist_ok=True)
    target.symlink_to(outside)
    status = json.loads((run / "manifest.json").read_text()) | {"status": "running"}
    (run / "manifest.json").write_text(json.dumps(status))
    invoke("judge", run)
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("name", ["manifest.json", "cells.jsonl", "000-a/requests.jsonl", "000-a/gpu.jsonl", "sha256.json"])
def test_a_pipe_in_a_run_folder_does_not_hang(cli: Cli, run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    judged = invoke("judge", run)
    assert judged.exit_code != 0, judged.output


def test_a_killed_run_with_torn_files_everywhere(cli: Cli, run: Path) -> None:
    """The last line of every file is cut: the rows before it stand, and the run is finished later."""
    status = json.loads((run / "manifest.json").read_text()) | {"status": "running"}
    (run / "manifest.json").write_text(json.dumps(status))
    for file in run.rglob("*.jsonl"):
        data = file.read_bytes()
        if len(data) > 30:
            file.write_bytes(data[:-20])
    (run / "000-a" / "rung-0.spill").write_bytes(b"\xff\xff\xff\x7ftorn")
    judged = cli.run("judge", run)
    assert judged.code == 2, judged
    assert "partial" in judged.out, judged
    assert len(requests(run)) == 7
    assert manifest(run)["status"] == "interrupted"
    assert len(rows(run / "cells.jsonl")) == 1


def test_not_a_run_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    one_sentence(cli.run("judge", tmp_path / "empty"), "is no run folder")
    one_sentence(cli.run("judge", tmp_path / "absent"), "is no folder")
    one_sentence(device := cli.run("judge", "/dev/null"), "is no folder")
    assert device.code == 2
