"""mistral4: deepseek2 with queries that grow with the position; pictures are left out."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import latent
from aleator.models.architecture import (
    EXPERTS,
    STACKED,
    TRANSFORMER,
    Architecture,
    HuggingFace,
    under,
)
from aleator.models.architectures import deepseek_files
from aleator.models.architectures.deepseek_files import ROUTED, read_gguf, routed
from aleator.models.config import ModelConfig, QueryGrowth
from aleator.models.conversions import in_text_model, text_part
from aleator.models.files.fields import Fields, Value

DEFAULTS = {
    "n_routed_experts": 128,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 0,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "n_shared_experts": 1,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 128.0,
        "original_max_position_embeddings": 8192,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
"""Of config.json, as in transformers."""


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; of the text part if the model also reads pictures."""
    fields = text_part(fields, "mistral4").over(DEFAULTS)
    rope = dict(fields.require("rope_parameters", dict))
    rope.pop("partial_rotary_factor", None)  # qk_rope_head_dim says it too
    fields = fields.changed(rope_parameters=rope)
    config = latent.in_json(fields, architecture, experts=True)
    if not fields.get("rope_interleave", True):
        config = replace(config, rope=replace(config.rope, style="neox"))
    rate = Fields(fields.path, rope).number("llama_4_scaling_beta", 0.0, 1e6, 0.0)
    mixtures = replace(routed(fields, config.n_layers), scores="softmax", choice_bias=False)
    return replace(
        config,
        experts=mixtures,
        query_growth=QueryGrowth(rate, config.rope.original_context) if rate else None,
    )


def gguf_fields(config: ModelConfig, fields: Fields) -> dict[str, Value | None]:
    made, growth = deepseek_files.gguf_fields(config, fields), config.query_growth
    if growth is not None:
        made["attention.temperature_scale"] = growth.rate
        made["attention.temperature_length"] = growth.context
    return made


def with_pictures(fields: Fields) -> bool:
    """Whether a config.json with pictures has this text model."""
    text = fields.get("text_config", kind=dict) or {}
    return "mistral4" in (fields.get("model_type"), text.get("model_type"))


MISTRAL4 = Architecture(
    "mistral4",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("mistral4", "mistral3"),
        read_json,
        takes=with_pictures,
        rope_style="norm",
        layer=TRANSFORMER | latent.LAYER | ROUTED,
        bare=under("mlp", STACKED),
        expert=EXPERTS,
        usual_name=in_text_model,
        gguf_fields=gguf_fields,
    ),
)
