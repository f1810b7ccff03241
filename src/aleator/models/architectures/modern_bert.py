"""modern-bert: an encoder with rotary embeddings, most of whose layers see a window around each token."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aleator.models import gguf_config, json_config
from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures import bert
from aleator.models.config import Fields, GGUFFile, ModelConfig, WindowConfig, unsupported
from aleator.models.json_config import read_rope, rope_part, transformer

EVERY = 3  # layers, the first of which sees everything
THETA, LOCAL_THETA = 160_000.0, 10_000.0
WINDOW = 128
ACTIVATIONS = {"gelu": "", "geglu": "", "silu": "silu", "swish": "silu", "swiglu": "silu"}
"""Names of activations in files -> as :class:`ModelConfig` has them."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    fields = gguf.fields
    activation = _activation(fields, "modern-bert.hidden_activation")
    config = replace(bert.read_gguf(gguf, architecture), activation=activation)
    if "modern-bert.classifier.pooling_type" not in fields:
        config = replace(config, score_pooling="mean")  # as in llama.cpp
    key = "modern-bert.attention.sliding_window_pattern"
    if isinstance(fields.get(key), list):
        return replace(config, window=gguf_config.read_windows(fields, config))
    every = fields.layers(key, EVERY)
    size = fields.length("modern-bert.attention.sliding_window", 0, low=0)
    layers = tuple(layer % every != 0 for layer in range(config.n_layers))
    if not size or not any(layers):
        return config
    theta = fields.number("modern-bert.rope.freq_base_swa", 1.0, 1e30, config.rope.theta)
    return replace(config, window=WindowConfig(size, layers, replace(config.rope, theta=theta)))


def _activation(fields: Fields, key: str) -> str:
    """The activation that the field names."""
    name = fields.get(key, "gelu")
    if name not in ACTIVATIONS:
        raise unsupported(fields.path, f"the activation {name!r} ({key})")
    return ACTIVATIONS[name]


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    if fields.get("classifier_activation", "gelu") != "gelu":
        raise unsupported(fields.path, "another activation (classifier_activation)")

    def rope(kind: str, old: str, theta: float) -> Fields:
        part = rope_part(fields, kind)
        own = part.get("rope_parameters", kind=dict) or {}
        base = fields.number(old, 1.0, 1e30, theta)
        return part.changed(rope_parameters={"rope_theta": base, "rope_type": "default", **own})

    whole = rope("full_attention", "global_rope_theta", THETA)
    local = rope("sliding_attention", "local_rope_theta", LOCAL_THETA)
    key = "hidden_activation"
    activation, fields = _activation(fields, key), fields.changed(hidden_activation="gelu")
    config = transformer(
        fields, architecture, activation=key, tied=True, eps="norm_eps", rope=whole
    )
    listed = json_config.listed_windows(fields, config.n_layers)
    every = fields.layers("global_attn_every_n_layers", EVERY)
    layers = listed or tuple(layer % every != 0 for layer in range(config.n_layers))
    pooling = fields.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise unsupported(fields.path, f"classifier_pooling {pooling!r}")
    window = None
    if any(layers):
        size = fields.length("local_attention", WINDOW)
        own = read_rope(local, config.head_dim, config.context_length, architecture)
        window = WindowConfig(size, layers, own)
    return replace(config, tied=True, window=window, score_pooling=pooling, activation=activation)


MODERN_BERT = bert.ENCODER(
    "modern-bert",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("modernbert",),
        read_json,
        stack="",
        outer={
            "embeddings.tok_embeddings": "token_embd",
            "embeddings.norm": "token_embd_norm",
            "final_norm": "output_norm",
            "head.dense": "cls",
            "head.norm": "cls.norm",
            "classifier": "cls.output",
        },
        layer={
            "attn.Wqkv": "attn_qkv",
            "attn.Wo": "attn_output",
            "attn_norm": "attn_norm",
            "mlp.Wi": "ffn_up",
            "mlp.Wo": "ffn_down",
            "mlp_norm": "ffn_norm",
        },
        usual_name=partial(bert.usual_name, prefixes=("model.",)),
    ),
    pre_norm=True,
    sum_norm=False,
    bare_start=True,
    score_activation="gelu",
    output_norm="output_norm",
    activation="gelu_exact",
    fused_gate=True,
)
