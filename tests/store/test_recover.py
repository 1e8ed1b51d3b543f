"""A run whose harness failed is brought to a judgeable end, unless its evidence is no longer what was sealed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from test_store import cell, manifest

from evenhand.recover import recover
from evenhand.show.seal import broken_seal
from evenhand.store import SUMS, RunWriter, changed_files, open_run


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    """A run that ended on an error, sealed."""
    plan = {"kind": "run", "seed": 0, "legs": []}
    writer = RunWriter.create(tmp_path, "x", "s", lambda name: msgspec.structs.replace(manifest(name), plan=plan))
    writer.cell(cell(1))
    writer.finish("failed", "2026-01-01T00:01:00Z")
    return writer.path


def test_a_failed_run_becomes_an_interrupted_one_sealed_again(failed: Path) -> None:
    assert recover(failed) == 0
    assert open_run(failed).manifest.status == "interrupted"
    assert broken_seal(open_run(failed)) == []


@pytest.mark.parametrize("how", ["changed", "unsealed"])
def test_a_failed_run_whose_evidence_changed_is_left_for_judging_to_name(failed: Path, how: str) -> None:
    if how == "changed":
        (failed / "cells.jsonl").write_text("")
    else:
        (failed / SUMS).unlink()
    assert recover(failed) == 0
    run = open_run(failed)
    assert run.manifest.status == "failed"
    assert changed_files(failed) == (["cells.jsonl (changed)"] if how == "changed" else [])
    assert len(broken_seal(run)) == 1


def test_a_recovery_that_was_cut_is_done_again(failed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(writer: RunWriter, status: str, ended_utc: str) -> None:
        writer.cell(cell(2))
        writer.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "finish", cut)
        with pytest.raises(KeyboardInterrupt):
            recover(failed)
    recover(failed)
    assert open_run(failed).manifest.status == "interrupted"
    assert broken_seal(open_run(failed)) == []
