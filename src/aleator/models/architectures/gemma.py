"""gemma: GeGLU, and embeddings multiplied by the root of their width."""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import Fields, ModelConfig, refuse
from aleator.models.conversions import whole_norms
from aleator.models.json_config import full_attention

HEAD_DIM = 256  # if config.json has none, as in transformers


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; "gelu" is its approximation here, as in transformers."""
    refuse(fields, "attention to later tokens", "use_bidirectional_attention")
    if fields.get("hidden_act") == "gelu":
        fields = fields.changed(hidden_act="gelu_pytorch_tanh")
    return full_attention(fields, architecture, head_dim=HEAD_DIM, tied=True)


GEMMA = Architecture(
    "gemma",
    hugging_face=HuggingFace(("gemma",), read_json, convert=whole_norms),
    activation="gelu",
    scaled_embedding=True,
)
