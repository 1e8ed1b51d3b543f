"""Every mistake in a scenario is one sentence with file, key, what was found and what would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenhand.load import ScenarioError, find, load, shipped_folder

GOOD = """
name = "x"
model = "m"
seats = 4
context = 4096
[[arm]]
name = "a"
engine = "reference"
[[arm]]
name = "b"
engine = "reference"
[ladder]
concurrency = [1, 2]
"""

GATE = '[gate]\nbaseline = "a"\ncandidate = "b"\n[gate.rules]\n'


@pytest.fixture
def write(tmp_path: Path):
    (tmp_path / "m").mkdir()

    def write(text: str) -> str:
        file = tmp_path / "s.toml"
        file.write_text(text)
        return str(file)

    return write


def test_a_good_scenario_loads_with_absolute_paths(write) -> None:
    scenario, path = load(write(GOOD))
    assert Path(scenario.model).is_absolute()
    assert path.name == "s.toml"
    assert scenario.ladder is not None
    assert scenario.ladder.concurrency == [1, 2]


def test_overrides_take_toml_text_and_comma_lists(write) -> None:
    file = write(GOOD)
    scenario, _ = load(
        file, ["ladder.concurrency=1,8", "seats=9", "arm.b.env.X=1", "description=two words", "prefix_caching=true"]
    )
    assert scenario.ladder is not None
    assert scenario.ladder.concurrency == [1, 8]
    assert (scenario.seats, scenario.description, scenario.prefix_caching) == (9, "two words", True)
    assert scenario.arm[1].env == {"X": "1"}


def test_one_value_becomes_a_list_where_the_key_takes_one(write) -> None:
    scenario, _ = load(write(GOOD), ["ladder.concurrency=4"])
    assert scenario.ladder is not None
    assert scenario.ladder.concurrency == [4]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("seats = 4", "seat = 4"), ["'seat'", "did you mean 'seats'"]),
        (("concurrency = [1, 2]", "concurency = [1, 2]"), ["'ladder.concurency'", "'concurrency'"]),
        (("concurrency = [1, 2]", 'concurrency = "1"'), ["ladder.concurrency", "'1'", "give a list"]),
        (("concurrency = [1, 2]", "concurrency = [1, 0]"), ["ladder.concurrency", "[1, 0]", "at least 1"]),
        (("concurrency = [1, 2]", "concurrency = [2, 2]"), ["ladder.concurrency", "once"]),
        (('model = "m"', 'model = "gone"'), ["'model'", "'gone'", "no such model folder"]),
        (('engine = "reference"', 'engine = "vlm"'), ["arm.a.engine", "did you mean 'vllm'"]),
        (('name = "b"', 'name = "a"'), ["arm.name", "name of its own"]),
        (("[ladder]\nconcurrency = [1, 2]", ""), ["nothing to run"]),
        (("seats = 4", "seats = 0"), ["'seats'", "found 0"]),
        (("context = 4096", "context = 100"), ["'context'", "576 tokens"]),
        (("[ladder]", "[pool]\nblocks = 1\nbytes = 2\n[ladder]"), ["'pool'", "only one of"]),
        (("[ladder]", '[pool]\nbytes = "many"\n[ladder]'), ["pool.bytes", "14.625 GiB"]),
        (("[ladder]", '[draft]\nmethod = "mpt"\ndepth = 1\n[ladder]'), ["draft.method", "did you mean 'mtp'"]),
        (("[ladder]", '[draft]\nmethod = "mtp"\n[ladder]'), ["'draft.depth'", "missing"]),
        (("[ladder]", '[expect]\n"a@3" = "refused"\n[ladder]'), ["expect", "a@3"]),
        (("[ladder]", '[expect]\n"a@1" = "sad"\n[ladder]'), ["expect.a@1", "refused"]),
        (('engine = "reference"', 'engine = "attached"'), ["arm.a.url", "http://"]),
        (('engine = "reference"', 'engine = "reference"\nexecutable = "/no/such"'), ["arm.a.executable", "no such executable"]),
        (('engine = "reference"', 'engine = "reference"\nenvironment = "$NO_SUCH_VARIABLE"'), ["NO_SUCH_VARIABLE", "not set"]),
        (('engine = "reference"', 'engine = "reference"\ncommit = "abc"'), ["commit", "source"]),
        (("[ladder]", '[gate]\nbaseline = "a"\ncandidate = "c"\n[ladder]'), ["gate.candidate", "a, b"]),
        (("[ladder]", '[gate]\nbaseline = "a"\ncandidate = "b"\n[ladder]'), ["gate.rules", "could never fail"]),
        (("[ladder]", GATE + 'outputz = "identical"\n[ladder]'), ["'gate.rules.outputz'", "did you mean 'outputs'"]),
        (("[ladder]", GATE + "peak = 1\n[ladder]"), ["'gate.rules.peak'", "peak_pool"]),
        (("[ladder]", GATE + "ttft_p50 = 5\n[ladder]"), ["'gate.rules.ttft_p50'", "found 5", "not_worse_by"]),
        (('name = "x"', 'name = "x/../y"'), ["'name'"]),
        (('name = "x"', "name = x"), ["not TOML"]),
    ],
)
def test_mistakes(write, change: tuple[str, str], words: list[str]) -> None:
    file = write(GOOD.replace(*change, 1))
    with pytest.raises(ScenarioError) as caught:
        load(file)
    sentence = str(caught.value)
    assert sentence.startswith(file), sentence
    assert "\n" not in sentence.strip()
    for word in words:
        assert word in sentence, sentence


@pytest.mark.parametrize("text", ["ladder", "=1", "ladder.concurrency.x=1", "arm.z.env.X=1", "arm=1,2"])
def test_bad_overrides(write, text: str) -> None:
    with pytest.raises(ScenarioError):
        load(write(GOOD), [text])


def test_values_nested_without_end_are_one_sentence(write) -> None:
    with pytest.raises(ScenarioError, match="nested too deeply"):
        load(write("x = " + "[" * 5000 + "]" * 5000))


def test_an_unknown_scenario_names_a_near_one() -> None:
    with pytest.raises(ScenarioError, match="no such scenario file"):
        find("three-enginez")


def test_every_shipped_scenario_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("EVENHAND_VLLM_ENV", "EVENHAND_SGLANG_ENV", "EVENHAND_VLLMCPP", "EVENHAND_H200", "EVENHAND_H200_PYTHON"):
        monkeypatch.setenv(name, str(tmp_path))
    files = sorted(shipped_folder().glob("*.toml"))
    assert files
    for file in files:
        if "h200" not in file.name:
            load(str(file))
