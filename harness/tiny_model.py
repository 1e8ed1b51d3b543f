"""Write a tiny random-weight checkpoint with its tokenizer: offline, without torch, the same bytes for the same seed.

`dense` is a Qwen3 (served by vLLM, SGLang, vllm.cpp and, as GGUF, llama.cpp); `hybrid` is a Qwen3-Next: three gated-delta-net
layers to one of attention, with a small mixture of experts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

Kind = Literal["dense", "hybrid"]

VOCABULARY = 2048
CONTEXT = 32768
"""max_position_embeddings, tokens."""
SPREAD = 0.08
"""Standard deviation of the matrices: wide enough that greedy outputs differ between prompts and do not end at once."""
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen's pre-tokenizer, known to llama.cpp as "qwen2"."""

_BASE: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "dtype": "bfloat16",
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 256,
    "max_position_embeddings": CONTEXT,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": VOCABULARY,
}
_DENSE: dict[str, Any] = {
    **_BASE,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 32,
    "layer_types": ["full_attention"] * 4,
    "max_window_layers": 4,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "rope_theta": 10000.0,
    "sliding_window": None,
    "use_sliding_window": False,
}
_HYBRID: dict[str, Any] = {
    **_BASE,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "decoder_sparse_step": 1,
    "full_attention_interval": 4,
    "head_dim": 64,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 64,
    "mlp_only_layers": [],
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"},
    "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 64,
}
CONFIGS: dict[Kind, dict[str, Any]] = {"dense": _DENSE, "hybrid": _HYBRID}


def write_tiny_model(out: Path, kind: Kind, gguf: bool = False, seed: int = 0) -> list[Path]:
    """Write the checkpoint into folder `out` and return its files; with `gguf` also `model.gguf`, the same weights.

    Raises ValueError for a GGUF of the hybrid kind, ModuleNotFoundError without the PyPI package `gguf`: a sentence each.
    """
    if kind not in CONFIGS:
        raise ValueError(f"kind is {kind!r}: it must be one of {', '.join(CONFIGS)}.")
    if gguf and kind != "dense":
        raise ValueError("a GGUF is written for the dense kind only: give --kind dense.")
    config = CONFIGS[kind]
    tensors = {name: _rounded(values) for name, values in _weights(config, seed)}
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    documents: dict[str, Any] = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
        "tokenizer_config.json": {
            "chat_template": CHAT,
            "eos_token": SPECIAL[0],
            "pad_token": SPECIAL[0],
            "extra_special_tokens": list(SPECIAL[1:]),
            "model_max_length": CONTEXT,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    }
    files = [out / "model.safetensors", out / "tokenizer.json", *(out / name for name in documents)]
    _write_safetensors(files[0], tensors)
    files[1].write_text(tokenizer, "utf-8")
    for name, document in documents.items():
        (out / name).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if gguf:
        files.append(out / "model.gguf")
        _write_gguf(files[-1], config, tensors, json.loads(tokenizer))
    return files


def _tokenizer() -> str:
    """A byte-level BPE of 2048 entries, trained on made-up words, as tokenizer.json."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    made = random.Random(0)
    syllables = [a + b for a in "bcdfghklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "in")]
    words = ["".join(made.choice(syllables) for _ in range(made.randint(1, 4))) for _ in range(4000)]
    corpus = [" ".join(made.choice(words) for _ in range(40)) for _ in range(2000)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError(f"the trained vocabulary has {tokenizer.get_vocab_size()} entries instead of {VOCABULARY}.")
    return str(tokenizer.to_str(pretty=False))


def _weights(config: dict[str, Any], seed: int) -> Iterator[tuple[str, Floats]]:
    """Every tensor of the checkpoint, in a fixed order: matrices normal with SPREAD, norms neutral."""
    import numpy as np

    draw = np.random.default_rng(seed)
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    hybrid = config["model_type"] == "qwen3_next"
    neutral = 0.0 if hybrid else 1.0  # Qwen3-Next's norms scale by 1 + weight

    def matrix(*shape: int) -> Floats:
        return (draw.standard_normal(shape) * SPREAD).astype(np.float32)

    def flat(size: int, value: float) -> Floats:
        return np.full(size, value, np.float32)

    yield "model.embed_tokens.weight", matrix(vocabulary, hidden)
    yield "lm_head.weight", matrix(vocabulary, hidden)
    yield "model.norm.weight", flat(hidden, neutral)
    for index, layer in enumerate(config["layer_types"]):
        at = f"model.layers.{index}"
        yield f"{at}.input_layernorm.weight", flat(hidden, neutral)
        yield f"{at}.post_attention_layernorm.weight", flat(hidden, neutral)
        if layer == "full_attention":
            dim, heads, kv = config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]
            gate = 2 if hybrid else 1  # Qwen3-Next's query projection carries the output gate as well
            yield f"{at}.self_attn.q_proj.weight", matrix(gate * heads * dim, hidden)
            yield f"{at}.self_attn.k_proj.weight", matrix(kv * dim, hidden)
            yield f"{at}.self_attn.v_proj.weight", matrix(kv * dim, hidden)
            yield f"{at}.self_attn.o_proj.weight", matrix(hidden, heads * dim)
            yield f"{at}.self_attn.q_norm.weight", flat(dim, neutral)
            yield f"{at}.self_attn.k_norm.weight", flat(dim, neutral)
        else:
            keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
            heads = config["linear_num_value_heads"]
            values = heads * config["linear_value_head_dim"]
            yield f"{at}.linear_attn.in_proj_qkvz.weight", matrix(2 * keys + 2 * values, hidden)
            yield f"{at}.linear_attn.in_proj_ba.weight", matrix(2 * heads, hidden)
            yield f"{at}.linear_attn.conv1d.weight", matrix(2 * keys + values, 1, config["linear_conv_kernel_dim"])
            yield f"{at}.linear_attn.out_proj.weight", matrix(hidden, values)
            yield f"{at}.linear_attn.norm.weight", flat(config["linear_value_head_dim"], 1.0)
            yield f"{at}.linear_attn.A_log", np.log(draw.uniform(1, 16, heads)).astype(np.float32)
            yield f"{at}.linear_attn.dt_bias", flat(heads, 1.0)
        if not hybrid:
            yield from _mlp(f"{at}.mlp", hidden, config["intermediate_size"], matrix)
            continue
        yield f"{at}.mlp.gate.weight", matrix(config["num_experts"], hidden)
        yield f"{at}.mlp.shared_expert_gate.weight", matrix(1, hidden)
        yield from _mlp(f"{at}.mlp.shared_expert", hidden, config["shared_expert_intermediate_size"], matrix)
        for expert in range(config["num_experts"]):
            yield from _mlp(f"{at}.mlp.experts.{expert}", hidden, config["moe_intermediate_size"], matrix)


def _mlp(at: str, hidden: int, inner: int, matrix: Any) -> Iterator[tuple[str, Floats]]:
    yield f"{at}.gate_proj.weight", matrix(inner, hidden)
    yield f"{at}.up_proj.weight", matrix(inner, hidden)
    yield f"{at}.down_proj.weight", matrix(hidden, inner)


def _rounded(values: Floats) -> NDArray[np.uint16]:
    """float32 -> the bits of bfloat16, rounded to nearest even."""
    import numpy as np

    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _write_safetensors(path: Path, tensors: dict[str, NDArray[np.uint16]]) -> None:
    """The safetensors format itself (length, JSON, data): numpy has no bfloat16 that the library would take."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [at, at + bits.nbytes]}
        at += bits.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for bits in tensors.values():
            file.write(bits.astype("<u2", copy=False).tobytes())


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "lm_head": "output",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """A checkpoint's tensor name -> llama.cpp's, e.g. model.layers.0.mlp.up_proj.weight -> blk.0.ffn_up.weight."""
    bare = name.removesuffix(".weight")
    if not bare.startswith("model.layers."):
        return f"{_GGUF_NAMES[bare]}.weight"
    _, _, index, rest = bare.split(".", 3)
    return f"blk.{index}.{_GGUF_NAMES[rest]}.weight"


def _write_gguf(path: Path, config: dict[str, Any], tensors: dict[str, NDArray[np.uint16]], tokenizer: dict[str, Any]) -> None:
    """The same bfloat16 weights as GGUF (norms widened to float32, as llama.cpp wants them)."""
    try:
        import gguf
    except ModuleNotFoundError:
        raise ModuleNotFoundError("writing a GGUF needs the package gguf: install evenhand[llamacpp].") from None
    import numpy as np

    writer = gguf.GGUFWriter(str(path), "qwen3")
    writer.add_name("tiny")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in SPECIAL else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT)
    for name, bits in tensors.items():
        if bits.ndim == 1:
            writer.add_tensor(gguf_name(name), (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            raw = np.ascontiguousarray(bits.astype("<u2", copy=False)).view(np.uint8)
            writer.add_tensor(gguf_name(name), raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
