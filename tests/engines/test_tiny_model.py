"""Tiny checkpoints: the same bytes for a seed, complete, and readable by the libraries that engines use."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from evenhand.predict.config import read_model
from evenhand.predict.pages import state_groups, state_page_bytes, unified_block_tokens
from evenhand.tiny_model import CONFIGS, Kind, gguf_name, write_tiny_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    for kind in CONFIGS:
        write_tiny_model(root / kind, kind, gguf=kind == "dense")
    return {kind: root / kind for kind in CONFIGS}


def bits(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """bfloat16 tensors as float32, read without the library's numpy front end (numpy has no bfloat16)."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = (8 + length + at for at in entry["data_offsets"])
            found[name] = (
                (np.frombuffer(raw[start:end], "<u2").astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
            )
    return found


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_same_bytes_for_a_seed(kind: Kind, models: dict[str, Path], tmp_path: Path) -> None:
    files = write_tiny_model(tmp_path / "again", kind)
    assert {path.name for path in files} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    for path in files:
        assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256((models[kind] / path.name).read_bytes()).digest()
    other = write_tiny_model(tmp_path / "other", kind, seed=1)
    assert other[0].read_bytes() != files[0].read_bytes()
    assert other[1].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("kind", CONFIGS)
def test_safetensors_reads_it(kind: Kind, models: dict[str, Path]) -> None:
    with safe_open(str(models[kind] / "model.safetensors"), "np") as file:
        names = set(file.keys())
        assert {str(file.get_slice(name).get_dtype()) for name in names} == {"BF16"}
        assert file.get_slice("lm_head.weight").get_shape() == [2048, 128]
    assert len(names) == {"dense": 47, "hybrid": 106}[kind]


def test_weights_are_spread_and_norms_neutral(models: dict[str, Path]) -> None:
    dense, hybrid = bits(models["dense"] / "model.safetensors"), bits(models["hybrid"] / "model.safetensors")
    assert dense["lm_head.weight"].std() == pytest.approx(0.08, rel=0.02)
    assert set(np.unique(dense["model.norm.weight"])) == {1.0}
    assert set(np.unique(hybrid["model.norm.weight"])) == {0.0}
    assert set(np.unique(hybrid["model.layers.0.linear_attn.norm.weight"])) == {1.0}
    assert hybrid["model.layers.3.self_attn.q_proj.weight"].shape == (512, 128)
    assert hybrid["model.layers.0.linear_attn.in_proj_qkvz.weight"].shape == (768, 128)


def test_the_tokenizer(models: dict[str, Path]) -> None:
    tokenizer = Tokenizer.from_file(str(models["dense"] / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 2048
    text = "the quick brown fox 123 — ünïcödé\n\ttabs"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.token_to_id("<|endoftext|>") == 0
    assert tokenizer.encode("<|im_start|>").ids == [1]


def test_the_config_gives_the_blocks_that_were_measured(models: dict[str, Path]) -> None:
    """vLLM 0.32 on CPU: attention block 256 (its alignment is 128 there), state padded by 91.04 %, three state groups."""
    model = read_model(models["hybrid"] / "config.json", state_dtype="float32")
    page = state_page_bytes(model.shape, 0)
    block = unified_block_tokens(model.shape, 0, 128)
    assert (page, block, state_groups(model.shape)) == (68608, 256, 3)
    assert (block * 512 - page) / page == pytest.approx(0.9104, abs=1e-4)
    assert CONFIGS["hybrid"]["full_attention_interval"] == 4
    assert CONFIGS["hybrid"]["max_position_embeddings"] >= 32768


def test_the_gguf_holds_the_same_weights(models: dict[str, Path]) -> None:
    gguf = pytest.importorskip("gguf", reason="the optional package gguf is not installed")
    reader = gguf.GGUFReader(str(models["dense"] / "model.gguf"))
    weights = bits(models["dense"] / "model.safetensors")
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert set(found) == {gguf_name(name) for name in weights}
    up = found["blk.2.ffn_up.weight"]
    assert up.tensor_type == gguf.GGMLQuantizationType.BF16
    assert np.array_equal(
        (up.data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(256, 128),
        weights["model.layers.2.mlp.up_proj.weight"],
    )
    assert np.array_equal(found["output_norm.weight"].data, weights["model.norm.weight"])
    assert len(reader.fields["tokenizer.ggml.tokens"].data) == 2048


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dense kind only"):
        write_tiny_model(tmp_path, "hybrid", gguf=True)
    with pytest.raises(ValueError, match="must be one of"):
        write_tiny_model(tmp_path, "huge")  # type: ignore[arg-type]
