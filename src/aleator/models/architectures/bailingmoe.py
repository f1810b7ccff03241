"""bailingmoe: llama with mixtures of experts and a shared expert in every layer (Ling 1)."""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config, json_config
from aleator.models.architecture import EXPERTS, Architecture, HuggingFace, outside
from aleator.models.architectures.deepseek_files import ROUTED, mixture_fields, routed
from aleator.models.config import Fields, GGUFFile, ModelConfig, present, refuse
from aleator.models.experts import after_dense

NAMES = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
"""DeepSeek-V3's fields -> those of config.json here."""
DEFAULTS = {
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
    "num_shared_experts": 0,
}
"""Of config.json."""


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; all layers have experts, whatever it says, as in llama.cpp."""
    config = gguf_config.transformer(gguf, architecture, experts=True)
    config = after_dense(config, gguf, scores="softmax")
    every = (True,) * config.n_layers
    mixtures = replace(present(config.experts), layers=every, choice_bias=False)
    return replace(config, experts=mixtures)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse(fields, "an output matrix with normalised columns", "norm_head")
    config = json_config.full_attention(fields, architecture, experts=True)
    mixtures = routed(fields.over(DEFAULTS), config.n_layers, names=NAMES)
    return replace(config, experts=replace(mixtures, scores="softmax", choice_bias=False))


def first(fields: Fields) -> bool:
    """Whether a config.json is not of version 2, which may have the same type."""
    return "BailingMoeV2ForCausalLM" not in (fields.get("architectures", kind=list) or [])


LAYER = {
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""Names of a layer's tensors besides the mixture's."""

BAILINGMOE = Architecture(
    "bailingmoe",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("bailing_moe",),
        read_json,
        takes=first,
        outer=outside("model.word_embeddings"),
        layer=LAYER | ROUTED,
        expert=EXPERTS,
        gguf_fields=mixture_fields,
    ),
)
