"""internlm2: llama under another name, with as many rotated channels.

A directory has the queries of a KV head, its key and its value side by side.
"""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace, outside, under
from aleator.models.conversions import heads_apart

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
        move_rows=heads_apart,
    ),
)
