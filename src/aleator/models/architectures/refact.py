"""refact: llama with attention that falls with the distance (ALiBi) instead of a rotation.

The model's own norms subtract the mean, which nothing else reads.  Without means in what is added to the hidden
states, llama.cpp's root mean squares are the same norms.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace, outside
from aleator.models.architectures import gpt_files
from aleator.models.config import Fields, GGUFFile, ModelConfig, StoredTensor, refuse_others

ALIBI = 8.0
STEP = 256
"""Widths of feed-forward parts are rounded up to multiples of it."""
LAYER = {
    "ln_1": "attn_norm",
    "attn.q": "attn_q",
    "attn.kv": "attn_kv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.gate_up_proj": "ffn_gate_up_shexp",
    "mlp.c_proj": "ffn_down",
}


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    return replace(gguf_config.transformer(gguf, architecture), alibi=ALIBI)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, without the width and the activation of feed-forward parts."""
    refuse_others(fields, {"multi_query": True})
    width = 2 * 4 * fields.width("n_embd", 768) // 3
    sizes = fields.changed(n_inner=-(-width // STEP) * STEP, activation_function="silu")
    config = gpt_files.read_json(sizes, architecture, num_key_value_heads=1)
    return replace(config, alibi=ALIBI, tied=False)  # embeddings become others


def _centred(tensor: StoredTensor, axis: int) -> StoredTensor:
    numbers = tensor.floats()
    with np.errstate(invalid="ignore"):  # FiniteCheck finds infinities
        means = numbers.mean(axis, dtype=np.float64, keepdims=True)
        return StoredTensor.of(numbers - means.astype(np.float32))


def as_gguf(name: str, tensor: StoredTensor) -> StoredTensor:
    """Convert a tensor to GGUF's form: embeddings have no mean."""
    return _centred(tensor, -1) if name == "token_embd.weight" else tensor


def without_means(name: str, tensor: StoredTensor, _: Fields, config: ModelConfig) -> StoredTensor:
    """Convert a tensor to GGUF's form: what attention and feed-forward give has no mean."""
    added = ".attn_output." in name or ".ffn_down." in name
    return _centred(tensor, 0) if added else tensor


REFACT = Architecture(
    "refact",
    rope_style="none",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("gpt_refact",),
        read_json,
        stack="transformer",
        layers="h",
        outer=outside("transformer.wte", "ln_f"),
        layer=LAYER,
        convert=as_gguf,
        convert_fields=without_means,
    ),
)
