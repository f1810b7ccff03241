"""gemma-embedding: gemma3 as an encoder, with windows on both sides of a token (EmbeddingGemma)."""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures import gemma3_files
from aleator.models.conversions import whole_norms

GEMMA_EMBEDDING = Architecture(
    "gemma-embedding",
    read_gguf=gemma3_files.read_gguf,
    hugging_face=HuggingFace(
        ("gemma3_text",),
        gemma3_files.read_json,
        takes=gemma3_files.is_encoder,
        layer=gemma3_files.LAYER,
        convert=whole_norms,
    ),
    causal=False,
    head_norm=True,
    post_norm=True,
    activation="gelu",
    scaled_embedding=True,
)
