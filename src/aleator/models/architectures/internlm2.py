"""internlm2: llama under another name, with as many rotated channels.

A directory has the queries of a KV head, its key and its value side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aleator.models.architecture import Architecture, HuggingFace, outside, under
from aleator.models.config import Fields, ModelConfig, StoredTensor


def as_gguf(name: str, tensor: StoredTensor, _: Fields, config: ModelConfig) -> StoredTensor:
    """Convert a tensor to GGUF's form: all queries, then all keys, then all values."""
    kv, dim = config.n_kv_heads[0], config.head_dim
    shared = config.n_heads[0] // kv
    if ".attn_qkv." not in name or tensor.shape[:1] != (kv * (shared + 2) * dim,):
        return tensor

    def apart(rows: NDArray[Any]) -> NDArray[Any]:
        heads = rows.reshape(kv, shared + 2, dim)
        parts = np.split(heads, [shared, shared + 1], axis=1)
        return np.concatenate([part.reshape(-1) for part in parts])

    return tensor.moved_rows(apart)


LAYER = {
    "attention.wqkv": "attn_qkv",
    "attention.wo": "attn_output",
    "attention_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    **under("feed_forward", {"w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down"}),
}
"""Names of a layer's tensors."""

INTERNLM2 = Architecture(
    "internlm2",
    rope_style="norm",
    hugging_face=HuggingFace(
        ("internlm2",),
        outer=outside("model.tok_embeddings") | {"output": "output"},
        layer=LAYER,
        convert_fields=as_gguf,
    ),
)
