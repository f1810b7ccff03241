"""nemotron_h_moe: nemotron_h whose feed-forward parts are mixtures of experts without a gate (Nemotron 3).

Scores are sigmoids; a bias is added only for the choice.  Blocks that predict further tokens are left out.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import Architecture, under
from aleator.models.architectures import nemotron_files
from aleator.models.architectures.deepseek_files import routed
from aleator.models.config import Fields, GGUFFile, ModelConfig, unsupported
from aleator.models.conversion.gguf_form import routing
from aleator.models.experts import in_gguf
from aleator.models.state_space import BARE

DEFAULTS = {
    "n_routed_experts": 8,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 7688,
    "first_k_dense_replace": 0,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 7688,
}
"""Of config.json, as in transformers."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; layers with a feed-forward width have experts."""
    fields, name = gguf.fields, architecture.name
    config = gguf_config.transformer(gguf, architecture, least_kv_heads=0, experts=True)
    config = gguf_config.without_further(fields, config)
    if fields.get(f"{name}.moe_latent_size", 0):
        raise unsupported(gguf.path, f"experts of another width ({name}.moe_latent_size)")
    parts = nemotron_files.parts_in_gguf(config)
    config = in_gguf(
        config,
        fields,
        tuple(part == "mlp" for part in parts),
        scores="sigmoid",
        normalised=fields.get(f"{name}.expert_weights_norm", False),
        choice_bias=True,
        scaled=True,
        shared=0,
    )
    ssm = gguf_config.read_heads(fields, name)
    return nemotron_files.of_parts(replace(config, ssm=ssm), parts)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    if fields.get("moe_latent_size") is not None:
        raise unsupported(fields.path, "experts of another width (moe_latent_size)")
    fields = fields.over(DEFAULTS)
    wide = fields.width("moe_intermediate_size")
    config = nemotron_files.read_json(fields.changed(intermediate_size=wide), architecture)
    mixtures = replace(
        routed(fields, config.n_layers),
        layers=tuple(n > 0 for n in config.n_ff),
        n_ff_shared=fields.width("moe_shared_expert_intermediate_size"),
    )
    return replace(config, experts=mixtures)


MIXTURE = {
    "gate": "ffn_gate_inp",
    "shared_experts.up_proj": "ffn_up_shexp",
    "shared_experts.down_proj": "ffn_down_shexp",
}
EXPERT = {"experts.{}.up_proj": "ffn_up.{}", "experts.{}.down_proj": "ffn_down.{}"}

NEMOTRON_H_MOE = nemotron_files.IN_PARTS(
    "nemotron_h_moe",
    read_gguf=read_gguf,
    hugging_face=nemotron_files.FILES(
        read=read_json,
        takes=nemotron_files.has_experts,
        layer=nemotron_files.LAYER | under("mixer", MIXTURE),
        bare=under("mixer", BARE | {"gate.e_score_correction_bias": "exp_probs_b.bias"}),
        expert=under("mixer", EXPERT),
        gguf_fields=lambda config, fields: (
            routing(config) | nemotron_files.gguf_fields(config, fields)
        ),
    ),
)
