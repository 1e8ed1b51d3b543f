"""A model's config.json -> the parts that decide cache memory. Pure but for the one file it reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from evenhand.predict.pages import PredictError
from evenhand.predict.shape import ModelShape

DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes of one element."""

PER_TOKEN_HEAD = {"int8_per_token_head": 1, "fp8_per_token_head": 1}
"""Cache dtypes that keep one float32 scale per token and head beside the elements, for K and for V: element bytes."""

_TEXT = ("text_config", "language_config", "llm_config")
_ATTENTION = frozenset({"full_attention", "attention"})
_STATE = frozenset({"linear_attention"})


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model as prediction sees it, with the dtypes that its figures depend on said by name."""

    source: str
    model_type: str
    layers: int
    dtype: str
    cache_dtype: str
    state_dtype: str
    shape: ModelShape


MAX_CONFIG_BYTES = 64 << 20
"""A longer config.json is none."""


def read_model(
    path: str | Path, *, cache_dtype: str | None = None, state_dtype: str | None = None, dtype: str | None = None
) -> Model:
    """Read config.json (the file, or the folder that holds it). None or "auto" for a dtype means what the config says.

    Raises PredictError with one sentence for a file that is absent, broken, or of a shape this arithmetic does not cover.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    try:
        if file.exists() and not file.is_file():
            raise PredictError(f"{file}: is no file; give a model's config.json or its folder.")
        with file.open("rb") as stream:
            config = msgspec.json.decode(stream.read(MAX_CONFIG_BYTES))
    except OSError as error:
        raise PredictError(f"{file}: cannot be read ({error.strerror}); give a model's config.json or its folder.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PredictError(f"{file}: is not JSON ({error}).") from error
    if not isinstance(config, dict):
        raise PredictError(f"{file}: holds no JSON object; give a model's config.json.")
    return model_of(config, str(file), cache_dtype=cache_dtype, state_dtype=state_dtype, dtype=dtype)


def model_of(
    config: Mapping[str, Any],
    source: str = "config.json",
    *,
    cache_dtype: str | None = None,
    state_dtype: str | None = None,
    dtype: str | None = None,
) -> Model:
    """Pure part of `read_model`. State dtype: `state_dtype`, else mamba_ssm_dtype of the config, else the model's dtype."""
    text = next((config[key] for key in _TEXT if isinstance(config.get(key), dict)), config)
    look = _Fields(source, text, config)
    if "kv_lora_rank" in text:
        raise PredictError(
            f"{source}: kv_lora_rank means multi-head latent attention, whose cache this arithmetic does not cover."
        )
    layers = look.count("num_hidden_layers")
    attention, state = _layer_kinds(look, layers)
    model_dtype = _named(dtype) or look.text_or("dtype", "torch_dtype") or "bfloat16"
    cache = _named(cache_dtype) or model_dtype
    ssm = _named(state_dtype) or look.text_or("mamba_ssm_dtype") or model_dtype
    heads = look.count("num_attention_heads") if attention else 0
    kv_heads = (look.maybe("num_key_value_heads") or heads) if attention else 0
    head_dim = _head_dim(look, heads) if attention else 0
    shape = ModelShape(
        attention_layers=attention,
        state_layers=state,
        kv_heads=kv_heads,
        head_dim=head_dim,
        state_key_heads=look.count("linear_num_key_heads") if state else 0,
        state_value_heads=look.count("linear_num_value_heads") if state else 0,
        state_key_dim=look.count("linear_key_head_dim") if state else 0,
        state_value_dim=look.count("linear_value_head_dim") if state else 0,
        conv_width=look.count("linear_conv_kernel_dim") if state else 0,
        attn_bytes_per_token=cache_bytes_per_token(kv_heads, head_dim, cache),
        ssm_bytes=_element(ssm, "state dtype"),
        conv_bytes=_element(model_dtype, "dtype"),
    )
    return Model(
        source=source,
        model_type=str(config.get("model_type", "")),
        layers=layers,
        dtype=model_dtype,
        cache_dtype=cache,
        state_dtype=ssm,
        shape=shape,
    )


def cache_bytes_per_token(kv_heads: int, head_dim: int, cache_dtype: str) -> int:
    """Bytes of one token in one attention layer: 2 * kv_heads * (head_dim * element bytes + scale bytes).

    Scale bytes are 4 for a per-token-head dtype, else 0: 4 heads of 256 are 4096 in bf16, 2048 in fp8, 2080 in int8 per token
    and head. Raises PredictError for a dtype that is not known.
    """
    if cache_dtype in PER_TOKEN_HEAD:
        return 2 * kv_heads * (head_dim * PER_TOKEN_HEAD[cache_dtype] + 4)
    return 2 * kv_heads * head_dim * _element(cache_dtype, "cache dtype")


def _named(dtype: str | None) -> str | None:
    return None if dtype in (None, "", "auto") else str(dtype).removeprefix("torch.")


def _element(dtype: str, what: str) -> int:
    if dtype not in DTYPE_BYTES:
        known = ", ".join(sorted({*DTYPE_BYTES, *(PER_TOKEN_HEAD if what == "cache dtype" else ())}))
        raise PredictError(f'{what} "{dtype}" is not known; known are {known}.')
    return DTYPE_BYTES[dtype]


def _head_dim(look: _Fields, heads: int) -> int:
    head_dim = look.maybe("head_dim")
    if head_dim:
        return head_dim
    hidden = look.count("hidden_size")
    if hidden % heads:
        raise PredictError(f"{look.source}: has no head_dim, and hidden_size {hidden} is no multiple of its {heads} heads.")
    return hidden // heads


def _layer_kinds(look: _Fields, layers: int) -> tuple[int, int]:
    """(attention layers, state layers): from layer_types, else full_attention_interval, else all are attention."""
    kinds = look.text.get("layer_types")
    if isinstance(kinds, list):
        strange = sorted({str(kind) for kind in kinds if kind not in _ATTENTION | _STATE})
        if strange:
            raise PredictError(
                f"{look.source}: layer_types holds {', '.join(strange)}, whose cache this arithmetic does not cover."
            )
        if len(kinds) != layers:
            raise PredictError(f"{look.source}: layer_types lists {len(kinds)} layers, num_hidden_layers says {layers}.")
        attention = sum(kind in _ATTENTION for kind in kinds)
        return attention, layers - attention
    if "linear_num_value_heads" in look.text:
        # Qwen3-Next and its kin: every interval-th layer is full attention, 4 where the config leaves it out
        attention = layers // (look.maybe("full_attention_interval") or 4)
        return attention, layers - attention
    recurrent = next((key for key in look.text if key.startswith(("mamba_", "ssm_", "state_size", "attn_layer"))), None)
    if recurrent:
        raise PredictError(
            f"{look.source}: {recurrent} means recurrent layers that are no gated delta nets; they are not covered."
        )
    return layers, 0


class _Fields:
    """Reads fields so that every mistake names the file, the key and what was found."""

    def __init__(self, source: str, text: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
        self.source, self.text, self.whole = source, text, whole

    def maybe(self, key: str) -> int | None:
        value = self.text.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise PredictError(f"{self.source}: {key} must be a whole number of at least 1, not {value!r}.")
        return value

    def count(self, key: str) -> int:
        value = self.maybe(key)
        if value is None:
            raise PredictError(f"{self.source}: lacks {key}, which the cache size depends on.")
        return value

    def text_or(self, *keys: str) -> str | None:
        for where in (self.text, self.whole):
            for key in keys:
                if isinstance(where.get(key), str):
                    return _named(where[key])
        return None
