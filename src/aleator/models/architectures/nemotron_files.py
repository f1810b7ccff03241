"""Reads files of Nemotron-H's models, with mixtures of experts or without."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aleator.models import json_config
from aleator.models.architecture import Architecture, HuggingFace, outside, under
from aleator.models.config import ModelConfig, refuse, unsupported
from aleator.models.files.fields import Fields, Value
from aleator.models.state_space import MIXER, as_gguf, read_heads


def parts_in_gguf(config: ModelConfig) -> list[str]:
    """What each layer is, by its widths."""
    widths = zip(config.n_ff, config.n_kv_heads, strict=True)
    return ["mlp" if wide else "attention" if heads else "mamba" for wide, heads in widths]


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    parts = _parts(fields)
    sizes = fields.changed(num_hidden_layers=len(parts))
    config = json_config.transformer(
        sizes, architecture, activation="mlp_hidden_act", eps="layer_norm_epsilon"
    )
    refuse(fields, "biases of the projections", "mamba_proj_bias", "use_bias")
    heads = fields.width("mamba_num_heads", 128)
    # A width below heads times head size would be another model.
    inner = heads * fields.width("mamba_head_dim", 64)
    ssm = read_heads(
        fields,
        inner,
        heads="mamba_num_heads",
        head_dim="mamba_head_dim",
        state="ssm_state_size",
        groups="n_groups",
        conv="conv_kernel",
        least_step=True,
    )
    return of_parts(replace(config, ssm=ssm), parts)


def _parts(fields: Fields) -> list[str]:
    """What each layer is: "mamba", "attention" or "mlp".

    If there are mixtures, every "mlp" is one.
    """
    key, listed = _listed(fields)
    named = {"M": "mamba", "*": "attention", "-": "mlp", "linear_attention": "mamba"}
    named |= {
        "full_attention": "attention",
        "mamba": "mamba",
        "attention": "attention",
        "mlp": "mlp",
    }
    if has_experts(fields):
        if "-" in listed or "mlp" in listed:
            raise unsupported(fields.path, f"feed-forward parts with experts and without ({key})")
        named |= dict.fromkeys(MIXTURES, "mlp")
    for kind in listed:
        if kind not in named:
            raise fields.error(key, f"{key} names {kind!r}; it must be one of {', '.join(named)}")
    return [named[kind] for kind in listed]


def _listed(fields: Fields) -> tuple[str, list[str]]:
    """The field that says what layers are, and what it says of each."""
    pattern = fields.get("hybrid_override_pattern", kind=str)
    if pattern is not None:
        return "hybrid_override_pattern", list(pattern)
    key = "layers_block_type" if "layers_block_type" in fields else "layer_types"
    return key, fields.require(key, list)


MIXTURES = ("moe", "E")
"""Names of layers that are mixtures of experts."""


def has_experts(fields: Fields) -> bool:
    """Whether any layer is a mixture of experts."""
    _, listed = _listed(fields)
    return any(kind in listed for kind in MIXTURES)


def of_parts(config: ModelConfig, parts: list[str]) -> ModelConfig:
    """The dimensions of layers of one part each."""

    def where(kind: str, values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(n if part == kind else 0 for n, part in zip(values, parts, strict=True))

    return replace(
        config,
        n_kv_heads=where("attention", config.n_kv_heads),
        n_ff=where("mlp", config.n_ff),
        stateful=tuple(part == "mamba" for part in parts),
    )


PARTS = {
    **{"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"},
    **{"up_proj": "ffn_up", "down_proj": "ffn_down"},
}
LAYER = {"norm": "attn_norm"} | under("mixer", MIXER | PARTS)
OUTER = outside("model.embeddings", "model.norm_f")


def usual_name(name: str) -> str:
    """A tensor's name; "" in blocks that predict further tokens."""
    return "" if name.startswith("mtp.") else name.replace("backbone.", "model.", 1)


def gguf_fields(config: ModelConfig, _: Fields) -> dict[str, Value | None]:
    """The second epsilon: llama.cpp wants both."""
    return {"attention.layer_norm_epsilon": config.rms_eps}


IN_PARTS = partial(
    Architecture,
    rope_style="none",
    gated=False,
    activation="relu_squared",
    recurrent="heads",
    single_parts=True,
)
FILES = partial(
    HuggingFace,
    ("nemotron_h",),
    outer=OUTER,
    usual_name=usual_name,
    convert=as_gguf,
)
"""The facts that models with experts and without have in common."""
