"""What gemma3 and gemma-embedding share in files."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from aleator.models import gguf_config, json_config
from aleator.models.architecture import HEAD_NORMS, NORMS_AROUND, TRANSFORMER, Architecture
from aleator.models.config import ModelConfig, RopeConfig, WindowConfig, refuse, unsupported
from aleator.models.conversions import text_part
from aleator.models.files.fields import MAX_LENGTH, Fields
from aleator.models.files.gguf import GGUFFile

# Defaults of transformers' Gemma3TextConfig.
DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
}
HEAD_DIM = 256
PATTERN = 6  # one of this many layers sees everything, unless the file says otherwise
LOCAL_THETA = 10000.0
LAYERS_OF_27B = 62
LAYER = TRANSFORMER | HEAD_NORMS | NORMS_AROUND


def is_encoder(fields: Fields) -> bool:
    """Whether a config.json is of a text model whose tokens see later ones too."""
    text = fields.get("model_type") == "gemma3_text"
    return text and fields.get("use_bidirectional_attention", False)


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file: windows, scale and cap as in llama.cpp."""
    config, fields = gguf_config.transformer(gguf, architecture), gguf.fields
    name, n = architecture.name, config.n_layers
    local = replace(config.rope, theta=LOCAL_THETA)
    window = gguf_config.read_windows(fields, config, every=PATTERN, rope=local)
    if window is not None:
        window = replace(window, rope=_unscaled(fields, window.rope, window.rope.theta))
    # As in llama.cpp, the number of layers marks the 27B model, whose scores are not scaled by the head size.
    width = config.n_embd // config.n_heads[0] if n == LAYERS_OF_27B else config.head_dim
    if width == 0:
        key, heads = f"{name}.embedding_length", config.n_heads[0]
        raise fields.error(key, f"{key} is {config.n_embd}; it must be at least the {heads} heads")
    return replace(
        config,
        window=window,
        attention_scale=1.0 / math.sqrt(width),
        logit_softcap=fields.number(f"{name}.final_logit_softcapping", 0.0, 1e6, 0.0),
    )


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; of the text part if the model also reads pictures."""
    fields = text_part(fields, "gemma3_text").over(DEFAULTS)
    config = json_config.transformer(
        fields,
        architecture,
        activation="hidden_activation",
        head_dim=HEAD_DIM,
        tied=True,
        rope=_rope_fields(fields, "full"),
    )
    if fields.get("attn_logit_softcapping") is not None:
        raise unsupported(fields.path, "a cap on attention scores (attn_logit_softcapping)")
    if architecture.causal:
        refuse(fields, "attention to later tokens", "use_bidirectional_attention")
    layers = json_config.listed_windows(fields, config.n_layers)
    if layers is None:
        every = fields.layers("sliding_window_pattern", PATTERN)
        layers = tuple((layer + 1) % every != 0 for layer in range(config.n_layers))
    sliding = _rope_fields(fields, "sliding")
    local = json_config.read_rope(sliding, config.head_dim, config.context_length, architecture)
    if local.scaling != "none":
        raise unsupported(fields.path, "rotary scaling in window layers")
    size = fields.get("sliding_window", 4096 if "sliding_window" not in fields else 0)
    if not 0 <= size <= MAX_LENGTH:
        raise fields.error("sliding_window", f"sliding_window is {size}; it must be 1 or more")
    window = None
    if size and any(layers):
        window = WindowConfig(size, layers, _unscaled(fields, config.rope, local.theta))
    scalar = fields.number("query_pre_attn_scalar", 1e-6, 1e9, 256.0)
    return replace(
        config,
        window=window,
        attention_scale=1.0 / math.sqrt(scalar),
        logit_softcap=fields.number("final_logit_softcapping", 0.0, 1e6, 0.0),
    )


def _unscaled(fields: Fields, rope: RopeConfig, theta: float) -> RopeConfig:
    """The rotary embedding of layers with a window, if the others have ``rope``."""
    if rope.scaling not in ("none", "linear"):
        raise unsupported(
            fields.path, f"rotary scaling of type {rope.scaling!r} beside window layers"
        )
    return replace(rope, theta=theta, scaling="none", factor=1.0)


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
