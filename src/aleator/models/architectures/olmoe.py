"""olmoe: mixtures of experts in every layer, queries and keys normalised over all heads together."""

from __future__ import annotations

from aleator.models import gguf_config
from aleator.models.architecture import EXPERTS, HEAD_NORMS, TRANSFORMER, Architecture, HuggingFace
from aleator.models.config import Fields, GGUFFile, ModelConfig, unsupported
from aleator.models.experts import in_gguf, in_json
from aleator.models.json_config import full_attention


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config = gguf_config.transformer(gguf, architecture, experts=True)
    return in_gguf(config, gguf.fields, n_ff=config.n_ff[0])


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    config = full_attention(fields, architecture, experts=True)
    if fields.get("clip_qkv") is not None:
        raise unsupported(fields.path, "queries, keys and values that are clamped (clip_qkv)")
    return in_json(config, fields, (64, 8), normalised=fields.get("norm_topk_prob", False))


OLMOE = Architecture(
    "olmoe",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("olmoe",),
        read_json,
        layer=TRANSFORMER | HEAD_NORMS | {"mlp.gate": "ffn_gate_inp"},
        expert=EXPERTS,
    ),
    head_norm=True,
    head_norm_kind="all",
)
