"""nemotron_h: each layer is one part: a state with one decay for each head, attention, or feed-forward.

Nothing is rotated: the states hold the order.  Feed-forward parts have no gate; they use ReLU squared.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import Architecture, HuggingFace, outside, under
from aleator.models.config import ModelConfig, refuse, unsupported
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile
from aleator.models.state_space import BARE, MIXER, as_gguf, read_heads


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file.

    Layers with a feed-forward width are feed-forward parts; of the others, those without KV heads keep a state.
    """
    config = gguf_config.transformer(gguf, architecture, least_kv_heads=0)
    return _of_parts(
        replace(config, ssm=gguf_config.read_heads(gguf.fields, architecture.name)),
        [
            "mlp" if wide else "attention" if heads else "mamba"
            for wide, heads in zip(config.n_ff, config.n_kv_heads, strict=True)
        ],
    )


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    json_config.refuse_features(fields)
    parts = _parts(fields)
    sizes = fields.changed(num_hidden_layers=len(parts))
    config = json_config.transformer(sizes, architecture, eps="layer_norm_epsilon")
    refuse(fields, "biases of the projections", "mamba_proj_bias", "use_bias")
    if fields.get("mlp_hidden_act", "relu2") != "relu2":
        raise unsupported(fields.path, f"the activation {fields.get('mlp_hidden_act')!r}")
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
    return _of_parts(replace(config, ssm=ssm), parts)


def _parts(fields: Fields) -> list[str]:
    """What each layer is: "mamba", "attention" or "mlp"."""
    pattern = fields.get("hybrid_override_pattern", kind=str)
    key = "layers_block_type" if "layers_block_type" in fields else "layer_types"
    listed = list(pattern) if pattern is not None else fields.require(key, list)
    named = {"M": "mamba", "*": "attention", "-": "mlp", "linear_attention": "mamba"}
    named |= {
        "full_attention": "attention",
        "mamba": "mamba",
        "attention": "attention",
        "mlp": "mlp",
    }
    for kind in listed:
        if kind in ("moe", "E"):
            raise unsupported(fields.path, f"experts without a gate ({key})")
        if kind not in named:
            raise fields.error(key, f"{key} names {kind!r}; it must be one of {', '.join(named)}")
    return [named[kind] for kind in listed]


def _of_parts(config: ModelConfig, parts: list[str]) -> ModelConfig:
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

NEMOTRON_H = Architecture(
    "nemotron_h",
    rope_style="none",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("nemotron_h",),
        read_json,
        outer=outside("model.embeddings", "model.norm_f"),
        layer={"norm": "attn_norm"} | under("mixer", MIXER | PARTS),
        bare=under("mixer", BARE),
        ours=lambda name: name.replace("backbone.", "model.", 1),
        convert=as_gguf,
        # llama.cpp wants both.
        gguf_fields=lambda config, _: {"attention.layer_norm_epsilon": config.rms_eps},
        rope_style="none",
    ),
    gated=False,
    activation="relu_squared",
    recurrent="heads",
    single_parts=True,
)
