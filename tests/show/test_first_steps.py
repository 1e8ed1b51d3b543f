"""What somebody does in the first ten minutes: copy a scenario, paste the README's, look at tables on a narrow terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evenhand.cli import app
from evenhand.load import ScenarioError, load, shipped_folder
from evenhand.show.table import Column, Table, as_text

SHIPPED = sorted(path.stem for path in shipped_folder().glob("*.toml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_copied_scenario_names_nothing_that_was_left_behind(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["scenarios", "--copy", name])
    assert result.exit_code == 0, result.output
    said = ""
    try:
        load(f"{name}.toml")
    except ScenarioError as error:
        said = str(error)
    assert not said or "environment" in said, said  # an engine that this machine lacks


def test_the_scenario_of_the_readme_is_one(tmp_path: Path) -> None:
    readme = Path(__file__).parents[2] / "README.md"
    (block,) = re.findall(r"```toml\n(.*?)```", readme.read_text("utf-8"), re.S)
    (tmp_path / "fix.patch").write_text("")
    (tmp_path / "vllm").mkdir()
    text = block.replace("/models/my-model", "tiny:hybrid").replace("/envs/vllm", str(tmp_path / "vllm"))
    (tmp_path / "mine.toml").write_text(text)
    scenario, _ = load(str(tmp_path / "mine.toml"))
    assert scenario.gate
    assert scenario.gate.candidate == "patched"


def test_a_value_of_the_wrong_type_is_named_in_words() -> None:
    with pytest.raises(ScenarioError, match=r"key 'seats': found 'abc'; give a whole number$"):
        load("null-gap", ["seats=abc"])


def test_spare_columns_go_from_the_right_and_are_named() -> None:
    columns = (Column("arm", "", "left"), Column("first", spare=1), Column("kept"), Column("second", spare=1))
    table = Table(title="T", columns=columns, rows=[["a" * 60, "1", "2", "3"]])
    assert "left out" not in as_text(table, 100)
    assert "left out" not in as_text(table)
    assert "left out at 75 columns: second" in as_text(table, 75)
    assert "left out at 70 columns: first, second" in as_text(table, 70)
    assert "kept" in as_text(table, 40)
