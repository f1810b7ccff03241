"""refact: llama with attention that falls with the distance (ALiBi) instead of a rotation."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace, outside
from aleator.models.architectures import gpt_files
from aleator.models.config import Fields, GGUFFile, ModelConfig, refuse_others

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
    return replace(config, alibi=ALIBI)


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
    ),
)
