"""plamo3: norms around each part, normalised heads, windows in seven of eight layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import (
    MAX_THETA,
    Fields,
    GGUFFile,
    ModelConfig,
    RopeConfig,
    StoredTensor,
    refuse,
)
from aleator.models.json_config import full_attention, read_windows

THETA, WINDOW = 150000.0, 128  # if config.json has none
EVERY = 8  # the last of this many layers sees everything, unless the file says otherwise
LAYER = {
    "pre_mixer_norm": "attn_norm",
    "mixer.qkv_proj": "attn_qkv",
    "mixer.q_norm": "attn_q_norm",
    "mixer.k_norm": "attn_k_norm",
    "mixer.o_proj": "attn_output",
    "pre_mlp_norm": "ffn_norm",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
POST_NORMS = {
    "post_mixer_norm.weight": "post_attention_norm",
    "post_mlp_norm.weight": "post_ffw_norm",
}
LESS = {"post_attention_norm": 1.0 / 5, "post_ffw_norm": 1.0 / 5**1.5}
"""What directories' weights of norms lack, where that is not 1."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture)
    rope = replace(
        config.rope, theta=RopeConfig().theta
    )  # of windows, if the file has no other base
    window = gguf_config.read_windows(gguf.fields, config, every=EVERY, rope=rope)
    return replace(config, window=window)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; windows have a rotation without scaling."""
    refuse(fields, "embeddings that are multiplied", "scale_embedding")
    size = fields.get("sliding_window", WINDOW)  # of older files
    fields = fields.over({"rope_theta": fields.get("rope_global_theta", THETA)})
    growth = fields.number("rope_scaling_factor", 1.0, 1e6, 1.0)
    if growth != 1:
        scaling = {
            "rope_type": "yarn",
            "factor": growth,
            "original_max_position_embeddings": fields.length("initial_context_length"),
            "truncate": False,
        }
        fields = fields.changed(rope_scaling=scaling)
    config = full_attention(fields, architecture, tied=True)
    every = fields.layers("sliding_window_pattern", EVERY)
    theta = fields.number("rope_local_theta", 1.0, MAX_THETA, RopeConfig().theta)
    local = RopeConfig(theta=theta, dim=config.rope.dim, style=config.rope.style)
    layers = [(layer + 1) % every != 0 for layer in range(config.n_layers)]
    sized = fields.changed(sliding_window=fields.length("window_size", size))
    return replace(config, window=read_windows(sized, config, layers, rope=local))


def as_gguf(name: str, tensor: StoredTensor) -> StoredTensor:
    """Convert a tensor to GGUF's form: weights of norms are whole."""
    stem = name.removesuffix(".weight").rpartition(".")[2]
    if not stem.endswith("norm"):
        return tensor
    return StoredTensor.of(tensor.floats() + np.float32(LESS.get(stem, 1.0)))


PLAMO3 = Architecture(
    "plamo3",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("plamo3",),
        read_json,
        stack="model.layers",
        layer=LAYER,
        bare=POST_NORMS,
        convert=as_gguf,
    ),
    head_norm=True,
    post_norm=True,
    fused_gate=True,
)
