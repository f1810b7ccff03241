"""gemma-embedding: gemma3 as an encoder, with windows on both sides of a token (EmbeddingGemma).

The dense layers behind the pooling, which sentence-transformers adds, are not computed: files with them are
refused, and of directories only hidden states pooled as asked are given.
"""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures import gemma3_files
from aleator.models.config import GGUFFile, ModelConfig, unsupported
from aleator.models.conversions import whole_norms


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    for name in gguf.tensors:
        if name.startswith("dense_"):
            raise unsupported(gguf.path, f"the tensor {name}")
    return gemma3_files.read_gguf(gguf, architecture)


GEMMA_EMBEDDING = Architecture(
    "gemma-embedding",
    read_gguf=read_gguf,
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
