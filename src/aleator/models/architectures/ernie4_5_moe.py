"""ernie4_5-moe: ernie4_5 with mixtures of experts after the first layers, and a shared expert.

A bias is added to the scores only for the choice; the weights of a token's experts sum to 1.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import EXPERTS, TRANSFORMER, Architecture, HuggingFace
from aleator.models.architectures.deepseek_files import ROUTED
from aleator.models.config import ExpertsConfig, Fields, GGUFFile, ModelConfig, StoredTensor, refuse
from aleator.models.conversion.gguf_form import sparse_layers
from aleator.models.experts import MAX_EXPERTS, has_choice_bias, in_gguf
from aleator.models.json_config import full_attention


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config, fields = gguf_config.transformer(gguf, architecture, experts=True), gguf.fields
    name = architecture.name
    step = fields.layers(f"{name}.interleave_moe_layer_step")
    first = fields.layers(f"{name}.leading_dense_block_count", 0, low=0)
    sparse = tuple(layer >= first and (layer + 1) % step == 0 for layer in range(config.n_layers))
    biased = has_choice_bias(gguf, config.n_layers)
    return in_gguf(config, fields, sparse, normalised=True, shared=0, choice_bias=biased)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = full_attention(fields, architecture, experts=True, tied=True)
    refuse(fields, "biases of the projections", "use_bias")
    n_layers, n_experts = config.n_layers, fields.integer("moe_num_experts", 1, MAX_EXPERTS, 64)
    first = fields.layers("moe_layer_start_index", 1, low=0)
    last = fields.layers("moe_layer_end_index", -1, low=-1)
    step = fields.layers("moe_layer_interval", 1)
    last = n_layers - 1 if last < 0 else last
    width = fields.width("moe_intermediate_size", 1536)
    mixtures = ExpertsConfig(
        n_experts=n_experts,
        n_used=fields.integer("moe_k", 1, n_experts, 6),
        n_ff=width,
        layers=tuple(
            (layer + 1) % step == 0 and first <= layer <= last for layer in range(n_layers)
        ),
        normalised=True,
        choice_bias=True,
        n_ff_shared=width * fields.integer("moe_num_shared_experts", 0, MAX_EXPERTS, 2),
    )
    return replace(config, experts=mixtures)


def as_gguf(name: str, tensor: StoredTensor) -> StoredTensor:
    """Convert a tensor to GGUF's form: the bias of the choice is a vector there."""
    if name.endswith("exp_probs_b.bias"):
        return replace(tensor, shape=(tensor.n_elements,))
    return tensor


ERNIE4_5_MOE = Architecture(
    "ernie4_5-moe",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("ernie4_5_moe",),
        read_json,
        rope_style="norm",
        layer=TRANSFORMER | ROUTED,
        bare={"mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias"},
        expert=EXPERTS,
        convert=as_gguf,
        gguf_fields=lambda config, _: sparse_layers(config),
    ),
)
