"""phi2: layer norms, biases everywhere, feed-forward beside attention without a gate (Phi-1, 1.5 and 2)."""

from __future__ import annotations

from aleator.models.architecture import ATTENTION, Architecture, HuggingFace, outside
from aleator.models.config import Fields, ModelConfig, refuse
from aleator.models.json_config import transformer

HALF = 0.5  # share of the channels, if config.json has none


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    refuse(fields, "norms of queries and keys", "qk_layernorm")
    if fields.get("hidden_act", "gelu_new") == "gelu_new":  # another name of it
        fields = fields.changed(hidden_act="gelu_pytorch_tanh")
    return transformer(fields, architecture, eps="layer_norm_eps", rotated=HALF)


PHI2 = Architecture(
    "phi2",
    qkv_bias=True,
    hugging_face=HuggingFace(
        ("phi",),
        read_json,
        outer=outside(norm="model.final_layernorm"),
        layer=ATTENTION
        | {"self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
    ),
    norm="layer",
    gated=False,
    activation="gelu",
    ffn_norm="",
    parallel=True,
)
