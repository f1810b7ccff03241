"""lfm2moe: lfm2 with mixtures of experts after the first layers."""

from __future__ import annotations

from aleator.models.architecture import MIXTRAL_EXPERT, Architecture, HuggingFace, under
from aleator.models.architectures import short_convolutions
from aleator.models.config import Fields, GGUFFile, ModelConfig, unsupported
from aleator.models.conversion.gguf_form import routing, sparse_layers
from aleator.models.experts import MAX_EXPERTS, SIGMOID, in_gguf, in_json
from aleator.models.state_space import as_gguf


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    fields, name = gguf.fields, architecture.name
    config = short_convolutions.read_gguf(gguf, architecture, experts=True)
    if fields.integer(f"{name}.expert_gating_func", 0, MAX_EXPERTS) != SIGMOID:
        raise unsupported(fields.path, f"scores that are no sigmoid ({name}.expert_gating_func)")
    dense = fields.layers(f"{name}.leading_dense_block_count", 0, low=0)
    layers = tuple(layer >= dense for layer in range(config.n_layers))
    return in_gguf(
        config, fields, layers, scores="sigmoid", normalised=True, choice_bias=True, scaled=True
    )


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = short_convolutions.read_json(fields, architecture, experts=True)
    dense = fields.layers("num_dense_layers", 2, low=0)
    return in_json(
        config,
        fields,
        (32, 4),
        layers=tuple(layer >= dense for layer in range(config.n_layers)),
        n_ff=fields.width("moe_intermediate_size", 1792),
        scores="sigmoid",
        normalised=fields.get("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 0.0, 1e6, 1.0),
        choice_bias=fields.get("use_expert_bias", True),
    )


LFM2MOE = short_convolutions.CONVOLVED(
    "lfm2moe",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("lfm2_moe",),
        read_json,
        outer=short_convolutions.OUTER,
        layer=short_convolutions.LAYER | {"feed_forward.gate": "ffn_gate_inp"},
        bare={"feed_forward.expert_bias": "exp_probs_b.bias"},
        expert=under("feed_forward.experts.{}", MIXTRAL_EXPERT),
        convert=as_gguf,
        gguf_fields=lambda config, _: routing(config) | sparse_layers(config),
    ),
)
