"""hunyuan-moe: hunyuan-dense with mixtures of experts and a shared expert in every layer.

Keys are normalised after the rotation, so they cannot be rotated to other positions: a shift is refused.
"""

from __future__ import annotations

from dataclasses import replace

from aleator.models import gguf_config
from aleator.models.architecture import EXPERTS, TRANSFORMER, Architecture, HuggingFace, shared_mlp
from aleator.models.config import Fields, GGUFFile, ModelConfig, present, unsupported
from aleator.models.experts import in_gguf, in_json
from aleator.models.json_config import full_attention


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    """The dimensions in a GGUF file; experts are as wide as the file's feed-forward part, as in llama.cpp."""
    config = gguf_config.transformer(gguf, architecture, experts=True)
    wide = config.n_ff[0]
    config = in_gguf(config, gguf.fields, normalised=True, shared=wide)
    return replace(config, experts=replace(present(config.experts), n_ff=wide))


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    for key in ("num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert"):
        if isinstance(fields.values.get(key), list):
            raise unsupported(fields.path, f"layers with different experts ({key})")
    config = full_attention(fields, architecture, experts=True)
    wide = config.n_ff[0]
    return in_json(config, fields, (1, 1), "moe_topk", normalised=True, n_ff_shared=wide)


HUNYUAN_MOE = Architecture(
    "hunyuan-moe",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("hunyuan_v1_moe",),
        read_json,
        layer=TRANSFORMER
        | {
            "self_attn.query_layernorm": "attn_q_norm",
            "self_attn.key_layernorm": "attn_k_norm",
            "mlp.gate.wg": "ffn_gate_inp",
            **shared_mlp("mlp.shared_mlp"),
        },
        expert=EXPERTS,
    ),
    head_norm=True,
    head_norm_kind="rotated head",
    shifts=False,
)
