"""llama: the plain pre-norm transformer (also Mistral and others under that name in GGUF files).

Biases of the projections are used where a file has them.
"""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.config import ModelConfig
from aleator.models.files.fields import Fields
from aleator.models.json_config import full_attention


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; Mistral's has no switch for its windows."""
    return full_attention(fields, architecture, windows=fields.get("model_type") == "mistral")


LLAMA = Architecture(
    "llama", rope_style="norm", hugging_face=HuggingFace(("llama", "mistral"), read_json)
)
