"""qwen3moe: qwen3 with mixtures of experts (Yang et al. 2025, arXiv:2505.09388).

In GGUF files every layer has a mixture, and the weights of a token's experts sum to 1; config.json sets both.
"""

from __future__ import annotations

from aleator.models import gguf_config, json_config
from aleator.models.architecture import EXPERTS, HEAD_NORMS, TRANSFORMER, Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig
from aleator.models.experts import in_gguf, in_json, sparse_layers


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture, experts=True)
    return in_gguf(config, gguf.fields, n_ff_used=config.n_ff[0], normalised=True)


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; either all layers have a window or none, as in transformers."""
    values = {key: value for key, value in fields.values.items() if key != "layer_types"}
    fields = Fields(fields.path, values | {"max_window_layers": 0})
    config = json_config.full_attention(fields, architecture, max_window_layers=0, experts=True)
    return in_json(
        config,
        fields,
        (128, 8),
        layers=sparse_layers(fields, config.n_layers),
        n_ff=fields.width("moe_intermediate_size", 768),
        normalised=fields.get("norm_topk_prob", False),
    )


QWEN3MOE = Architecture(
    "qwen3moe",
    read_gguf=read_gguf,
    head_norm=True,
    hugging_face=HuggingFace(
        ("qwen3_moe",),
        read_json,
        layer=TRANSFORMER | HEAD_NORMS | {"mlp.gate": "ffn_gate_inp"},
        expert=EXPERTS,
    ),
)
