"""phi3: llama with queries, keys and values in one tensor, gate and up in one, and longrope.

llama.cpp ignores the windows that some of these files name; with Hugging Face's files they are used.
"""

from __future__ import annotations

from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace
from aleator.models.config import Fields, ModelConfig
from aleator.models.json_config import full_attention, with_scaling

ORIGINAL = 4096  # positions, if config.json has none
OLD_NAMES = ("su", "yarn")  # of longrope


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; older files use other names for longrope."""
    given = {"original_max_position_embeddings": ORIGINAL, **fields.values}
    fields = with_scaling(Fields(fields.path, given), "longrope", OLD_NAMES)
    return full_attention(fields, architecture, rotated=1.0, windows=1)


PHI3 = Architecture(
    "phi3",
    hugging_face=HuggingFace(
        ("phi3",),
        read_json,
        layer=TRANSFORMER | {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    ),
    fused_gate=True,
)
