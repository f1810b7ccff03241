"""Reads a model's dimensions from a Hugging Face ``config.json``.

An architecture's file uses :func:`full_attention` or :func:`transformer` as they are, or changes what they
give; the fields of one architecture alone are read in its own file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aleator.models.config import (
    MAX_LAYERS,
    MAX_LENGTH,
    MAX_THETA,
    MAX_WIDTH,
    ModelConfig,
    RopeConfig,
    check_groups,
    check_rope_dim,
    checked_rope,
    read_head_dim,
    unsupported,
)
from aleator.models.files.fields import Fields

if TYPE_CHECKING:
    from aleator.models.architecture import Architecture


def full_attention(
    fields: Fields,
    architecture: Architecture,
    *,
    head_dim: int | None = None,
    windows: bool = False,
    experts: bool = False,
) -> ModelConfig:
    """Read the dimensions of a model all of whose layers see the whole text.

    Args:
        fields: the configuration.
        architecture: whose it is.
        head_dim: size of a head where the file gives none; None: the width divided by the heads.
        windows: whether a ``sliding_window`` counts where no ``use_sliding_window`` switches it on or off.
        experts: whether there may be mixtures of experts, which the caller reads.

    Raises:
        FileFormatError: a field is missing, of the wrong type, out of range, or contradicts another.
        UnsupportedModel: the model needs what no decoder here computes, windows for one.
    """
    refuse_features(fields, experts=experts)
    layers = fields.get("layer_types", kind=list) or []
    switch = fields.get("use_sliding_window", windows)
    window = fields.get("sliding_window", kind=int)
    if any(layer != "full_attention" for layer in layers) or (switch and window is not None):
        raise unsupported(fields.path, "sliding-window attention (sliding_window)")
    return transformer(fields, architecture, head_dim=head_dim)


def transformer(
    fields: Fields,
    architecture: Architecture,
    *,
    head_dim: int | None = None,
    tied: bool = False,
    rope: Fields | None = None,
) -> ModelConfig:
    """Read the dimensions of layers with attention and a feed-forward part.

    Args:
        fields: the configuration.
        architecture: whose it is.
        head_dim: size of a head where the file gives none; None: the width divided by the heads.
        tied: whether the embedding is the output matrix where the file does not say.
        rope: the fields of the rotary embedding; None: ``fields``.

    Raises:
        FileFormatError: a field is missing, of the wrong type, out of range, or contradicts another.
        UnsupportedModel: rotary scaling that no decoder here computes.
    """
    n_layers, n_embd = read_size(fields)
    n_heads = (fields.integer("num_attention_heads", 1, MAX_WIDTH),) * n_layers
    n_kv_heads = (
        fields.integer("num_key_value_heads", 1, MAX_WIDTH, default=n_heads[0]),
    ) * n_layers
    check_groups(fields, "num_key_value_heads", n_heads, n_kv_heads)
    head_dim = read_head_dim(fields, "head_dim", n_embd, n_heads[0], head_dim)
    context_length = fields.integer("max_position_embeddings", 1, MAX_LENGTH)
    return ModelConfig(
        architecture=architecture.name,
        name=fields.get("_name_or_path", ""),
        n_vocab=fields.integer("vocab_size", 1, MAX_LENGTH),
        n_layers=n_layers,
        n_embd=n_embd,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        n_ff=(fields.integer("intermediate_size", 1, MAX_WIDTH),) * n_layers,
        head_dim=head_dim,
        head_dim_v=head_dim,
        rms_eps=fields.number("rms_norm_eps", 0.0, 1.0),
        context_length=context_length,
        tied=fields.get("tie_word_embeddings", tied),
        rope=read_rope(fields if rope is None else rope, head_dim, context_length),
    )


def refuse_features(
    fields: Fields, key: str = "hidden_act", activation: str = "silu", experts: bool = False
) -> None:
    """Raise UnsupportedModel for what would change the logits and no decoder here computes.

    Args:
        fields: the configuration.
        key: the field that names the activation.
        activation: the one that the architecture has.
        experts: whether it may have mixtures of experts.
    """
    if fields.get(key, activation) != activation:
        raise unsupported(fields.path, f"the activation {fields.get(key)!r} ({key})")
    for key in ("num_experts", "num_local_experts"):
        if not experts and fields.get(key, 0):
            raise unsupported(fields.path, f"a mixture of experts ({key})")
    if fields.get("quantization_config") is not None:
        raise unsupported(fields.path, "quantised safetensors (quantization_config)")


def read_size(fields: Fields) -> tuple[int, int]:
    """The number of layers, and their width."""
    return (
        fields.integer("num_hidden_layers", 1, MAX_LAYERS),
        fields.integer("hidden_size", 1, MAX_WIDTH),
    )


def read_rope(fields: Fields, head_dim: int, context_length: int) -> RopeConfig:
    """The rotary embedding, from ``rope_parameters`` (transformers 5) or ``rope_theta`` with ``rope_scaling``.

    Its style is always "neox": the rows of the matrices keep Hugging Face's order.
    """
    values: Mapping[str, Any] = (
        fields.get("rope_parameters", kind=dict) or fields.get("rope_scaling", kind=dict) or {}
    )
    rope = Fields(fields.path, values)
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling not in ("default", "linear", "yarn", "llama3"):
        raise unsupported(fields.path, f"rotary scaling of type {scaling!r} (rope_type)")
    for key in ("mscale", "mscale_all_dim", "truncate"):
        if rope.get(key) not in (None, key == "truncate"):
            raise unsupported(fields.path, f"{key} of the rotary scaling")
    outer = fields.number("rope_theta", 1.0, MAX_THETA, 10000.0)
    share = rope.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    share = fields.number("partial_rotary_factor", 0.0, 1.0, share)
    scaled, llama3 = scaling != "default", scaling == "llama3"
    factor = rope.number("factor", 1.0, 1e6) if scaled else 1.0
    # transformers' attention_factor replaces YaRN's own, which ours multiplies.
    attn_factor = rope.number("attention_factor", 0.0, 1e6, 1.0)
    if scaling == "yarn" and rope.get("attention_factor") is not None:
        attn_factor /= 1.0 + 0.1 * math.log(factor)
    dim = int(head_dim * share)
    check_rope_dim(rope, "partial_rotary_factor", dim, head_dim)
    read = RopeConfig(
        theta=rope.number("rope_theta", 1.0, MAX_THETA, outer),
        dim=dim,
        style="neox",
        scaling=scaling if scaled else "none",
        factor=factor,
        original_context=rope.integer(
            "original_max_position_embeddings", 1, MAX_LENGTH, context_length
        ),
        attn_factor=attn_factor,
        beta_fast=rope.number("beta_fast", 0.0, 1e6, 32.0),
        beta_slow=rope.number("beta_slow", 0.0, 1e6, 1.0),
        low_freq_factor=rope.number("low_freq_factor", 1e-6, 1e6, None if llama3 else 1.0),
        high_freq_factor=rope.number("high_freq_factor", 1e-6, 1e6, None if llama3 else 4.0),
    )
    return checked_rope(rope, read)
