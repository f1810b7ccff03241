"""jamba: selective state spaces, or attention in every few layers, each followed by a feed-forward part.

Attention has no rotary embedding: the states hold the order (Lieber et al. 2024, arXiv:2403.19887).  Time step,
B and C are normalised with weights.  Some feed-forward parts are mixtures, weighted by scores.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import json_config
from aleator.models.architecture import ATTENTION, GATED, Architecture, HuggingFace, outside, under
from aleator.models.config import MAX_CONV, MAX_STATE, ExpertsConfig, ModelConfig, SSMConfig, refuse
from aleator.models.experts import MAX_EXPERTS, in_gguf
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile
from aleator.models.gguf_config import read_state_space, transformer
from aleator.models.state_space import SELECTIVE, as_gguf


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; without KV heads a layer keeps a state, with a router it has experts."""
    fields, name = gguf.fields, architecture.name
    config = transformer(gguf, architecture, least_kv_heads=0, experts=True)
    config = replace(config, ssm=read_state_space(fields, name))
    sparse = tuple(
        f"blk.{layer}.ffn_gate_inp.weight" in gguf.tensors for layer in range(config.n_layers)
    )
    if not fields.get(f"{name}.expert_count", 0) or not any(sparse):
        return config
    return in_gguf(config, fields, sparse, n_ff=config.n_ff[0])


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = json_config.transformer(fields, architecture, experts=True)
    refuse(fields, "biases of the projections", "mamba_proj_bias")

    def every(kind: str, period: int, offset: int) -> tuple[bool, ...]:
        step = fields.layers(f"{kind}_layer_period", period)
        first = fields.layers(f"{kind}_layer_offset", offset, low=0)
        return tuple(layer % step == first for layer in range(config.n_layers))

    attends, sparse = every("attn", 8, 4), every("expert", 2, 1)
    rank = -(-config.n_embd // 16)
    if fields.get("mamba_dt_rank") not in (None, "auto"):
        rank = fields.width("mamba_dt_rank")
    n_experts = fields.integer("num_experts", 1, MAX_EXPERTS, 16)
    mixtures = ExpertsConfig(
        n_experts=n_experts,
        n_used=fields.integer("num_experts_per_tok", 1, n_experts, 2) if n_experts > 1 else 1,
        n_ff=config.n_ff[0],
        layers=sparse,
    )
    return replace(
        config,
        n_kv_heads=config.kv_heads_beside(not each for each in attends),
        ssm=SSMConfig(
            d_inner=fields.width("mamba_expand", 2) * config.n_embd,
            d_conv=fields.integer("mamba_d_conv", 2, MAX_CONV, 4),
            d_state=fields.integer("mamba_d_state", 1, MAX_STATE, 16),
            dt_rank=rank,
        ),
        experts=mixtures if n_experts > 1 and any(sparse) else None,
    )


JAMBA = Architecture(
    "jamba",
    rope_style="none",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("jamba",),
        read_json,
        outer=outside(norm="model.final_layernorm"),
        layer={
            **ATTENTION,
            **under("feed_forward", GATED | {"router": "ffn_gate_inp"}),
            "pre_ff_layernorm": "ffn_norm",
            **under("mamba", SELECTIVE),
            "mamba.dt_layernorm": "ssm_dt_norm",
            "mamba.b_layernorm": "ssm_b_norm",
            "mamba.c_layernorm": "ssm_c_norm",
        },
        bare={"mamba.A_log": "ssm_a", "mamba.D": "ssm_d"},
        expert=under("feed_forward.experts.{}", GATED, ".{}"),
        convert=as_gguf,
    ),
    recurrent="state space",
    state_norm=True,
)
