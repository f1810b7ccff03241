"""Granite's factors of embeddings, scores, the outputs of attention and feed-forward, and logits."""

from __future__ import annotations

from dataclasses import replace

from aleator.models.config import ModelConfig
from aleator.models.files.fields import Fields, Value

MIXTURE = {
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "block_sparse_moe.input_linear": "ffn_gate_up_exps",
    "block_sparse_moe.output_linear": "ffn_down_exps",
    "shared_mlp.input_linear": "ffn_gate_up_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
}
"""Names of the tensors of mixtures, in granitemoe and granitehybrid."""


def in_gguf(config: ModelConfig, fields: Fields) -> ModelConfig:
    """The dimensions with the factors of a GGUF file; a factor of 0 means no factor, as in llama.cpp."""
    name = config.architecture
    return replace(
        config,
        attention_scale=fields.number(f"{name}.attention.scale", 0.0, 1e6, 0.0) or None,
        embedding_scale=fields.number(f"{name}.embedding_scale", 0.0, 1e6, 0.0) or 1.0,
        residual_scale=fields.number(f"{name}.residual_scale", 0.0, 1e6, 0.0) or 1.0,
        logit_scale=1.0 / fields.number(f"{name}.logit_scale", 1e-6, 1e6),
    )


def gguf_fields(config: ModelConfig, _: Fields) -> dict[str, Value | None]:
    """The fields that :func:`in_gguf` reads, and whether layers rotate."""
    return {
        "attention.scale": config.attention_scale,
        "embedding_scale": config.embedding_scale,
        "residual_scale": config.residual_scale,
        "logit_scale": 1.0 / config.logit_scale,
        "rope.scaling.finetuned": config.rotated(0),
    }


def config_in_gguf(config: ModelConfig) -> ModelConfig:
    """The dimensions as GGUF says them: the softmax of chosen logits is normalised scores."""
    if config.experts is None:
        return config
    return replace(config, experts=replace(config.experts, scores="softmax", normalised=True))


def in_json(config: ModelConfig, fields: Fields) -> ModelConfig:
    """The dimensions with the factors of a config.json."""
    return replace(
        config,
        attention_scale=fields.number("attention_multiplier", 1e-6, 1e6, 1.0),
        embedding_scale=fields.number("embedding_multiplier", 1e-6, 1e6, 1.0),
        residual_scale=fields.number("residual_multiplier", 1e-6, 1e6, 1.0),
        logit_scale=1.0 / fields.number("logits_scaling", 1e-6, 1e6, 1.0),
    )
