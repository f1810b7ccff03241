"""plamo: llama whose feed-forward part stands beside attention.

In a directory neighbouring heads of queries have different heads of keys.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from aleator.models.architecture import ATTENTION, GATED, Architecture, HuggingFace, under
from aleator.models.config import Fields, ModelConfig, StoredTensor
from aleator.models.json_config import full_attention


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json, whose number of KV heads is not the one that is used."""
    heads = fields.width("num_attention_heads")
    shared = fields.width("n_shared_head", 8)
    sizes = fields.over({"max_position_embeddings": 4096})
    return full_attention(sizes.changed(num_key_value_heads=-(-heads // shared)), architecture)


def _grouped(values: NDArray[Any], config: ModelConfig) -> NDArray[Any]:
    """Values in the order of the heads, with those of one head of keys together."""
    kv, heads = config.n_kv_heads[0], config.n_heads[0]
    if len(values) % heads:
        return values  # refused for its shape
    parts = values.reshape(heads // kv, kv, len(values) // heads, *values.shape[1:])
    return parts.swapaxes(0, 1).reshape(values.shape)


def move_rows(name: str, tensor: StoredTensor, config: ModelConfig) -> StoredTensor:
    if ".attn_q." not in name:
        return tensor
    return tensor.moved_rows(lambda rows: _grouped(rows, config))


def move_columns(name: str, tensor: StoredTensor, config: ModelConfig) -> StoredTensor:
    if ".attn_output." not in name:
        return tensor
    return tensor.moved(lambda values: _grouped(values.T, config).T)


PLAMO = Architecture(
    "plamo",
    hugging_face=HuggingFace(
        ("plamo",),
        read_json,
        stack="model.layers",
        layer=ATTENTION | under("mlp", GATED) | {"norm": "attn_norm"},
        move_rows=move_rows,
        move_columns=move_columns,
    ),
    ffn_norm="",
    parallel=True,
)
