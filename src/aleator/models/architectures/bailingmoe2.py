"""bailingmoe2: qwen3 with mixtures of experts after the first layers, and a shared expert (Ling 2, Ring 2).

Layers that predict further tokens are left out.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import (
    EXPERTS,
    GATED,
    MTP_LAYER,
    Architecture,
    HuggingFace,
    outside,
    under,
)
from aleator.models.architectures.deepseek_files import ROUTED, mixture_fields, routed
from aleator.models.config import GGUFFile, ModelConfig, refuse_others
from aleator.models.experts import after_dense
from aleator.models.files.fields import Fields, Value

HALF = 0.5  # share of the channels, if config.json has none
NAMES = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
"""DeepSeek-V3's fields -> those of config.json here."""
DEFAULTS = {"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "first_k_dense_replace": 0}
"""Of config.json."""
FIXED = {"score_function": "sigmoid", "use_qk_norm": True, "moe_router_enable_expert_bias": True}
"""Fields with a single value that is computed."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file, which may give the shared expert a width of its own."""
    config = gguf_config.transformer(gguf, architecture, experts=True)
    config = gguf_config.without_further(gguf.fields, config)
    return after_dense(config, gguf, own_width=True)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse_others(fields, FIXED)
    config = json_config.full_attention(fields, architecture, experts=True, rotated=HALF)
    mixtures = routed(fields.over(DEFAULTS), config.n_layers, names=NAMES)
    wide = "moe_shared_expert_intermediate_size"
    shared = fields.width(wide, mixtures.n_ff_shared, low=0)
    return replace(config, experts=replace(mixtures, n_ff_shared=shared))


LAYER = {
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output",
    "attention.query_layernorm": "attn_q_norm",
    "attention.key_layernorm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **under("mlp", GATED),
    **ROUTED,
}
"""Names of a layer's tensors."""


def gguf_fields(config: ModelConfig, fields: Fields) -> dict[str, Value | None]:
    """The fields that :func:`read_gguf` reads besides the usual; the shared experts are one wide expert."""
    return mixture_fields(config, fields) | {"expert_shared_count": 1}


def second(fields: Fields) -> bool:
    """Whether a config.json is of version 2: version 1 has the same type."""
    names = fields.get("architectures", kind=list) or []
    return "BailingMoeV2ForCausalLM" in names or fields.get("model_type") == "bailing_moe_v2"


BAILINGMOE2 = Architecture(
    "bailingmoe2",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("bailing_moe_v2", "bailing_moe"),
        read_json,
        takes=second,
        outer=outside("model.word_embeddings"),
        layer=LAYER,
        bare={"mlp.gate.expert_bias": "exp_probs_b.bias"},
        expert=EXPERTS,
        mtp=MTP_LAYER | {"final_layernorm": "layer_output_norm"},
        gguf_fields=gguf_fields,
    ),
    head_norm=True,
)
