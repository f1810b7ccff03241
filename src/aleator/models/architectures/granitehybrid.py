"""granitehybrid: granite in which most layers keep states with one decay for each head; every few attend.

Attention rotates nothing unless the file says so.  Feed-forward parts are mixtures with a shared expert, or the
shared expert alone.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import WITHOUT_MLP, Architecture, HuggingFace, under
from aleator.models.architectures import granite_factors
from aleator.models.config import Fields, GGUFFile, ModelConfig, refuse
from aleator.models.experts import MAX_EXPERTS, in_gguf, in_json
from aleator.models.state_space import BARE, MIXER, as_gguf, read_mamba_heads


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; layers without KV heads keep a state."""
    fields, name = gguf.fields, architecture.name
    config = gguf_config.transformer(gguf, architecture, least_kv_heads=0, experts=True)
    config = replace(config, ssm=gguf_config.read_heads(fields, name))
    if not fields.get(f"{name}.rope.scaling.finetuned", True):
        config = replace(config, unrotated=(True,) * config.n_layers)
    if fields.get(f"{name}.expert_count", 0):
        config = in_gguf(config, fields, n_ff=config.n_ff[0], normalised=True, shared=0)
    return granite_factors.in_gguf(config, fields)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = json_config.transformer(fields, architecture, experts=True)
    refuse(fields, "biases of the projections", "mamba_proj_bias")
    n, wide = config.n_layers, fields.width("shared_intermediate_size", 1024)
    key = "layer_types" if "layer_types" in fields else "layers_block_type"
    states = json_config.listed_kinds(fields, n, STATES, ATTENDS, key) or (True,) * n
    n_experts = fields.integer("num_local_experts", 0, MAX_EXPERTS, 8)
    if n_experts:
        scores = "chosen softmax"
        config = in_json(config, fields, (n_experts, 2), scores=scores, n_ff_shared=wide)
    inner = fields.width("mamba_expand", 2) * config.n_embd
    rotated = fields.get("position_embedding_type") == "rope"
    return granite_factors.in_json(
        replace(
            config,
            n_kv_heads=config.kv_heads_beside(states),
            n_ff=config.n_ff if n_experts else (wide,) * n,
            unrotated=() if rotated else (True,) * n,
            ssm=read_mamba_heads(fields, inner),
        ),
        fields,
    )


STATES, ATTENDS = ("mamba", "linear_attention"), ("attention", "full_attention")

GRANITEHYBRID = Architecture(
    "granitehybrid",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("granitemoehybrid",),
        read_json,
        layer=WITHOUT_MLP | granite_factors.MIXTURE | under("mamba", MIXER),
        bare=under("mamba", BARE),
        convert=as_gguf,
        config_in_gguf=granite_factors.config_in_gguf,
        gguf_fields=granite_factors.gguf_fields,
    ),
    recurrent="heads",
)
