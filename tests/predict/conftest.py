"""The models and boxes that the figures were measured on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from evenhand.predict.shape import ModelShape


@pytest.fixture
def seed() -> ModelShape:
    """27B hybrid: 48 GDN and 16 attention layers, float32 state, bf16 cache."""
    return ModelShape(
        attention_layers=16,
        state_layers=48,
        kv_heads=4,
        head_dim=256,
        state_key_heads=16,
        state_value_heads=48,
        state_key_dim=128,
        state_value_dim=128,
        conv_width=4,
    )


@pytest.fixture
def small(seed: ModelShape) -> ModelShape:
    """4B hybrid: 24 GDN and 8 attention layers, bf16 state."""
    return msgspec.structs.replace(seed, attention_layers=8, state_layers=24, state_value_heads=32, ssm_bytes=2)


@pytest.fixture
def next_config() -> dict[str, Any]:
    """config.json of the 4B hybrid in Qwen3-Next's form."""
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "dtype": "bfloat16",
        "hidden_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "full_attention_interval": 4,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    }
