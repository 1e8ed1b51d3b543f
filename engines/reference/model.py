"""The parts of a model's config.json that decide its cache pages, read by the embedded engine itself.

It shares nothing with the prediction room on purpose: what one works out on paper the other has to find by running.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

KV_BYTES: dict[str, int] = {"auto": 2, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""bytes of one cached K or V element"""
INT8_HEAD_SCALE_BYTES = 4
"""int8 per token and head keeps one float32 scale beside each head's K and V"""
STATE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


class ModelError(ValueError):
    """One sentence about a model folder that cannot be read."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Layer counts and dimensions. `state_layers` is 0 for a dense model."""

    architecture: str
    attention_layers: int
    state_layers: int
    kv_heads: int
    head_dim: int
    key_heads: int = 0
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    conv_width: int = 0
    vocab: int
    context: int
    eos: int | None = None
    dtype: str = "bfloat16"

    @property
    def state_groups(self) -> int:
        """Groups of recurrent layers as large as the attention group: each needs pages of its own."""
        return -(-self.state_layers // self.attention_layers) if self.state_layers else 0


def read(folder: str) -> Shape:
    """The shape in `folder`/config.json (nested `text_config` allowed). Raises ModelError with one sentence."""
    path = Path(folder) / "config.json"
    try:
        config = msgspec.json.decode(path.read_bytes())
    except OSError as err:
        raise ModelError(f"{path}: cannot be read ({err.strerror}); --model names a folder that holds config.json") from err
    except msgspec.DecodeError as err:
        raise ModelError(f"{path}: not JSON ({err})") from err
    if not isinstance(config, dict):
        raise ModelError(f"{path}: holds {type(config).__name__} where an object is needed")
    outer = config
    config = config.get("text_config") or config
    try:
        return _shape(config, outer)
    except (KeyError, TypeError, ValueError) as err:
        raise ModelError(f"{path}: cannot be used, {err!r}") from err


def _shape(config: dict[str, Any], outer: dict[str, Any]) -> Shape:
    layers = int(config["num_hidden_layers"])
    kinds = config.get("layer_types")
    if kinds is None and config.get("linear_num_value_heads"):
        every = int(config.get("full_attention_interval", 4))
        kinds = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers)]
    state = sum(kind == "linear_attention" for kind in kinds or ())
    heads = int(config["num_attention_heads"])
    eos = config.get("eos_token_id", outer.get("eos_token_id"))
    return Shape(
        architecture=str((outer.get("architectures") or [config.get("model_type", "unknown")])[0]),
        attention_layers=layers - state,
        state_layers=state,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        key_heads=int(config.get("linear_num_key_heads") or 0),
        value_heads=int(config.get("linear_num_value_heads") or 0),
        key_dim=int(config.get("linear_key_head_dim") or 0),
        value_dim=int(config.get("linear_value_head_dim") or 0),
        conv_width=int(config.get("linear_conv_kernel_dim") or 0),
        vocab=int(config.get("vocab_size", 2048)),
        context=int(config.get("max_position_embeddings", 32768)),
        eos=eos[0] if isinstance(eos, list) else eos,
        dtype=str(config.get("dtype") or config.get("torch_dtype") or outer.get("dtype") or "bfloat16"),
    )


def attention_bytes(shape: Shape, cache_dtype: str = "auto") -> int:
    """Bytes that one token takes in one attention layer, K and V together."""
    if cache_dtype.startswith("int8"):
        return 2 * shape.kv_heads * (shape.head_dim + INT8_HEAD_SCALE_BYTES)
    return 2 * shape.kv_heads * shape.head_dim * KV_BYTES.get(cache_dtype, 2)


def state_bytes(shape: Shape, depth: int, state_dtype: str) -> int:
    """Bytes of one layer's recurrent state: the matrix, and the convolution's window widened by `depth` drafted tokens."""
    if not shape.state_layers:
        return 0
    matrix = shape.value_heads * shape.value_dim * shape.key_dim * STATE_BYTES[state_dtype]
    window = (2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim) * (shape.conv_width - 1 + depth) * 2
    return matrix + window


def block_tokens(shape: Shape, depth: int, state_dtype: str, cache_dtype: str = "auto", align: int = 16) -> int:
    """Tokens of a block whose attention page is at least as large as a state page (unified pools)."""
    unit = max(16, align)
    if not shape.state_layers:
        return unit
    return unit * -(-state_bytes(shape, depth, state_dtype) // (unit * attention_bytes(shape, cache_dtype)))
