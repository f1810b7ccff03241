"""Reads a model's dimensions from a Hugging Face ``config.json``.

An architecture's module uses :func:`full_attention` or :func:`transformer` as they are, or changes their
results; fields of a single architecture are read in its own module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aleator.models.architecture import Architecture
from aleator.models.config import (
    MAX_THETA,
    ModelConfig,
    RopeConfig,
    WindowConfig,
    check_groups,
    check_rope_dim,
    checked_rope,
    read_head_dim,
    unsupported,
)
from aleator.models.files.fields import Fields


def full_attention(
    fields: Fields,
    architecture: Architecture,
    *,
    windows: int = 0,
    window: int | None = None,
    max_window_layers: int | None = None,
    **options: Any,
) -> ModelConfig:
    """Read the dimensions of a model whose layers see the whole sequence, or windows from the file.

    Args:
        fields: the configuration.
        architecture: the model's architecture.
        windows: the layers with a ``sliding_window``: 0: none; 1: all; n: all except every nth.
        window: default size; None: no window by default.
        max_window_layers: default number of first layers without a window if ``use_sliding_window`` is on;
            None: transformers ignores that switch.
        options: see :func:`transformer`.
    """
    config = transformer(fields, architecture, **options)
    layers = [windows == 1 or (i + 1) % (windows or i + 1) != 0 for i in range(config.n_layers)]
    if max_window_layers is not None and fields.get("use_sliding_window", False):
        first = fields.length("max_window_layers", max_window_layers, low=0)
        layers = [layer >= first for layer in range(config.n_layers)]
        window = None if "sliding_window" in fields else WINDOW
    return replace(config, window=read_windows(fields, config, layers, size=window))


ACTIVATIONS = {
    "silu": "silu", "silu_clamped": "silu", "gelu": "gelu_pytorch_tanh", "gelu_exact": "gelu",
    "relu_squared": "relu2",
}  # fmt: skip
"""Activations as architectures name them -> as config.json does."""
WINDOW = 4096
"""Default positions of a window, as in transformers."""


def read_windows(
    fields: Fields,
    config: ModelConfig,
    layers: Sequence[bool],
    *,
    size: int | None = None,
    rope: RopeConfig | None = None,
) -> WindowConfig | None:
    """Read which layers see a window of the latest positions; None: none does.

    By default windows have ``size`` and ``layers`` have them.  ``rope`` is the other layers' rotary embedding.
    """
    listed = listed_windows(fields, config.n_layers)
    layers = layers if listed is None else listed
    if not any(layers):
        return None
    if fields.get("sliding_window") is None and size is None:
        if listed is not None:
            raise unsupported(fields.path, "windows of no size (layer_types)")
        return None
    found = fields.length("sliding_window", size)
    return WindowConfig(found, tuple(layers), rope or config.rope)


def listed_kinds(
    fields: Fields,
    n_layers: int,
    chosen: Sequence[str],
    others: Sequence[str],
    key: str = "layer_types",
) -> tuple[bool, ...] | None:
    """Whether each layer has one of the ``chosen`` kinds in the list ``key``; None: there is no list."""
    listed = fields.get(key, kind=list)
    if listed is None:
        return None
    kinds = (*chosen, *others)
    if len(listed) != n_layers or not all(kind in kinds for kind in listed):
        raise fields.error(key, f"{key} must name {' or '.join(kinds)} for {n_layers} layers")
    return tuple(kind in chosen for kind in listed)


_WINDOW_KINDS = ("sliding_attention", "full_attention")


def listed_windows(fields: Fields, n_layers: int) -> tuple[bool, ...] | None:
    """Whether each layer has a window by ``layer_types``; None: there is no list."""
    return listed_kinds(fields, n_layers, _WINDOW_KINDS[:1], _WINDOW_KINDS[1:])


def unrotated_layers(fields: Fields, n_layers: int, every: int) -> tuple[bool, ...]:
    """Which layers do not rotate, by ``no_rope_layers`` or ``no_rope_layer_interval``."""
    listed = fields.get("no_rope_layers", kind=list)
    if listed is None:
        step = fields.layers("no_rope_layer_interval", every)
        return tuple((layer + 1) % step == 0 for layer in range(n_layers))
    if len(listed) != n_layers:
        raise fields.error(
            "no_rope_layers", f"no_rope_layers has {len(listed)} entries for {n_layers} layers"
        )
    return tuple(not rotated for rotated in listed)


def transformer(
    fields: Fields,
    architecture: Architecture,
    *,
    activation: str = "hidden_act",
    experts: bool = False,
    head_dim: int | None = None,
    tied: bool = False,
    rope: Fields | None = None,
    rotated: float | None = None,
    eps: str = "rms_norm_eps",
) -> ModelConfig:
    """Read the dimensions of layers with attention and a feed-forward part.

    Args:
        fields: the configuration.
        architecture: the model's architecture.
        activation: the field that names the activation; the architecture's alone is supported.
        experts: whether mixtures of experts are allowed, which the caller reads.
        head_dim: default size of a head; None: the width divided by the heads.
        tied: whether the embedding is the output matrix by default.
        rope: the fields of the rotary embedding; None: ``fields``.
        rotated: default share of a head's channels that is rotated; None: all are, whatever share the file has.
        eps: the field with the norms' epsilon.
    """
    refuse_features(fields, architecture, activation, experts)
    n_layers, n_embd = fields.layers("num_hidden_layers"), fields.width("hidden_size")
    n_heads = (fields.width("num_attention_heads"),) * n_layers
    n_kv_heads = (fields.width("num_key_value_heads", default=n_heads[0]),) * n_layers
    check_groups(fields, "num_key_value_heads", n_heads, n_kv_heads)
    head_dim = read_head_dim(fields, "head_dim", n_embd, n_heads[0], head_dim)
    context_length = fields.length("max_position_embeddings")
    return ModelConfig(
        architecture=architecture.name,
        name=fields.get("_name_or_path", ""),
        n_vocab=fields.length("vocab_size"),
        n_layers=n_layers,
        n_embd=n_embd,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        n_ff=(fields.width("intermediate_size"),) * n_layers,
        head_dim=head_dim,
        head_dim_v=head_dim,
        rms_eps=fields.number(eps, 0.0, 1.0),
        context_length=context_length,
        tied=fields.get("tie_word_embeddings", tied),
        rope=read_rope(
            fields if rope is None else rope, head_dim, context_length, architecture, rotated
        ),
        parallel=architecture.parallel,
    )


def refuse_features(
    fields: Fields, architecture: Architecture, key: str = "hidden_act", experts: bool = False
) -> None:
    """Raise UnsupportedModel for settings that would change the logits and are not supported.

    The field ``key`` names the activation; ``experts``: the architecture may have mixtures of experts.
    """
    activation = ACTIVATIONS[architecture.activation]
    if fields.get(key, activation) != activation:
        raise unsupported(fields.path, f"the activation {fields.get(key)!r} ({key})")
    for key in ("num_experts", "num_local_experts"):
        if not experts and fields.get(key, 0):
            raise unsupported(fields.path, f"a mixture of experts ({key})")
    from aleator.models.prequantised.directories import given_by  # GGUF files do without

    given_by(fields)


def rope_fields(fields: Fields) -> Fields:
    """The fields in ``rope_parameters`` (transformers 5) or ``rope_scaling``."""
    own = fields.get("rope_parameters", kind=dict) or fields.get("rope_scaling", kind=dict) or {}
    return Fields(fields.path, own)


def rope_part(fields: Fields, kind: str) -> Fields:
    """The fields of the rotary embedding of one ``kind`` of layers, where config.json has several."""
    values = fields.get("rope_parameters", kind=dict) or {}
    if not any(name in values for name in _WINDOW_KINDS):
        return fields
    part = Fields(fields.path, values).get(kind, kind=dict) or {}
    return fields.changed(rope_parameters=part)


def with_scaling(fields: Fields, kind: str, others: Sequence[str]) -> Fields:
    """The fields with rotary scaling of the type ``kind`` instead of ``others``."""
    changed = {}
    for key in ("rope_parameters", "rope_scaling"):
        rope = fields.get(key, kind=dict)
        if rope and rope.get("rope_type", rope.get("type")) in others:
            changed[key] = {**rope, "rope_type": kind}
    return fields.changed(**changed)


THETAS = {
    "cohere": 5e5, "ernie4_5": 5e5, "ernie4_5_moe": 5e5, "gpt_oss": 1.5e5, "lfm2": 1e6, "lfm2_moe": 1e6,
    "minimax_m2": 5e6, "mixtral": 1e6, "olmo3": 5e5, "qwen2_5_vl": 1e6, "qwen2_5_vl_text": 1e6,
    "qwen2_vl": 1e6, "qwen2_vl_text": 1e6, "qwen3_vl": 5e5, "qwen3_vl_text": 5e5, "smollm3": 2e6,
}  # fmt: skip
"""``rope_theta`` by ``model_type`` if config.json has none, as in transformers; of others 10,000."""


def read_rope(
    fields: Fields,
    head_dim: int,
    context_length: int,
    architecture: Architecture,
    rotated: float | None = None,
) -> RopeConfig:
    """The rotary embedding, from ``rope_theta`` and :func:`rope_fields`.

    ``rotated``: see :func:`transformer`.
    """
    style = architecture.hugging_face.rope_style if architecture.hugging_face else "neox"
    if architecture.rope_style == "none":
        return RopeConfig(dim=head_dim // 2 * 2, style="none")
    rope = rope_fields(fields)
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling not in ("default", "linear", "yarn", "llama3", "longrope", "dynamic"):
        raise unsupported(fields.path, f"rotary scaling of type {scaling!r} (rope_type)")
    outer = fields.number(
        "rope_theta", 1.0, MAX_THETA, THETAS.get(fields.get("model_type", ""), 1e4)
    )
    share = fields.number("partial_rotary_factor", 0.0, 1.0, 1.0 if rotated is None else rotated)
    share = rope.number("partial_rotary_factor", 0.0, 1.0, share)
    if rotated is None and share != 1.0:
        # As in transformers: without scaling it ignores the share, with scaling the shapes disagree.
        if scaling != "default":
            raise unsupported(fields.path, "partial_rotary_factor together with rotary scaling")
        share = 1.0
    scaled, llama3 = scaling != "default", scaling == "llama3"
    original = rope.length("original_max_position_embeddings", context_length)
    if scaling == "longrope" and "original_max_position_embeddings" not in rope:
        original = fields.length("original_max_position_embeddings", context_length)
    if scaling == "dynamic":
        original = context_length
    own = rope.get("factor") is None and scaling in ("yarn", "longrope")
    factor = context_length / original if own else 1.0
    if scaled and not own:
        factor = rope.number("factor", 1.0, 1e6)
    dim = int(head_dim * share)
    check_rope_dim(rope, "partial_rotary_factor", dim, head_dim)
    theta = rope.number("rope_theta", 1.0, MAX_THETA, outer)
    alpha = rope.number("alpha", 0.0, 1e6, 0.0) if scaling == "dynamic" else 0.0
    if scaling == "dynamic" and dim < 4:
        raise fields.error("head_dim", f"dynamic rotary scaling of {dim} channels; it needs 4")
    if alpha:  # the base grows by the file's factor, whatever the context
        theta, scaling = theta * alpha ** (dim / (dim - 2)), "default"
    read = RopeConfig(
        theta=theta,
        dim=dim,
        style=style,
        scaling=scaling if scaling != "default" else "none",
        factor=factor,
        original_context=original,
        attn_factor=_attention_factor(rope, scaling, factor, original),
        beta_fast=rope.number("beta_fast", 0.0, 1e6, 32.0),
        beta_slow=rope.number("beta_slow", 0.0, 1e6, 1.0),
        low_freq_factor=rope.number("low_freq_factor", 1e-6, 1e6, None if llama3 else 1.0),
        high_freq_factor=rope.number("high_freq_factor", 1e-6, 1e6, None if llama3 else 4.0),
        truncate=rope.get("truncate", True),
        short_factors=_factors(rope, "short_factor", dim, scaling),
        long_factors=_factors(rope, "long_factor", dim, scaling),
    )
    return checked_rope(rope, read)


def _attention_factor(rope: Fields, scaling: str, factor: float, original: int) -> float:
    """The factor of lengths, without YaRN's own 1 + 0.1 ln(factor), which is applied later."""
    given = rope.get("attention_factor", kind=float)
    if given is not None:
        given = rope.number("attention_factor", 0.0, 1e6)
    if scaling == "yarn":
        own = 1.0 + 0.1 * math.log(factor)
        if given is not None:
            return given / own
        parts = [rope.number(key, 0.0, 1e6, 0.0) for key in ("mscale", "mscale_all_dim")]
        if not all(parts):
            return 1.0
        wanted = [1.0 + 0.1 * part * math.log(factor) for part in parts]
        return wanted[0] / wanted[1] / own
    if scaling == "longrope" and given is None:
        return math.sqrt(1.0 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0
    return 1.0 if given is None else given


def _factors(rope: Fields, key: str, dim: int, scaling: str) -> tuple[float, ...]:
    """A table of longrope, one positive number for each pair of channels."""
    if scaling != "longrope":
        return ()
    values = rope.require(key, list)
    numbers = [Fields(rope.path, {key: value}).number(key, 1e-9, 1e9) for value in values]
    if len(numbers) != dim // 2:
        raise rope.error(key, f"{key} has {len(numbers)} numbers for {dim // 2} pairs of channels")
    return tuple(numbers)
