"""Reads a model's dimensions from GGUF metadata.

An architecture's module uses :func:`transformer` as it is, or changes its result; fields of a single
architecture are read in its own module.
"""

from __future__ import annotations

import math
from dataclasses import replace

from aleator.models.architecture import Architecture
from aleator.models.config import (
    MAX_CONV,
    MAX_STATE,
    MAX_THETA,
    DenseConfig,
    ModelConfig,
    RopeConfig,
    SSMConfig,
    WindowConfig,
    check_groups,
    check_rope_dim,
    checked_heads,
    checked_rope,
    read_head_dim,
    unsupported,
    without_attention,
)
from aleator.models.files.fields import MAX_WIDTH, Fields
from aleator.models.files.gguf import GGUFFile


def transformer(
    gguf: GGUFFile,
    architecture: Architecture,
    *,
    least_kv_heads: int = 1,
    experts: bool = False,
) -> ModelConfig:
    """Read the dimensions of layers with attention and a feed-forward part.

    ``least_kv_heads`` is 0 if layers may keep a state instead.  The caller reads ``experts``; if all layers
    have them, the width of feed-forward parts may be missing.
    """
    fields, name = gguf.fields, architecture.name
    refuse_features(fields, name, experts, architecture.causal)
    n_layers = fields.layers(f"{name}.block_count")
    n_embd = fields.width(f"{name}.embedding_length")
    n_ff_key = f"{name}.feed_forward_length"
    n_ff = (
        _per_layer(fields, n_ff_key, n_layers, low=0 if architecture.single_parts else 1)
        if n_ff_key in fields or not experts
        else (0,) * n_layers
    )
    heads_key = f"{name}.attention.head_count"
    n_heads = _per_layer(fields, heads_key, n_layers, least_kv_heads)
    n_kv_heads = (
        _per_layer(fields, f"{heads_key}_kv", n_layers, least_kv_heads)
        if f"{heads_key}_kv" in fields
        else n_heads
    )
    check_groups(fields, f"{heads_key}_kv", n_heads, n_kv_heads)
    head_dim = read_head_dim(fields, f"{name}.attention.key_length", n_embd, max(n_heads))
    head_dim_v = read_head_dim(fields, f"{name}.attention.value_length", n_embd, max(n_heads))
    context_length = fields.length(f"{name}.context_length")
    eps_key = f"{name}.attention.layer_norm{'_rms' if architecture.norm == 'rms' else ''}_epsilon"
    return ModelConfig(
        architecture=name,
        name=fields.get("general.name", ""),
        n_vocab=read_n_vocab(gguf, name),
        n_layers=n_layers,
        n_embd=n_embd,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        n_ff=n_ff,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        rms_eps=fields.number(eps_key, 0.0, 1.0),
        context_length=context_length,
        tied="output.weight" not in gguf.tensors,
        rope=_read_rope(fields, architecture, head_dim, context_length),
        parallel=architecture.parallel,
        pooling=_read_pooling(fields, f"{name}.pooling_type"),
        score_pooling=_read_pooling(fields, f"{name}.classifier.pooling_type"),
        dense=_read_dense(gguf),
    )


def _read_dense(gguf: GGUFFile) -> tuple[DenseConfig, ...]:
    """The dense layers behind the pooling, which llama.cpp numbers from 2 as sentence-transformers does."""
    found = [name for name in gguf.tensors if name.startswith("dense_") and ".weight" in name]
    made: list[DenseConfig] = []
    for i in range(len(found)):
        name = f"dense_{i + 2}.weight"
        shape = gguf.tensors[name].shape if name in gguf.tensors else ()
        if len(shape) != 2:
            raise unsupported(gguf.path, f"the tensor {name} of shape {list(shape)}")
        made.append(DenseConfig(shape[1], shape[0]))
    return tuple(made)


def without_further(fields: Fields, config: ModelConfig) -> ModelConfig:
    """The dimensions without the last layers, if these predict further tokens."""
    key, n = f"{config.architecture}.nextn_predict_layers", config.n_layers
    return config.beginning(n - fields.integer(key, 0, n - 1, 0))


POOLINGS = ("none", "mean", "cls", "last", "rank")
"""Ways of pooling by their numbers in files."""


def _read_pooling(fields: Fields, key: str) -> str:
    if key not in fields:
        return ""
    return POOLINGS[fields.integer(key, 0, len(POOLINGS) - 1)]


def states_alone(gguf: GGUFFile, architecture: Architecture, ssm: SSMConfig) -> ModelConfig:
    """Read the dimensions of layers that keep a state and nothing else."""
    fields, name = gguf.fields, architecture.name
    refuse_features(fields, name)
    return without_attention(
        name,
        name=fields.get("general.name", ""),
        n_vocab=read_n_vocab(gguf, name),
        n_layers=fields.layers(f"{name}.block_count"),
        n_embd=fields.width(f"{name}.embedding_length"),
        rms_eps=fields.number(f"{name}.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        context_length=fields.length(f"{name}.context_length"),
        tied="output.weight" not in gguf.tensors,
        ssm=ssm,
    )


def read_windows(
    fields: Fields,
    config: ModelConfig,
    *,
    size: int | None = None,
    every: int = 0,
    rope: RopeConfig | None = None,
    own_base: bool = True,
) -> WindowConfig | None:
    """Read which layers see a window of the latest positions; None: none does.

    By default windows have ``size``, and the last of every ``every`` layers sees everything (0: none does).
    ``rope`` is the rotary embedding of the other layers.  ``own_base``: the file may have another base for
    these; llama.cpp reads one for all architectures, and does not use it for some.
    """
    name, n = config.architecture, config.n_layers
    found = fields.length(f"{name}.attention.sliding_window", size or 0, low=0)
    key = f"{name}.attention.sliding_window_pattern"
    pattern = fields.values.get(key)
    if isinstance(pattern, list):
        if len(pattern) != n or not all(type(each) is bool for each in pattern):
            raise fields.error(key, f"{key} must be a number or {n} booleans")
        layers = tuple(pattern)
    else:
        step = fields.layers(key, every, low=0)
        layers = tuple(step == 0 or layer % step < step - 1 for layer in range(n))
    if found == 0 or not any(layers):
        return None
    rope = rope or config.rope
    theta = fields.number(f"{name}.rope.freq_base_swa", 1.0, MAX_THETA, rope.theta)
    return WindowConfig(found, layers, replace(rope, theta=theta) if own_base else rope)


def refuse_features(fields: Fields, name: str, experts: bool = False, causal: bool = True) -> None:
    """Raise UnsupportedModel for features that no architecture here has; ``experts``: mixtures are allowed.

    ``causal``: the architecture's tokens see only those before them.
    """
    if not experts and fields.get(f"{name}.expert_count", 0):
        raise unsupported(fields.path, f"a mixture of experts ({name}.expert_count)")
    if causal and not fields.get(f"{name}.attention.causal", True):
        raise unsupported(fields.path, f"attention without a causal mask ({name}.attention.causal)")


def read_n_vocab(gguf: GGUFFile, name: str) -> int:
    """The rows of the embedding: the ids that the model has logits for."""
    key = "tokenizer.ggml.tokens"
    if "token_embd.weight" in gguf.tensors:
        rows = gguf.tensors["token_embd.weight"].shape[0]
        tokens = gguf.array_length(key) or 0
        if tokens > rows:
            raise gguf.fields.error(
                key, f"the tokenizer has {tokens} tokens and token_embd.weight {rows} rows"
            )
        return rows
    return gguf.fields.length(f"{name}.vocab_size", gguf.array_length(key))


def read_state_space(fields: Fields, name: str) -> SSMConfig:
    """The sizes of layers that keep a state."""

    def size(part: str, low: int = 1, high: int = MAX_WIDTH) -> int:
        return fields.integer(f"{name}.ssm.{part}", low, high)

    return SSMConfig(
        d_inner=size("inner_size"),
        d_conv=size("conv_kernel", 2, MAX_CONV),
        d_state=size("state_size", 1, MAX_STATE),
        dt_rank=size("time_step_rank"),
    )


def read_heads(fields: Fields, name: str) -> SSMConfig:
    """The sizes of layers that keep a state with one decay for each head."""
    ssm = read_state_space(fields, name)
    group_key = f"{name}.ssm.group_count"
    groups = fields.width(group_key)
    return checked_heads(
        fields, group_key, replace(ssm, heads=ssm.dt_rank, dt_rank=0, groups=groups)
    )


def _read_rope(
    fields: Fields, architecture: Architecture, head_dim: int, context_length: int
) -> RopeConfig:
    prefix = f"{architecture.name}.rope"
    if architecture.rope_style == "none":
        return RopeConfig(dim=head_dim // 2 * 2, style="none")
    dim = fields.integer(f"{prefix}.dimension_count", 2, head_dim, head_dim)
    check_rope_dim(fields, f"{prefix}.dimension_count", dim, head_dim)
    theta = fields.number(f"{prefix}.freq_base", 1.0, MAX_THETA, 10000.0)
    # Older files have rope.scale_linear instead of rope.scaling.*; as in llama.cpp, a factor without a
    # type is linear, and 0 means none.
    factor_key = f"{prefix}.scaling.factor"
    if factor_key not in fields and f"{prefix}.scale_linear" in fields:
        factor_key = f"{prefix}.scale_linear"
    factor = fields.number(factor_key, 0.0, 1e6, 1.0) or 1.0
    scaling = fields.get(f"{prefix}.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise unsupported(
            fields.path, f"rotary scaling of type {scaling!r} ({prefix}.scaling.type)"
        )
    # -1 means the default of the scaling type.
    for key, neutral in (("yarn_ext_factor", (1.0, -1.0)), ("yarn_attn_factor", (1.0,))):
        if fields.get(f"{prefix}.scaling.{key}", 1.0) not in neutral:
            raise unsupported(fields.path, f"{prefix}.scaling.{key} other than 1")
    if scaling == "linear" and factor == 1.0:
        scaling = "none"
    # With a log_mul, YaRN's magnitude is (1 + 0.1 ln factor) / (1 + 0.1 log_mul ln factor).
    log_mul = fields.number(f"{prefix}.scaling.yarn_log_multiplier", 0.0, 1e6, 0.0)
    attn_factor = fields.number(f"{prefix}.scaling.attn_factor", 0.0, 1e6, 1.0)
    if log_mul and scaling == "yarn" and factor > 1.0:
        attn_factor /= 1.0 + 0.1 * log_mul * math.log(factor)
    rope = RopeConfig(
        theta=theta,
        dim=dim,
        style=architecture.rope_style,
        scaling=scaling,
        factor=factor if scaling != "none" else 1.0,
        original_context=fields.length(f"{prefix}.scaling.original_context_length", context_length),
        attn_factor=attn_factor,
        beta_fast=fields.number(f"{prefix}.scaling.yarn_beta_fast", 0.0, 1e6, 32.0),
        beta_slow=fields.number(f"{prefix}.scaling.yarn_beta_slow", 0.0, 1e6, 1.0),
    )
    return checked_rope(fields, rope)


def _per_layer(fields: Fields, key: str, n_layers: int, low: int = 1) -> tuple[int, ...]:
    """Read a field that is one number for all layers, or a list with one for each."""
    if not isinstance(fields.get(key), list):
        return (fields.width(key, low=low),) * n_layers
    values = fields.require(key, list)
    if len(values) != n_layers:
        raise fields.error(key, f"{key} has {len(values)} entries for {n_layers} layers")
    for layer, value in enumerate(values):
        if type(value) is not int or not low <= value <= MAX_WIDTH:
            raise fields.error(
                key, f"{key}[{layer}] is {value!r}; it must be between {low} and {MAX_WIDTH}"
            )
    return tuple(values)
