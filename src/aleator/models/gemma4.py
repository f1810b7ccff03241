"""gemma4's text part: heads of two sizes, values normalised without weights, a factor on each layer's output.

As gemma3 it has norms before and after each part, normalised query and key heads, GeGLU, and windows in most
layers. Layers without a window have larger heads, of which only the first pairs of channels rotate, and may
take their keys before the norm as values. Scores are not scaled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from aleator.models import gguf_config, json_config
from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.config import (
    MAX_HEAD_DIM,
    MAX_LENGTH,
    MAX_WIDTH,
    ModelConfig,
    RopeConfig,
    WindowConfig,
    check_groups,
    check_rope_dim,
    unsupported,
)
from aleator.models.conversions import in_text_model, text_part
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile

# What transformers' Gemma4TextConfig has where config.json says nothing.
DEFAULTS: dict[str, Any] = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
}
UNIFIED = DEFAULTS | {
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
}
"""The same of Gemma4UnifiedTextConfig, which knows neither experts nor embeddings for each layer."""
GLOBAL_HEAD_DIM = 512
LOGIT_CAP = 30.0  # what llama.cpp has where a GGUF file says nothing
PATTERN = 6  # every so many layers one sees everything, where the file says nothing
KINDS = ("sliding_attention", "full_attention")
ROPE: dict[str, dict[str, Any]] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
    },
}


@dataclass(frozen=True)
class Heads:
    """Sizes and numbers of KV heads, in layers with a window and in the others."""

    window_dim: int
    dim: int
    n_kv: tuple[int, ...]


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file."""
    fields, at = gguf.fields, f"{architecture.name}."
    _refuse(fields, f"{at}embedding_length_per_layer_input", _PER_LAYER)
    _refuse(fields, f"{at}attention.shared_kv_layers", _SHARED)
    _refuse(fields, f"{at}expert_count", _EXPERTS)
    config = gguf_config.transformer(gguf, architecture)
    if config.rope.scaling != "none":
        key = f"{at}rope.scaling.type"
        raise unsupported(fields.path, f"rotary scaling of type {config.rope.scaling!r} ({key})")
    dim = fields.integer(f"{at}attention.key_length_swa", 1, MAX_HEAD_DIM, config.head_dim)
    dim_v = fields.integer(f"{at}attention.value_length_swa", 1, MAX_HEAD_DIM, config.head_dim_v)
    if (dim, config.head_dim) != (dim_v, config.head_dim_v):
        key = f"{at}attention.value_length"
        raise unsupported(fields.path, f"values of another width than keys ({key})")
    key = f"{at}rope.dimension_count_swa"
    rotated = fields.integer(key, 2, dim, config.rope.dim)
    check_rope_dim(fields, key, rotated, dim)
    window = gguf_config.read_windows(fields, config, rope=replace(config.rope, dim=rotated))
    if window is not None:
        window = replace(window, head_dim=dim)
    if "rope_freqs.weight" not in gguf.tensors and (window is None or not all(window.layers)):
        raise fields.error("rope_freqs.weight", "the tensor 'rope_freqs.weight' is missing")
    rope = replace(config.rope, scaling="proportional", n_rotated=config.rope.dim // 2)
    without = tuple(
        f"blk.{i}.attn_v.weight" not in gguf.tensors
        and f"blk.{i}.attn_qkv.weight" not in gguf.tensors
        for i in range(config.n_layers)
    )
    cap = fields.number(f"{at}final_logit_softcapping", 0.0, 1e6, LOGIT_CAP)
    return _made(config, window, rope, cap, without)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, of the text part where the model reads pictures and sound too."""
    unified = str(fields.get("model_type", "")).startswith("gemma4_unified")
    kind = "gemma4_unified_text" if unified else "gemma4_text"
    if fields.get("model_type") != kind:
        fields = text_part(fields, kind, [kind])
    given = {key: value for key, value in fields.values.items() if value is not None}
    fields = Fields(fields.path, (UNIFIED if unified else DEFAULTS) | given)
    json_config.refuse_features(fields, "hidden_activation", "gelu_pytorch_tanh", experts=True)
    if fields.get("use_bidirectional_attention") == "all":
        raise unsupported(fields.path, "attention to later tokens (use_bidirectional_attention)")
    _refuse(fields, "hidden_size_per_layer_input", _PER_LAYER)
    _refuse(fields, "num_kv_shared_layers", _SHARED)
    if not unified:
        _refuse(fields, "enable_moe_block", _EXPERTS)
    config = json_config.transformer(
        fields, architecture, tied=True, rope=_rope_fields(fields, "sliding_attention")
    )
    layers = _windowed(fields, config.n_layers)
    heads = _heads(fields, config, layers)
    check_groups(fields, "num_key_value_heads", config.n_heads, heads.n_kv)
    size = fields.integer("sliding_window", 1, MAX_LENGTH)
    if config.rope.scaling != "none":
        raise unsupported(fields.path, "rotary scaling in window layers (rope_parameters)")
    window = WindowConfig(size, layers, config.rope, head_dim=heads.window_dim)
    rope = _rope(fields, architecture, heads.dim, config.context_length)
    same = bool(fields.get("attention_k_eq_v", False))
    cap = fields.number("final_logit_softcapping", 0.0, 1e6, 0.0)
    return _made(
        replace(config, head_dim=heads.dim, head_dim_v=heads.dim, n_kv_heads=heads.n_kv),
        window if any(layers) else None,
        rope,
        cap,
        tuple(same and not each for each in layers),
    )


def _made(
    config: ModelConfig,
    window: WindowConfig | None,
    rope: RopeConfig,
    cap: float,
    keys_as_values: tuple[bool, ...],
) -> ModelConfig:
    """What both kinds of files have in common."""
    return replace(
        config,
        window=window,
        rope=rope,
        attention_scale=1.0,
        logit_softcap=cap,
        normalised_values=True,
        keys_as_values=keys_as_values,
    )


def _windowed(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    """Which layers have a window; the last has none, as in transformers."""
    kinds = fields.get("layer_types", kind=list)
    if kinds is None:
        layers = [(layer + 1) % PATTERN != 0 for layer in range(n_layers)]
    elif len(kinds) != n_layers or not all(kind in KINDS for kind in kinds):
        named = " or ".join(KINDS)
        raise fields.error("layer_types", f"layer_types must name {named} for {n_layers} layers")
    else:
        layers = [kind == KINDS[0] for kind in kinds]
    return (*layers[:-1], False)


def _heads(fields: Fields, config: ModelConfig, layers: tuple[bool, ...]) -> Heads:
    """The heads, by ``per_layer_config`` or by the fields that came before it."""
    dims = [config.head_dim] * config.n_layers
    n_kv = list(config.n_kv_heads)
    overrides = fields.get("per_layer_config", kind=dict)
    if overrides is None:
        own = {"head_dim": fields.integer("global_head_dim", 1, MAX_HEAD_DIM, GLOBAL_HEAD_DIM)}
        if fields.get("attention_k_eq_v", False) and "num_global_key_value_heads" in fields:
            own["num_key_value_heads"] = fields.integer("num_global_key_value_heads", 1, MAX_WIDTH)
        overrides = {str(i): own for i, window in enumerate(layers) if not window}
    for i in range(config.n_layers):
        values = overrides.get(str(i), {})
        if not isinstance(values, dict) or not set(values) <= {"head_dim", "num_key_value_heads"}:
            raise unsupported(
                fields.path, f"a layer with fields of its own (per_layer_config[{i}])"
            )
        each = Fields(fields.path, values)
        dims[i] = each.integer("head_dim", 1, MAX_HEAD_DIM, dims[i])
        n_kv[i] = each.integer("num_key_value_heads", 1, MAX_WIDTH, n_kv[i])
    pairs = list(zip(dims, layers, strict=True))
    sizes = [{dim for dim, window in pairs if window == kind} for kind in (True, False)]
    if len(sizes[0]) > 1 or len(sizes[1]) > 1:
        raise unsupported(
            fields.path, "heads of several sizes among layers of a kind (per_layer_config)"
        )
    return Heads(max(sizes[0], default=0), max(sizes[1], default=0), tuple(n_kv))


def _rope_fields(fields: Fields, kind: str) -> Fields:
    """The fields of the rotary embedding of one kind of layers."""
    given = fields.get("rope_parameters", kind=dict) or ROPE
    return Fields(fields.path, {"rope_parameters": Fields(fields.path, given).require(kind, dict)})


def _rope(
    fields: Fields, architecture: Architecture, head_dim: int, context_length: int
) -> RopeConfig:
    """The rotary embedding of layers without a window, in which a share of the pairs rotates."""
    part = _rope_fields(fields, "full_attention")
    values = Fields(part.path, part.require("rope_parameters", dict))
    kind = values.get("rope_type", "default")
    if kind not in ("default", "proportional"):
        raise unsupported(fields.path, f"rotary scaling of type {kind!r} (rope_parameters)")
    share = values.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    factor = values.number("factor", 1e-6, 1e6, 1.0)
    plain = {"rope_type": "default", "rope_theta": values.get("rope_theta", 1e4)}
    rope = json_config.read_rope(
        Fields(part.path, {"rope_parameters": plain}), head_dim, context_length, architecture
    )
    if kind == "default":
        return rope
    n_rotated = int(share * head_dim // 2)
    return replace(rope, scaling="proportional", factor=factor, n_rotated=n_rotated)


_PER_LAYER = "embeddings of tokens for each layer"
_SHARED = "layers that attend to the keys of an earlier layer"
_EXPERTS = "experts beside a dense feed-forward part"


def _refuse(fields: Fields, key: str, what: str) -> None:
    if fields.get(key):
        raise unsupported(fields.path, f"{what} ({key})")


_OTHER_PARTS = ("vision_", "audio_", "embed_vision", "embed_audio", "multi_modal_projector")


def ours(name: str) -> str:
    """A tensor's name in the text part; "" for one of the parts that see and hear."""
    return "" if name.removeprefix("model.").startswith(_OTHER_PARTS) else in_text_model(name)


GEMMA4 = Architecture(
    "gemma4",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
        read_json,
        layer=TRANSFORMER
        | {
            "self_attn.q_norm": "attn_q_norm",
            "self_attn.k_norm": "attn_k_norm",
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
        bare={"layer_scalar": "layer_output_scale.weight"},
        ours=ours,
    ),
    head_norm=True,
    post_norm=True,
    activation="gelu",
    scaled_embedding=True,
    output_scale=True,
)
