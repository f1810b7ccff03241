"""gemma4's text part: heads of two sizes, values normalised without weights, a factor on each layer's output.

Like gemma3 it has norms before and after each part, normalised query and key heads, GeGLU, and windows in most
layers. Layers without a window have larger heads and rotate only the first pairs of their channels; their
values may be their keys before the norm. Scores are not scaled. 26B-A4B has experts beside a dense part in
every layer. In E2B and E4B tokens have embeddings for each layer, and the last layers attend to the keys of
earlier ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aleator.models import gguf_config, json_config
from aleator.models.architecture import (
    HEAD_NORMS,
    NORMS_AROUND,
    OUTER,
    STACKED,
    TRANSFORMER,
    Architecture,
    HuggingFace,
)
from aleator.models.config import (
    MAX_HEAD_DIM,
    ExpertsConfig,
    ModelConfig,
    PerLayerConfig,
    RopeConfig,
    WindowConfig,
    check_groups,
    check_rope_dim,
    unsupported,
)
from aleator.models.conversions import in_text_model, text_part
from aleator.models.experts import MAX_EXPERTS, in_gguf
from aleator.models.files.fields import Fields, Value
from aleator.models.files.gguf import GGUFFile

# Defaults of transformers' Gemma4TextConfig.
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
"""Defaults of Gemma4UnifiedTextConfig, which has neither experts nor embeddings for each layer."""
GLOBAL_HEAD_DIM = 512
LOGIT_CAP = 30.0  # llama.cpp's, if a GGUF file has none
PATTERN = 6  # one of this many layers sees everything, unless the file says otherwise
ROPE: dict[str, dict[str, Any]] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
    },
}


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    fields, at = gguf.fields, f"{architecture.name}."
    config = gguf_config.transformer(gguf, architecture, experts=True)
    n = config.n_layers
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
        for i in range(n)
    )
    shared = fields.integer(f"{at}attention.shared_kv_layers", 0, n - 1, 0)
    key = f"{at}attention.shared_kv_layers"
    key_layers = _key_layers(fields, key, window, n, shared)
    windows = (False,) * n if window is None else window.layers
    # llama.cpp takes these two for them, whatever their kind.
    taken = tuple(n - shared - (2 if windows[i] else 1) for i in range(n - shared, n))
    if shared and key_layers[n - shared :] != taken:
        raise unsupported(fields.path, f"shared keys of other than the two layers before ({key})")
    width = fields.width(f"{at}embedding_length_per_layer_input", 0, low=0)
    sparse = tuple(f"blk.{i}.ffn_gate_inp.weight" in gguf.tensors for i in range(n))
    if fields.get(f"{at}expert_count", 0) and any(sparse):
        config = in_gguf(config, fields, sparse, normalised=True, beside=True)
    config = replace(
        config,
        logit_softcap=fields.number(f"{at}final_logit_softcapping", 0.0, 1e6, LOGIT_CAP),
        key_layers=key_layers,
        per_layer=PerLayerConfig(width, config.n_vocab) if width else None,
    )
    return _made(config, window, rope, without)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; of the text part if the model also reads pictures and sound."""
    unified = str(fields.get("model_type", "")).startswith("gemma4_unified")
    fields = text_part(fields, "gemma4_unified_text" if unified else "gemma4_text")
    fields = fields.over(UNIFIED if unified else DEFAULTS)
    if fields.get("use_bidirectional_attention") == "all":
        raise unsupported(fields.path, "attention to later tokens (use_bidirectional_attention)")
    config = json_config.transformer(
        fields,
        architecture,
        activation="hidden_activation",
        experts=True,
        tied=True,
        rope=_rope_fields(fields, "sliding_attention"),
    )
    layers = _windowed(fields, config.n_layers)
    window_dim, head_dim, n_kv_heads = _heads(fields, config, layers)
    check_groups(fields, "num_key_value_heads", config.n_heads, n_kv_heads)
    size = fields.length("sliding_window")
    if config.rope.scaling != "none":
        raise unsupported(fields.path, "rotary scaling in window layers (rope_parameters)")
    window = WindowConfig(size, layers, config.rope, head_dim=window_dim)
    rope = _rope(fields, architecture, head_dim, config.context_length)
    same, n = bool(fields.get("attention_k_eq_v", False)), config.n_layers
    shared = fields.integer("num_kv_shared_layers", 0, n - 1, 0)
    twice = 2 if fields.get("use_double_wide_mlp", False) else 1
    own = window if any(layers) else None
    config = replace(
        config,
        head_dim=head_dim,
        head_dim_v=head_dim,
        n_kv_heads=n_kv_heads,
        n_ff=tuple(wide * (twice if i >= n - shared else 1) for i, wide in enumerate(config.n_ff)),
        logit_softcap=fields.number("final_logit_softcapping", 0.0, 1e6, 0.0),
        key_layers=_key_layers(fields, "num_kv_shared_layers", own, n, shared),
        per_layer=None if unified else _per_layer(fields, config.n_vocab),
        experts=None if unified else _experts(fields, n),
    )
    return _made(config, own, rope, tuple(same and not each for each in layers))


def _made(
    config: ModelConfig,
    window: WindowConfig | None,
    rope: RopeConfig,
    keys_as_values: tuple[bool, ...],
) -> ModelConfig:
    """The dimensions, from what both kinds of files have in common."""
    return replace(
        config,
        window=window,
        rope=rope,
        attention_scale=1.0,
        normalised_values=True,
        keys_as_values=keys_as_values,
    )


def _key_layers(
    fields: Fields, key: str, window: WindowConfig | None, n: int, shared: int
) -> tuple[int, ...]:
    """The layers whose keys layers attend to.

    As in transformers, the last ``shared`` layers use the last layer of their kind before them.  llama.cpp uses
    the two layers before the first of them; a GGUF file for which that differs is refused.
    """
    if shared == 0:
        return ()
    kinds = window.layers if window is not None else (False,) * n
    first = n - shared
    last = {kinds[i]: i for i in range(first)}
    if not set(kinds) <= set(last):
        raise fields.error(key, f"{key} is {shared}; no layer before these has keys of their kind")
    return (*range(first), *(last[kind] for kind in kinds[first:]))


def _per_layer(fields: Fields, n_vocab: int) -> PerLayerConfig | None:
    """The embeddings of each layer.  Input vectors have those of token 0, as in llama.cpp."""
    width = fields.width("hidden_size_per_layer_input", low=0)
    if width == 0:
        return None
    rows = fields.length("vocab_size_per_layer_input", 262144, low=n_vocab)
    return PerLayerConfig(width, rows)


def _experts(fields: Fields, n_layers: int) -> ExpertsConfig | None:
    """The experts, which every layer has."""
    if not fields.get("enable_moe_block", False):
        return None
    n_experts = fields.integer("num_experts", 1, MAX_EXPERTS)
    return ExpertsConfig(
        n_experts=n_experts,
        n_used=fields.integer("top_k_experts", 1, n_experts),
        n_ff=fields.width("moe_intermediate_size"),
        layers=(True,) * n_layers,
        normalised=True,
        beside=True,
    )


def _windowed(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    """Which layers have a window; the last has none, as in transformers."""
    layers = json_config.listed_windows(fields, n_layers)
    if layers is None:
        layers = tuple((layer + 1) % PATTERN != 0 for layer in range(n_layers))
    return (*layers[:-1], False)


def _heads(
    fields: Fields, config: ModelConfig, layers: tuple[bool, ...]
) -> tuple[int, int, tuple[int, ...]]:
    """Sizes of heads with a window and without, and numbers of KV heads.

    They come from ``per_layer_config``, or from the fields that preceded it.
    """
    dims = [config.head_dim] * config.n_layers
    n_kv = list(config.n_kv_heads)
    overrides = fields.get("per_layer_config", kind=dict)
    if overrides is None:
        own = {"head_dim": fields.integer("global_head_dim", 1, MAX_HEAD_DIM, GLOBAL_HEAD_DIM)}
        if fields.get("attention_k_eq_v", False) and "num_global_key_value_heads" in fields:
            own["num_key_value_heads"] = fields.width("num_global_key_value_heads")
        overrides = {str(i): own for i, window in enumerate(layers) if not window}
    for i in range(config.n_layers):
        values = overrides.get(str(i), {})
        if not isinstance(values, dict) or not set(values) <= {"head_dim", "num_key_value_heads"}:
            raise unsupported(
                fields.path, f"a layer with fields of its own (per_layer_config[{i}])"
            )
        each = Fields(fields.path, values)
        dims[i] = each.integer("head_dim", 1, MAX_HEAD_DIM, dims[i])
        n_kv[i] = each.width("num_key_value_heads", n_kv[i])
    pairs = list(zip(dims, layers, strict=True))
    sizes = [{dim for dim, window in pairs if window == kind} for kind in (True, False)]
    if len(sizes[0]) > 1 or len(sizes[1]) > 1:
        raise unsupported(
            fields.path, "heads of several sizes among layers of a kind (per_layer_config)"
        )
    return max(sizes[0], default=0), max(sizes[1], default=0), tuple(n_kv)


def _rope_fields(fields: Fields, kind: str) -> Fields:
    """The fields of the rotary embedding of one kind of layers."""
    given = fields.get("rope_parameters", kind=dict) or ROPE
    return Fields(fields.path, {"rope_parameters": Fields(fields.path, given).require(kind, dict)})


def _rope(
    fields: Fields, architecture: Architecture, head_dim: int, context_length: int
) -> RopeConfig:
    """The rotary embedding of layers without a window; a share of the pairs rotates."""
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


def config_in_gguf(config: ModelConfig) -> ModelConfig:
    """The dimensions as GGUF says them: a tensor of divisors says which pairs rotate and how far."""
    pairs = config.rope.dim // 2
    rope = replace(config.rope, scaling="proportional", factor=1.0, n_rotated=pairs)
    per_layer = config.per_layer and replace(config.per_layer, n_vocab=config.n_vocab)
    return replace(config, rope=rope, per_layer=per_layer)


def gguf_fields(config: ModelConfig, _: Fields) -> dict[str, Value | None]:
    window = config.window
    dim = window.head_dim if window else None
    return {
        "attention.shared_kv_layers": sum(config.keys_of(i) != i for i in range(config.n_layers)),
        "attention.key_length_swa": dim,
        "attention.value_length_swa": dim,
        "rope.dimension_count_swa": window.rope.dim if window else None,
        "embedding_length_per_layer_input": config.per_layer.width if config.per_layer else 0,
        "final_logit_softcapping": config.logit_softcap,
    }


_OTHER_PARTS = ("vision_", "audio_", "embed_vision", "embed_audio", "multi_modal_projector")


def usual_name(name: str) -> str:
    """A tensor's name in the text part; "" for the parts for pictures and sound."""
    return "" if name.removeprefix("model.").startswith(_OTHER_PARTS) else in_text_model(name)


GEMMA4 = Architecture(
    "gemma4",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
        read_json,
        outer=OUTER
        | {
            "model.embed_tokens_per_layer": "per_layer_token_embd",
            "model.per_layer_model_projection": "per_layer_model_proj",
            "model.per_layer_projection_norm": "per_layer_proj_norm",
        },
        layer=TRANSFORMER
        | HEAD_NORMS
        | NORMS_AROUND
        | {
            "post_feedforward_layernorm_1": "post_ffw_norm_1",
            "post_feedforward_layernorm_2": "post_ffw_norm_2",
            "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
            "per_layer_input_gate": "inp_gate",
            "per_layer_projection": "proj",
            "post_per_layer_input_norm": "post_norm",
            "router.proj": "ffn_gate_inp",
        },
        bare={
            "layer_scalar": "layer_output_scale.weight",
            "router.scale": "ffn_gate_inp.scale",
            "router.per_expert_scale": "ffn_down_exps.scale",
        }
        | STACKED,
        usual_name=usual_name,
        config_in_gguf=config_in_gguf,
        gguf_fields=gguf_fields,
    ),
    head_norm=True,
    post_norm=True,
    activation="gelu",
    scaled_embedding=True,
    output_scale=True,
)
