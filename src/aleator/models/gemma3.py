"""gemma3: norms before and after attention and feed-forward, normalised query and key heads, GeGLU.

Most layers see a window of the latest positions and have a rotary base of their own; embeddings are
multiplied by sqrt(n_embd).  As in llama.cpp, weights of norms are stored whole (Hugging Face stores them
less one).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from aleator.models import gguf_config, json_config
from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.config import (
    MAX_LAYERS,
    MAX_LENGTH,
    MAX_THETA,
    ModelConfig,
    RopeConfig,
    WindowConfig,
    unsupported,
)
from aleator.models.conversions import in_text_model, text_part, whole_norms
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile

# What transformers' Gemma3TextConfig has where config.json says nothing.
DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
}
HEAD_DIM = 256
PATTERN = 6  # every so many layers one sees everything, where the file says nothing
LOCAL_THETA = 10000.0
LAYERS_OF_27B = 62


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file: windows, scale and cap as llama.cpp has them."""
    config, fields = gguf_config.transformer(gguf, architecture), gguf.fields
    n = config.n_layers
    size = fields.integer("gemma3.attention.sliding_window", 0, MAX_LENGTH, 0)
    key = "gemma3.attention.sliding_window_pattern"
    pattern = fields.values.get(key)
    if isinstance(pattern, list):
        if len(pattern) != n or not all(type(each) is bool for each in pattern):
            raise fields.error(key, f"{key} must be a number or {n} booleans")
        layers = tuple(pattern)
    else:
        layers = _windowed(fields.integer(key, 0, MAX_LAYERS, PATTERN), n)
    theta = fields.number("gemma3.rope.freq_base_swa", 1.0, MAX_THETA, LOCAL_THETA)
    # llama.cpp knows the 27B model, whose heads are not scaled by their size, by its layers.
    width = config.n_embd // config.n_heads[0] if n == LAYERS_OF_27B else config.head_dim
    if width == 0:
        key, heads = "gemma3.embedding_length", config.n_heads[0]
        raise fields.error(key, f"{key} is {config.n_embd}; it must be at least the {heads} heads")
    return replace(
        config,
        window=_window(fields, size, layers, config.rope, theta),
        attention_scale=1.0 / math.sqrt(width),
        logit_softcap=fields.number("gemma3.final_logit_softcapping", 0.0, 1e6, 0.0),
    )


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, of the text part where the model reads pictures too."""
    if fields.get("model_type") == "gemma3":
        fields = text_part(fields, "gemma3_text", ["gemma3_text"])
    given = {key: value for key, value in fields.values.items() if value is not None}
    fields = Fields(fields.path, DEFAULTS | given)
    json_config.refuse_features(fields, "hidden_activation", "gelu_pytorch_tanh")
    config = json_config.transformer(
        fields, architecture, head_dim=HEAD_DIM, tied=True, rope=_rope_fields(fields, "full")
    )
    if fields.get("attn_logit_softcapping") is not None:
        raise unsupported(fields.path, "a cap on attention scores (attn_logit_softcapping)")
    if fields.get("use_bidirectional_attention", False):
        raise unsupported(fields.path, "attention to later tokens (use_bidirectional_attention)")
    kinds = fields.get("layer_types", kind=list)
    if kinds is None:
        every = fields.integer("sliding_window_pattern", 1, MAX_LAYERS, PATTERN)
        layers = _windowed(every, config.n_layers)
    elif len(kinds) != config.n_layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise fields.error(
            "layer_types",
            f"layer_types must name sliding_attention or full_attention for {config.n_layers} layers",
        )
    else:
        layers = tuple(kind == "sliding_attention" for kind in kinds)
    sliding = _rope_fields(fields, "sliding")
    local = json_config.read_rope(sliding, config.head_dim, config.context_length, architecture)
    if local.scaling != "none":
        raise unsupported(fields.path, "rotary scaling in window layers")
    size = fields.get("sliding_window", 4096 if "sliding_window" not in fields else 0)
    if not 0 <= size <= MAX_LENGTH:
        raise fields.error("sliding_window", f"sliding_window is {size}; it must be 1 or more")
    scalar = fields.number("query_pre_attn_scalar", 1e-6, 1e9, 256.0)
    return replace(
        config,
        window=_window(fields, size, layers, config.rope, local.theta),
        attention_scale=1.0 / math.sqrt(scalar),
        logit_softcap=fields.number("final_logit_softcapping", 0.0, 1e6, 0.0),
    )


def _windowed(every: int, n_layers: int) -> tuple[bool, ...]:
    """Window layers, and after ``every`` - 1 of them one that sees everything; 0: only windows."""
    return tuple(every == 0 or layer % every < every - 1 for layer in range(n_layers))


def _window(
    fields: Fields, size: int, layers: tuple[bool, ...], rope: RopeConfig, theta: float
) -> WindowConfig | None:
    if size == 0 or not any(layers):
        return None
    if rope.scaling not in ("none", "linear"):
        raise unsupported(
            fields.path, f"rotary scaling of type {rope.scaling!r} beside window layers"
        )
    return WindowConfig(size, layers, replace(rope, theta=theta, scaling="none", factor=1.0))


def _rope_fields(fields: Fields, layers: str) -> Fields:
    """The fields that describe the rotary embedding of "full" or "sliding" attention layers."""
    own: dict[str, Any] = {}
    for key in ("rope_parameters", "rope_scaling"):
        values = fields.get(key, kind=dict) or {}
        values = values.get(f"{layers}_attention", {} if "full_attention" in values else values)
        if values and (layers == "full" or key == "rope_parameters"):
            own = {"rope_parameters": values}
            break
    theta = {"full": ("rope_theta", 1e6), "sliding": ("rope_local_base_freq", LOCAL_THETA)}
    key, default = theta[layers]
    return Fields(fields.path, {"rope_theta": fields.get(key, default)} | own)


GEMMA3 = Architecture(
    "gemma3",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("gemma3", "gemma3_text"),
        read_json,
        layer=TRANSFORMER
        | {
            "self_attn.q_norm": "attn_q_norm",
            "self_attn.k_norm": "attn_k_norm",
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
        ours=in_text_model,
        convert=whole_norms,
    ),
    head_norm=True,
    post_norm=True,
    activation="gelu",
    scaled_embedding=True,
)
