"""qwen3next: gated delta nets, gated attention in every fourth layer, and mixtures of experts in all.

Attention rotates a part of a head's channels.  A shared expert with its own router takes every token.
"""

from functools import partial

from aleator.models.architecture import EXPERTS, SHARED_ROUTED, Architecture, HuggingFace
from aleator.models.architectures.delta_net_files import (
    BARE,
    LAYER,
    MTP_LAYER,
    MTP_PREFIX,
    as_gguf,
    read_gguf,
    read_json,
)

QWEN3NEXT = Architecture(
    "qwen3next",
    read_gguf=partial(read_gguf, tiled=False),
    hugging_face=HuggingFace(
        ("qwen3_next",),
        partial(read_json, experts=True),
        layer=LAYER
        | SHARED_ROUTED
        | {"linear_attn.in_proj_qkvz": "ssm_in", "linear_attn.in_proj_ba": "ssm_ba"},
        bare=BARE,
        expert=EXPERTS,
        mtp=MTP_LAYER,
        mtp_prefix=MTP_PREFIX,
        convert=as_gguf,
    ),
    ffn_norm="post_attention_norm",
    head_norm=True,
    attention_gate=True,
    recurrent="delta net",
)
