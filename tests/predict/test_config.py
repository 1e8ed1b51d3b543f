"""config.json -> shape: the forms real checkpoints have, and one sentence for what is missing."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from evenhand.predict.config import cache_bytes_per_token, model_of, read_model
from evenhand.predict.pages import PredictError, state_page_bytes, unified_block_tokens
from evenhand.predict.shape import ModelShape


def test_qwen3_next(next_config: dict[str, Any], small: ModelShape) -> None:
    model = model_of(next_config)
    assert (model.layers, model.dtype, model.state_dtype, model.cache_dtype) == (32, "bfloat16", "bfloat16", "bfloat16")
    assert unified_block_tokens(model.shape, 0) == 272
    assert state_page_bytes(model.shape, 3) == state_page_bytes(small, 3)


def test_interval_without_layer_types(next_config: dict[str, Any]) -> None:
    del next_config["layer_types"]
    assert (model_of(next_config).shape.attention_layers, model_of(next_config).shape.state_layers) == (8, 24)
    del next_config["full_attention_interval"]
    assert model_of(next_config).shape.attention_layers == 8


def test_nested_text_config_and_its_state_dtype(next_config: dict[str, Any]) -> None:
    text = {**next_config, "mamba_ssm_dtype": "float32"}
    del text["dtype"]
    whole = {"model_type": "qwen3_5", "torch_dtype": "torch.float16", "text_config": text, "vision_config": {"hidden_size": 64}}
    model = model_of(whole)
    assert (model.model_type, model.dtype, model.state_dtype, model.shape.ssm_bytes) == ("qwen3_5", "float16", "float32", 4)
    assert model_of(whole, state_dtype="float16").shape.ssm_bytes == 2
    assert model_of(whole, state_dtype="auto").shape.ssm_bytes == 4


def test_dense() -> None:
    config = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape = model_of(config).shape
    assert (shape.attention_layers, shape.state_layers, shape.head_dim, shape.kv_heads) == (4, 0, 32, 2)
    assert model_of({**config, "num_key_value_heads": None}).shape.kv_heads == 4


def test_cache_dtypes() -> None:
    assert cache_bytes_per_token(4, 256, "bfloat16") == 4096
    assert cache_bytes_per_token(4, 256, "fp8") == 2048
    assert cache_bytes_per_token(4, 256, "int8_per_token_head") == 2080


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_hidden_layers": None}, "lacks num_hidden_layers"),
        ({"linear_num_key_heads": None}, "lacks linear_num_key_heads"),
        ({"head_dim": "256"}, "head_dim must be a whole number of at least 1, not '256'"),
        ({"num_key_value_heads": True}, "num_key_value_heads must be a whole number"),
        ({"num_hidden_layers": 31}, "layer_types lists 32 layers, num_hidden_layers says 31"),
        ({"layer_types": ["sliding_attention"] * 32}, "layer_types holds sliding_attention"),
        ({"kv_lora_rank": 512}, "multi-head latent attention"),
        ({"dtype": "int3"}, 'cache dtype "int3" is not known'),
        ({"head_dim": None, "hidden_size": 2561}, "hidden_size 2561 is no multiple of its 16 heads"),
    ],
)
def test_one_sentence_for_what_is_wrong(next_config: dict[str, Any], change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PredictError, match=sentence) as error:
        model_of({**next_config, **change})
    assert str(error.value).count("\n") == 0


def test_other_recurrent_layers_are_refused() -> None:
    config = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "mamba_n_heads": 8}
    with pytest.raises(PredictError, match="mamba_n_heads means recurrent layers that are no gated delta nets"):
        model_of(config)


def test_reading_files(tmp_path: Path, next_config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(next_config))
    assert read_model(tmp_path).shape == read_model(tmp_path / "config.json").shape
    with pytest.raises(PredictError, match="cannot be read"):
        read_model(tmp_path / "absent")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(PredictError, match="is not JSON"):
        read_model(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(PredictError, match="holds no JSON object"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "layers", "depth", "state", "block"),
    [("27b-hybrid", (16, 48), 8, "float32", 832), ("4b-hybrid", (8, 24), 3, None, 288)],
)
def test_the_models_that_scenarios_ship(name: str, layers: tuple[int, int], depth: int, state: str | None, block: int) -> None:
    folder = Path(str(resources.files("evenhand.scenarios"))) / "models" / name
    shape = read_model(folder, state_dtype=state).shape
    assert (shape.attention_layers, shape.state_layers) == layers
    assert unified_block_tokens(shape, depth) == block
