"""A run directory survives kills, full disks and strangers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from evenhand.records import CellRow, EventRow, LegRow, Manifest, SampleRow
from evenhand.store import RunWriter, StoreError, changed_files, encode, mend, open_run, safe_name


def manifest(run: str) -> Manifest:
    return Manifest(
        evenhand="0",
        run=run,
        kind="run",
        status="running",
        started_utc="2026-01-01T00:00:00Z",
        anchor_monotonic_ns=1,
        scenario={"name": "x", "model": "m", "arm": []},
        scenario_sha256="",
        plan={},
        machine={},
        versions={},
        command=[],
        seed=0,
        simulated=True,
    )


@pytest.fixture
def writer(tmp_path: Path) -> RunWriter:
    return RunWriter.create(tmp_path, "x", "20260101T000000Z", manifest)


def cell(n: int) -> CellRow:
    return CellRow(leg=0, arm="a", cell=f"ladder/c={n}", kind="ladder", concurrency=n, outcome="ok")


def test_round_trip_and_seal(writer: RunWriter) -> None:
    writer.cell(cell(1))
    writer.leg(LegRow(leg=0, arm="a", engine="reference", outcome="ok"))
    writer.leg_folder(0, "a")
    writer.finish("finished", "2026-01-01T00:01:00Z")
    run = open_run(writer.path)
    assert [row.concurrency for row in run.cells] == [1]
    assert run.legs[0].arm == "a"
    assert not run.partial
    assert changed_files(writer.path) == []


def test_two_starts_in_one_second_get_two_folders(tmp_path: Path) -> None:
    paths = {RunWriter.create(tmp_path, "x", "s", manifest).path for _ in range(3)}
    assert len(paths) == 3


def test_torn_last_line_is_left_out_and_cut_before_the_next_append(writer: RunWriter) -> None:
    writer.cell(cell(1))
    writer.close()
    file = writer.path / "cells.jsonl"
    file.write_bytes(file.read_bytes() + b'{"leg":0,"arm":"a","ce')
    assert [row.concurrency for row in open_run(writer.path).cells] == [1]
    writer.cell(cell(2))
    assert [row.concurrency for row in open_run(writer.path).cells] == [1, 2]


@pytest.mark.parametrize(
    ("tail", "lost"),
    [
        (b"", []),
        (b'{"t_ns": 2, "st', []),
        (b'{"t_ns": 2, "st{"t_ns": 3, "step": 3, "used": 5}\n', [1]),
        (b'{"t_ns": 2, "st\n5\n{"t_ns": 3, "us', [2]),
    ],
)
def test_a_probe_row_that_cannot_be_read_is_a_row_lost_unless_it_is_the_last(
    writer: RunWriter, tail: bytes, lost: list[int]
) -> None:
    writer.close()
    whole = {"t_ns": 1, "step": 1, "used": 7}
    (writer.leg_folder(0, "a") / "probe.jsonl").write_bytes(json.dumps(whole).encode() + b"\n" + tail)
    assert open_run(writer.path).probe(0) == [whole, *({"probe": "dropped", "rows": n} for n in lost)]


def test_a_changed_file_is_noticed(writer: RunWriter) -> None:
    writer.cell(cell(1))
    writer.event(EventRow(t_ns=1, what="x"))
    writer.finish("finished", "2026-01-01T00:01:00Z")
    (writer.path / "cells.jsonl").write_text("")
    (writer.path / "stray").write_text("")
    (writer.path / "events.jsonl").unlink()
    assert changed_files(writer.path) == ["events.jsonl (missing)", "cells.jsonl (changed)", "stray (added)"]


def test_a_link_in_a_run_folder_is_refused(writer: RunWriter, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("{}\n")
    (writer.path / "cells.jsonl").symlink_to(secret)
    with pytest.raises(StoreError, match="symbolic link"):
        open_run(writer.path)
    with pytest.raises(StoreError):
        writer.cell(cell(1))
    assert secret.read_text() == "{}\n"


def test_read_only_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="--out"):
        RunWriter.create(tmp_path / "file", "x", "s", manifest)


def test_a_full_disk_is_one_sentence_that_names_resume(writer: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    writer.cell(cell(1))
    monkeypatch.setattr("evenhand.store.os.write", full)
    with pytest.raises(StoreError, match=r"No space left.*--resume"):
        writer.cell(cell(2))
    monkeypatch.undo()
    assert [row.concurrency for row in open_run(writer.path).cells] == [1]


def test_b82_files_are_strict_json_with_null_for_nan_and_infinity() -> None:
    row = LegRow(leg=0, arm="a", engine="x", outcome="ok", figures={"tpot_mean": float("nan"), "p95": float("inf")})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    back = json.loads(encode(row), parse_constant=refuse)
    assert back["figures"] == {"tpot_mean": None, "p95": None}


def test_a_newer_schema_is_refused_by_name(writer: RunWriter) -> None:
    writer.save_manifest(schema=99)
    with pytest.raises(StoreError, match="schema 99"):
        open_run(writer.path)


def test_names_become_one_harmless_path_component() -> None:
    assert safe_name("../../etc/passwd") == "_.._etc_passwd"
    assert safe_name("") == "_"
    assert "/" not in safe_name("a/b")


def test_columns_of_every_scrape_reach_the_table(writer: RunWriter) -> None:
    """A scrape that failed comes first: its row has no values, the table has their columns all the same."""
    import pyarrow.parquet as parquet

    folder = writer.leg_folder(0, "a")
    values = [{"usage": n / 1e4} if n else {} for n in range(4500)]
    rows = [SampleRow(leg=0, due_ns=n, start_ns=n, end_ns=n, status="ok", values=one) for n, one in enumerate(values)]
    writer.append(folder / "samples.jsonl", rows)
    writer.finish("finished", "")
    table = parquet.read_table(writer.path / "samples.parquet")
    assert table.num_rows == 4500
    assert table["usage"].to_pylist()[:2] == [None, 1e-4]
    assert table["usage"].to_pylist()[-1] == 0.4499


def test_a_run_has_one_writer(writer: RunWriter) -> None:
    with pytest.raises(StoreError, match="being written by another evenhand"):
        RunWriter(writer.path, writer.manifest)
    writer.finish("interrupted", "")
    RunWriter(writer.path, writer.manifest).close()


def test_a_run_that_says_it_ended_is_sealed(writer: RunWriter) -> None:
    writer.cell(cell(1))
    writer.finish("finished", "2026-01-01T00:01:00Z")
    assert changed_files(writer.path) == []
    text = (writer.path / "manifest.json").read_text()
    (writer.path / "manifest.json").write_text(text.replace("finished", "interrupted"))
    assert changed_files(writer.path) == ["manifest.json (changed)"]


# --- hostile folders ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["manifest.json", "cells.jsonl", "sha256.json"])
def test_a_file_beyond_all_memory_is_one_sentence(tmp_path: Path, name: str) -> None:
    writer = RunWriter.create(tmp_path, "n", "s", manifest)
    writer.finish("finished", "now")
    with (writer.path / name).open("ab") as file:
        file.truncate(1 << 42)
    with pytest.raises(StoreError, match=f"{name}.*(longer than|does not fit)"):
        changed_files(open_run(writer.path).path)


def test_names_that_are_no_text_and_folders_a_thousand_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RunWriter.create(tmp_path, "n", "s", manifest)
    odd = writer.path / os.fsdecode(b"core-\xff")
    odd.write_bytes(b"1")
    writer.finish("finished", "now")
    assert changed_files(writer.path) == []
    odd.write_bytes(b"2")
    monkeypatch.chdir(writer.path)
    for _ in range(1200):
        Path("d").mkdir()
        os.chdir("d")
    Path("deep").touch()
    (changed, added) = changed_files(writer.path)
    Path("deep").unlink()
    for _ in range(1200):  # what removes a test's folder recurses, too
        os.chdir("..")
        Path("d").rmdir()
    assert changed == "core-\\xff (changed)"
    assert added.endswith("d/d/deep (added)")


def test_a_torn_line_longer_than_a_chunk_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    for kept in (b"", b'{"a":1}\n', b"x" * 200_000 + b"\n"):
        for torn in (b"", b"y", b"z" * 200_000):
            file.write_bytes(kept + torn)
            mend(file)
            assert file.read_bytes() == kept
