"""What a model is made of: its dimensions and rotary embedding, from GGUF metadata or config.json.

Sources for the meaning of the fields: docs/gguf.md of ggml, llama.cpp's ``llama_hparams``, and the
configuration classes of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aleator.core.errors import UnsupportedModel
from aleator.models.fields import Fields
from aleator.models.gguf import GGUFFile

SUPPORTED = ("llama", "qwen2", "qwen3", "gemma3", "mamba", "jamba")
# How a GGUF file of each architecture pairs the channels that are rotated together.
_GGUF_ROPE_STYLE = {
    "llama": "norm",
    "qwen2": "neox",
    "qwen3": "neox",
    "gemma3": "neox",
    "jamba": "neox",
}
# model_type of config.json -> architecture.
_HUGGING_FACE = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3",  # with pictures, of which the text part is taken
    "gemma3_text": "gemma3",
    "mamba": "mamba",
    "falcon_mamba": "mamba",
}
# What transformers' Gemma3TextConfig has where config.json says nothing.
_GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
}
_GEMMA3_PATTERN = 6  # every so many layers one sees everything, where the file says nothing
_GEMMA3_LOCAL_THETA = 10000.0

_MAX_LAYERS = 4096
_MAX_WIDTH = 1 << 24
_MAX_CONV = 64
_MAX_STATE = 1 << 12
_MAX_LENGTH = (1 << 31) - 1
_MAX_THETA = 1e30


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding.

    ``theta`` is the base of the frequencies theta^(-2i/dim), i < dim/2; ``dim`` (even) the rotated
    channels of a head.  ``style`` says which channels form pair i: "norm" 2i and 2i + 1, "neox" i
    and i + dim/2.  cos and sin are multiplied by ``attn_factor``.

    ``scaling`` stretches the context: "none"; "linear" divides positions by ``factor``; "yarn"
    (Peng et al. 2023, arXiv:2309.00071) ramps from unscaled to divided between ``beta_fast`` and
    ``beta_slow`` rotations over ``original_context``, and multiplies cos and sin by another
    1 + 0.1 ln(factor); "llama3" divides low frequencies by ``factor``, blending between the two
    ``*_freq_factor``; "longrope" divides by tensors of the file.
    """

    theta: float = 10000.0
    dim: int = 0
    style: str = "norm"
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0


@dataclass(frozen=True)
class WindowConfig:
    """Layers whose tokens see only the last ``size`` positions, their own included.

    ``layers`` says which those are, one entry per layer; ``rope`` is their rotary embedding.
    """

    size: int
    layers: tuple[bool, ...]
    rope: RopeConfig


@dataclass(frozen=True)
class SSMConfig:
    """A selective state space (Gu and Dao 2023, arXiv:2312.00752).

    ``d_inner`` channels, each convolved with its own ``d_conv`` latest values and summed up in a state
    of ``d_state`` numbers; the time step comes from ``dt_rank`` numbers.  ``norm_eps``: time step, B
    and C are RMS-normalised with it, without weights; None: they are not.
    """

    d_inner: int
    d_conv: int
    d_state: int
    dt_rank: int
    norm_eps: float | None = None


@dataclass(frozen=True)
class ModelConfig:
    """A model's dimensions.  Tuples have one entry per layer; they are empty without attention.

    Layers that keep a state (``ssm``) have no KV heads.
    ``head_dim`` is the size of a query and key head, ``head_dim_v`` of a value head; ``tied`` means
    that the token embedding is the output matrix too (there is no ``output.weight``).  Scores are
    multiplied by ``attention_scale`` (None: 1 / sqrt(head_dim)); logits are c tanh(logits / c) with
    c = ``logit_softcap``, where it is not 0.
    """

    architecture: str
    name: str
    n_vocab: int
    n_layers: int
    n_embd: int
    n_heads: tuple[int, ...]
    n_kv_heads: tuple[int, ...]
    n_ff: tuple[int, ...]
    head_dim: int
    head_dim_v: int
    rms_eps: float
    context_length: int
    tied: bool = False
    expert_count: int = 0
    rope: RopeConfig = field(default_factory=RopeConfig)
    window: WindowConfig | None = None
    attention_scale: float | None = None
    logit_softcap: float = 0.0
    ssm: SSMConfig | None = None

    def keeps_state(self, layer: int) -> bool:
        """Whether a layer keeps a state, instead of attending."""
        return self.ssm is not None and not (self.n_kv_heads and self.n_kv_heads[layer])


def config_from_gguf(gguf: GGUFFile) -> ModelConfig:
    """The configuration in a GGUF file's metadata, every field checked.

    Raises FileFormatError for a field that is missing, of the wrong type, out of range, or
    contradicts another; UnsupportedModel for what no decoder here computes.
    """
    fields = gguf.fields
    kind = fields.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(
            f"{gguf.path}: the file holds a {kind!r}, not a model (general.type)"
        )
    if fields.get("split.count", 1) > 1:
        raise UnsupportedModel(
            f"{gguf.path}: one of {fields.get('split.count', 1)} parts of a model; join them with "
            "llama-gguf-split --merge"
        )
    arch = fields.require("general.architecture", str)
    if arch not in SUPPORTED:
        raise _unsupported_architecture(gguf.path, arch)
    if fields.get(f"{arch}.expert_count", 0):
        raise _unsupported(gguf.path, f"a mixture of experts ({arch}.expert_count)")
    if not fields.get(f"{arch}.attention.causal", True):
        raise _unsupported(gguf.path, f"attention without a causal mask ({arch}.attention.causal)")

    n_layers = fields.integer(f"{arch}.block_count", 1, _MAX_LAYERS)
    n_embd = fields.integer(f"{arch}.embedding_length", 1, _MAX_WIDTH)
    if arch == "mamba":
        return _gguf_mamba(gguf, n_layers, n_embd)
    n_ff = _per_layer(fields, f"{arch}.feed_forward_length", n_layers)
    heads_key = f"{arch}.attention.head_count"
    n_heads = _per_layer(fields, heads_key, n_layers)
    n_kv_heads = (
        _per_layer(fields, f"{heads_key}_kv", n_layers, int(arch != "jamba"))
        if f"{heads_key}_kv" in fields
        else n_heads
    )
    _check_groups(fields, f"{heads_key}_kv", n_heads, n_kv_heads)
    head_dim = _head_dim(fields, f"{arch}.attention.key_length", n_embd, n_heads[0])
    head_dim_v = _head_dim(fields, f"{arch}.attention.value_length", n_embd, n_heads[0])
    context_length = fields.integer(f"{arch}.context_length", 1, _MAX_LENGTH)
    config = ModelConfig(
        architecture=arch,
        name=fields.get("general.name", ""),
        n_vocab=_gguf_n_vocab(gguf, arch),
        n_layers=n_layers,
        n_embd=n_embd,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        n_ff=n_ff,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        rms_eps=fields.number(f"{arch}.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        context_length=context_length,
        tied="output.weight" not in gguf.tensors,
        rope=_gguf_rope(fields, arch, head_dim, context_length),
    )
    if arch == "jamba":
        return replace(config, ssm=_gguf_ssm(fields, arch))
    return _gguf_gemma3(fields, config) if arch == "gemma3" else config


def _gguf_gemma3(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Windows, scale and cap as llama.cpp has them."""
    n = config.n_layers
    size = fields.integer("gemma3.attention.sliding_window", 0, _MAX_LENGTH, 0)
    key = "gemma3.attention.sliding_window_pattern"
    pattern = fields.values.get(key)
    if isinstance(pattern, list):
        if len(pattern) != n or not all(type(each) is bool for each in pattern):
            raise fields.error(key, f"{key} must be a number or {n} booleans")
        layers = tuple(pattern)
    else:
        layers = _window_pattern(fields.integer(key, 0, _MAX_LAYERS, _GEMMA3_PATTERN), n)
    theta = fields.number("gemma3.rope.freq_base_swa", 1.0, _MAX_THETA, _GEMMA3_LOCAL_THETA)
    # llama.cpp knows the 27B model, whose heads are not scaled by their size, by its layers.
    width = config.n_embd // config.n_heads[0] if n == 62 else config.head_dim
    return replace(
        config,
        window=_window(fields, size, layers, config.rope, theta),
        attention_scale=1.0 / math.sqrt(width),
        logit_softcap=fields.number("gemma3.final_logit_softcapping", 0.0, 1e6, 0.0),
    )


def _window_pattern(every: int, n_layers: int) -> tuple[bool, ...]:
    """Window layers, and after ``every`` - 1 of them one that sees everything; 0: only windows."""
    return tuple(every == 0 or layer % every < every - 1 for layer in range(n_layers))


def _window(
    fields: Fields, size: int, layers: tuple[bool, ...], rope: RopeConfig, theta: float
) -> WindowConfig | None:
    if size == 0 or not any(layers):
        return None
    if rope.scaling not in ("none", "linear"):
        raise _unsupported(
            fields.path, f"rotary scaling of type {rope.scaling!r} beside window layers"
        )
    return WindowConfig(size, layers, replace(rope, theta=theta, scaling="none", factor=1.0))


def _gguf_mamba(gguf: GGUFFile, n_layers: int, n_embd: int) -> ModelConfig:
    fields = gguf.fields
    eps = fields.number("mamba.attention.layer_norm_rms_epsilon", 0.0, 1.0)
    return _mamba(
        name=fields.get("general.name", ""),
        n_vocab=_gguf_n_vocab(gguf, "mamba"),
        n_layers=n_layers,
        n_embd=n_embd,
        rms_eps=eps,
        context_length=fields.integer("mamba.context_length", 1, _MAX_LENGTH),
        tied="output.weight" not in gguf.tensors,
        ssm=replace(
            _gguf_ssm(fields, "mamba"),
            norm_eps=eps if fields.get("mamba.ssm.dt_b_c_rms", False) else None,
        ),
    )


def _gguf_ssm(fields: Fields, arch: str) -> SSMConfig:
    def size(name: str, low: int = 1, high: int = _MAX_WIDTH) -> int:
        return fields.integer(f"{arch}.ssm.{name}", low, high)

    return SSMConfig(
        d_inner=size("inner_size"),
        d_conv=size("conv_kernel", 2, _MAX_CONV),
        d_state=size("state_size", 1, _MAX_STATE),
        dt_rank=size("time_step_rank"),
    )


def _mamba(**values: Any) -> ModelConfig:
    """A model without attention and feed-forward layers."""
    none: tuple[int, ...] = ()
    return ModelConfig(
        architecture="mamba",
        n_heads=none,
        n_kv_heads=none,
        n_ff=none,
        head_dim=0,
        head_dim_v=0,
        **values,
    )


def _gguf_n_vocab(gguf: GGUFFile, arch: str) -> int:
    """Rows of the embedding: the ids that the model has logits for."""
    key = "tokenizer.ggml.tokens"
    if "token_embd.weight" in gguf.tensors:
        rows = gguf.tensors["token_embd.weight"].shape[0]
        tokens = gguf.array_length(key) or 0
        if tokens > rows:
            raise gguf.fields.error(
                key, f"the tokenizer has {tokens} tokens and token_embd.weight {rows} rows"
            )
        return rows
    return gguf.fields.integer(f"{arch}.vocab_size", 1, _MAX_LENGTH, gguf.array_length(key))


def _gguf_rope(fields: Fields, arch: str, head_dim: int, context_length: int) -> RopeConfig:
    prefix = f"{arch}.rope"
    dim = _rope_dim(fields, f"{prefix}.dimension_count", head_dim, head_dim)
    theta = fields.number(f"{prefix}.freq_base", 1.0, _MAX_THETA, 10000.0)
    # Before rope.scaling.* there was rope.scale_linear; a factor without a type is linear, as
    # llama.cpp has it, and 0 means none.
    factor_key = f"{prefix}.scaling.factor"
    if factor_key not in fields and f"{prefix}.scale_linear" in fields:
        factor_key = f"{prefix}.scale_linear"
    factor = fields.number(factor_key, 0.0, 1e6, 1.0) or 1.0
    scaling = fields.get(f"{prefix}.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise _unsupported(
            fields.path, f"rotary scaling of type {scaling!r} ({prefix}.scaling.type)"
        )
    # -1 stands for "as the scaling type has it".
    for key, neutral in (("yarn_ext_factor", (1.0, -1.0)), ("yarn_attn_factor", (1.0,))):
        if fields.get(f"{prefix}.scaling.{key}", 1.0) not in neutral:
            raise _unsupported(fields.path, f"{prefix}.scaling.{key} other than 1")
    if scaling == "linear" and factor == 1.0:
        scaling = "none"
    return _checked_rope(
        fields,
        theta=theta,
        dim=dim,
        style=_GGUF_ROPE_STYLE[arch],
        scaling=scaling,
        factor=factor if scaling != "none" else 1.0,
        original_context=fields.integer(
            f"{prefix}.scaling.original_context_length", 1, _MAX_LENGTH, context_length
        ),
        attn_factor=fields.number(f"{prefix}.scaling.attn_factor", 0.0, 1e6, 1.0),
        beta_fast=fields.number(f"{prefix}.scaling.yarn_beta_fast", 0.0, 1e6, 32.0),
        beta_slow=fields.number(f"{prefix}.scaling.yarn_beta_slow", 0.0, 1e6, 1.0),
    )


def config_from_json(fields: Fields) -> ModelConfig:
    """The configuration in a Hugging Face ``config.json``; checks and errors as for GGUF."""
    model_type = fields.require("model_type", str)
    if model_type not in _HUGGING_FACE:
        raise _unsupported_architecture(fields.path, model_type)
    if model_type == "gemma3":
        fields, model_type = _text_config(fields), "gemma3_text"
    if model_type == "gemma3_text":
        given = {key: value for key, value in fields.values.items() if value is not None}
        fields = Fields(fields.path, _GEMMA3_DEFAULTS | given)
    _refuse_unknown_features(fields)
    n_layers = fields.integer("num_hidden_layers", 1, _MAX_LAYERS)
    n_embd = fields.integer("hidden_size", 1, _MAX_WIDTH)
    if _HUGGING_FACE[model_type] == "mamba":
        return _json_mamba(fields, n_layers, n_embd)
    gemma3 = model_type == "gemma3_text"
    n_heads = (fields.integer("num_attention_heads", 1, _MAX_WIDTH),) * n_layers
    n_kv_heads = (
        fields.integer("num_key_value_heads", 1, _MAX_WIDTH, default=n_heads[0]),
    ) * n_layers
    _check_groups(fields, "num_key_value_heads", n_heads, n_kv_heads)
    # transformers' Qwen3 and Gemma 3 configurations have a head size of their own, whatever the width.
    own = {"qwen3": 128, "gemma3_text": 256}.get(model_type)
    head_dim = _head_dim(fields, "head_dim", n_embd, n_heads[0], own)
    context_length = fields.integer("max_position_embeddings", 1, _MAX_LENGTH)
    rope = _gemma3_rope(fields, "full") if gemma3 else fields
    config = ModelConfig(
        architecture=_HUGGING_FACE[model_type],
        name=fields.get("_name_or_path", ""),
        n_vocab=fields.integer("vocab_size", 1, _MAX_LENGTH),
        n_layers=n_layers,
        n_embd=n_embd,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        n_ff=(fields.integer("intermediate_size", 1, _MAX_WIDTH),) * n_layers,
        head_dim=head_dim,
        head_dim_v=head_dim,
        rms_eps=fields.number("rms_norm_eps", 0.0, 1.0),
        context_length=context_length,
        tied=fields.get("tie_word_embeddings", gemma3),
        rope=_json_rope(rope, head_dim, context_length),
    )
    return _json_gemma3(fields, config) if gemma3 else config


def _text_config(fields: Fields) -> Fields:
    """The part of a configuration with pictures that describes the text model."""
    text: dict[str, Any] = {"model_type": "gemma3_text"}
    text |= fields.require("text_config", dict)
    if text["model_type"] != "gemma3_text":
        raise _unsupported(fields.path, f"a text model of type {text['model_type']!r}")
    for key in ("quantization_config", "tie_word_embeddings", "_name_or_path"):
        if fields.get(key) is not None:
            text[key] = fields.get(key)
    return Fields(fields.path, text)


def _gemma3_rope(fields: Fields, layers: str) -> Fields:
    """The fields that describe the rotary embedding of "full" or "sliding" attention layers."""
    own: dict[str, Any] = {}
    for key in ("rope_parameters", "rope_scaling"):
        values = fields.get(key, kind=dict) or {}
        values = values.get(f"{layers}_attention", {} if "full_attention" in values else values)
        if values and (layers == "full" or key == "rope_parameters"):
            own = {"rope_parameters": values}
            break
    theta = {"full": ("rope_theta", 1e6), "sliding": ("rope_local_base_freq", _GEMMA3_LOCAL_THETA)}
    key, default = theta[layers]
    return Fields(fields.path, {"rope_theta": fields.get(key, default)} | own)


def _json_gemma3(fields: Fields, config: ModelConfig) -> ModelConfig:
    if fields.get("attn_logit_softcapping") is not None:
        raise _unsupported(fields.path, "a cap on attention scores (attn_logit_softcapping)")
    if fields.get("use_bidirectional_attention", False):
        raise _unsupported(fields.path, "attention to later tokens (use_bidirectional_attention)")
    kinds = fields.get("layer_types", kind=list)
    if kinds is None:
        layers = _window_pattern(
            fields.integer("sliding_window_pattern", 1, _MAX_LAYERS, _GEMMA3_PATTERN),
            config.n_layers,
        )
    elif len(kinds) != config.n_layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise fields.error(
            "layer_types",
            f"layer_types must name sliding_attention or full_attention for {config.n_layers} layers",
        )
    else:
        layers = tuple(kind == "sliding_attention" for kind in kinds)
    local = _json_rope(_gemma3_rope(fields, "sliding"), config.head_dim, config.context_length)
    if local.scaling != "none":
        raise _unsupported(fields.path, "rotary scaling in window layers")
    size = fields.get("sliding_window", 4096 if "sliding_window" not in fields else 0)
    if not 0 <= size <= _MAX_LENGTH:
        raise fields.error("sliding_window", f"sliding_window is {size}; it must be 1 or more")
    scalar = fields.number("query_pre_attn_scalar", 1e-6, 1e9, 256.0)
    return replace(
        config,
        window=_window(fields, size, layers, config.rope, local.theta),
        attention_scale=1.0 / math.sqrt(scalar),
        logit_softcap=fields.number("final_logit_softcapping", 0.0, 1e6, 0.0),
    )


def _json_mamba(fields: Fields, n_layers: int, n_embd: int) -> ModelConfig:
    if fields.get("use_bias", False):
        raise _unsupported(fields.path, "biases of the projections (use_bias)")
    rank = -(-n_embd // 16)
    if fields.get("time_step_rank") not in (None, "auto"):
        rank = fields.integer("time_step_rank", 1, _MAX_WIDTH)
    inner = int(fields.number("expand", 0.0, 1e3, 2.0) * n_embd)
    if fields.get("intermediate_size") is not None:  # then transformers does not look at expand
        inner = fields.integer("intermediate_size", 1, _MAX_WIDTH)
    if not 1 <= inner <= _MAX_WIDTH:
        raise fields.error("expand", f"{inner} inner channels; they must be 1 to {_MAX_WIDTH}")
    norm_eps = None
    if fields.get("model_type") == "falcon_mamba":
        norm_eps = fields.number("mixer_rms_eps", 0.0, 1.0, 1e-6)
    return _mamba(
        name=fields.get("_name_or_path", ""),
        n_vocab=fields.integer("vocab_size", 1, _MAX_LENGTH),
        n_layers=n_layers,
        n_embd=n_embd,
        rms_eps=fields.number("layer_norm_epsilon", 0.0, 1.0, 1e-5),
        # What GGUF files of these models say too: the state has no length.
        context_length=fields.integer("max_position_embeddings", 1, _MAX_LENGTH, 1 << 20),
        tied=fields.get("tie_word_embeddings", True),
        ssm=SSMConfig(
            d_inner=inner,
            d_conv=fields.integer("conv_kernel", 2, _MAX_CONV, 4),
            d_state=fields.integer("state_size", 1, _MAX_STATE, 16),
            dt_rank=rank,
            norm_eps=norm_eps,
        ),
    )


def _refuse_unknown_features(fields: Fields) -> None:
    """What would change the logits and no decoder here computes is refused, not passed over."""
    path = fields.path
    gemma3 = fields.get("model_type") == "gemma3_text"
    key, wanted = ("hidden_activation", "gelu_pytorch_tanh") if gemma3 else ("hidden_act", "silu")
    if fields.get(key, wanted) != wanted:
        raise _unsupported(path, f"the activation {fields.get(key)!r} ({key})")
    for key in ("num_experts", "num_local_experts"):
        if fields.get(key, 0):
            raise _unsupported(path, f"a mixture of experts ({key})")
    if fields.get("quantization_config") is not None:
        raise _unsupported(path, "quantised safetensors (quantization_config)")
    if gemma3 or fields.get("model_type") in ("mamba", "falcon_mamba"):
        return
    layers = fields.get("layer_types", kind=list) or []
    # Qwen has a window's size even where windows are off; Mistral has no switch.
    switch = fields.get("use_sliding_window", fields.get("model_type") == "mistral")
    window = fields.get("sliding_window", kind=int)
    if any(layer != "full_attention" for layer in layers) or (switch and window is not None):
        raise _unsupported(path, "sliding-window attention (sliding_window)")


def _json_rope(fields: Fields, head_dim: int, context_length: int) -> RopeConfig:
    """From ``rope_parameters`` (transformers 5) or ``rope_theta`` with ``rope_scaling``."""
    values: Mapping[str, Any] = (
        fields.get("rope_parameters", kind=dict) or fields.get("rope_scaling", kind=dict) or {}
    )
    rope = Fields(fields.path, values)
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling not in ("default", "linear", "yarn", "llama3"):
        raise _unsupported(fields.path, f"rotary scaling of type {scaling!r} (rope_type)")
    for key in ("mscale", "mscale_all_dim", "truncate"):
        if rope.get(key) not in (None, key == "truncate"):
            raise _unsupported(fields.path, f"{key} of the rotary scaling")
    outer = fields.number("rope_theta", 1.0, _MAX_THETA, 10000.0)
    share = rope.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    share = fields.number("partial_rotary_factor", 0.0, 1.0, share)
    scaled, llama3 = scaling != "default", scaling == "llama3"
    factor = rope.number("factor", 1.0, 1e6) if scaled else 1.0
    # transformers' attention_factor replaces YaRN's own, which ours multiplies.
    attn_factor = rope.get("attention_factor", kind=float)
    if attn_factor is None:
        attn_factor = 1.0
    elif scaling == "yarn":
        attn_factor /= 1.0 + 0.1 * math.log(factor)
    return _checked_rope(
        rope,
        theta=rope.number("rope_theta", 1.0, _MAX_THETA, outer),
        dim=_rope_dim(rope, "partial_rotary_factor", head_dim, int(head_dim * share)),
        style="neox",
        scaling=scaling if scaled else "none",
        factor=factor,
        original_context=rope.integer(
            "original_max_position_embeddings", 1, _MAX_LENGTH, context_length
        ),
        attn_factor=attn_factor,
        beta_fast=rope.number("beta_fast", 0.0, 1e6, 32.0),
        beta_slow=rope.number("beta_slow", 0.0, 1e6, 1.0),
        low_freq_factor=rope.number("low_freq_factor", 1e-6, 1e6, None if llama3 else 1.0),
        high_freq_factor=rope.number("high_freq_factor", 1e-6, 1e6, None if llama3 else 4.0),
    )


def _rope_dim(fields: Fields, key: str, head_dim: int, default: int) -> int:
    dim = fields.integer(key, 2, head_dim, default) if key.endswith("count") else default
    if dim < 2 or dim % 2:
        raise fields.error(key, f"{dim} rotated channels per head of {head_dim}; must be even")
    return dim


def _checked_rope(fields: Fields, **values: Any) -> RopeConfig:
    rope = RopeConfig(**values)
    if rope.scaling == "yarn" and rope.factor < 1:
        raise fields.error("factor", f"the factor {rope.factor} of yarn must be at least 1")
    if rope.scaling == "yarn" and rope.beta_fast <= rope.beta_slow:
        raise fields.error(
            "beta_fast", f"beta_fast {rope.beta_fast} must exceed beta_slow {rope.beta_slow}"
        )
    if rope.scaling == "llama3" and rope.high_freq_factor <= rope.low_freq_factor:
        raise fields.error(
            "high_freq_factor",
            f"high_freq_factor {rope.high_freq_factor} must exceed low_freq_factor "
            f"{rope.low_freq_factor}",
        )
    return rope


def _per_layer(fields: Fields, key: str, n_layers: int, low: int = 1) -> tuple[int, ...]:
    """A field that is one number for all layers, or a list with one for each."""
    if not isinstance(fields.get(key), list):
        return (fields.integer(key, low, _MAX_WIDTH),) * n_layers
    values = fields.require(key, list)
    if len(values) != n_layers:
        raise fields.error(key, f"{key} has {len(values)} entries for {n_layers} layers")
    for layer, value in enumerate(values):
        if type(value) is not int or not low <= value <= _MAX_WIDTH:
            raise fields.error(
                key, f"{key}[{layer}] is {value!r}; it must be between {low} and {_MAX_WIDTH}"
            )
    return tuple(values)


def _check_groups(
    fields: Fields, key: str, n_heads: tuple[int, ...], n_kv_heads: tuple[int, ...]
) -> None:
    for layer, (heads, kv_heads) in enumerate(zip(n_heads, n_kv_heads, strict=True)):
        if kv_heads and heads % kv_heads:
            raise fields.error(
                key, f"layer {layer}: {heads} heads are not a multiple of {kv_heads} KV heads"
            )


def _head_dim(
    fields: Fields, key: str, n_embd: int, n_heads: int, default: int | None = None
) -> int:
    """The field ``key``, or else the default, or else the width divided by the heads."""
    if default is None and fields.get(key) is None:
        if n_embd % n_heads:
            raise fields.error(
                key, f"{key} is missing, and the width {n_embd} not a multiple of {n_heads} heads"
            )
        default = n_embd // n_heads
    return fields.integer(key, 1, _MAX_WIDTH, default)


def _unsupported(path: object, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"{path}: the model needs {what}, which is not supported")


def _unsupported_architecture(path: object, name: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{path}: the architecture {name!r} is not supported; supported are {', '.join(SUPPORTED)}"
    )


_SAMPLING: dict[str, type[int] | type[float] | type[str]] = {
    "sequence": str,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "xtc_probability": float,
    "xtc_threshold": float,
    "temp": float,
    "penalty_last_n": int,
    "penalty_repeat": float,
    "mirostat": int,
    "mirostat_tau": float,
    "mirostat_eta": float,
}


def sampling_defaults(gguf: GGUFFile) -> dict[str, Any]:
    """The sampling parameters that the file recommends (``general.sampling.*``), those it has.

    Types are checked here; ranges are the parameters' own business.
    """
    found = {name: f"general.sampling.{name}" for name in _SAMPLING}
    return {
        name: gguf.fields.require(key, _SAMPLING[name])
        for name, key in found.items()
        if key in gguf.fields
    }
