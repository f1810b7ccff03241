"""What is not supported on purpose, by the names that files give it, and what one can do instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aleator.models.unsupported import NEEDS

_PICTURES = (
    ": it computes pictures or sound, for which there are no encoders here; the text part of such a model runs "
    "by itself"
)
_ENCODER = (
    ": it is an encoder, whose tokens see later ones and which gives no logits; decoders run here"
)

KINDS: Mapping[str, str] = {
    "adapter": ": LoRA adapters are not applied; merge it into its model with llama.cpp's llama-export-lora",
    "mmproj": _PICTURES,
    "imatrix": "",
}
"""What ``general.type`` of a GGUF file may say besides "model" -> what to do, after the error's text."""

_ENCODERS = (
    *(
        "bert",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "modern-bert",
        "jina-bert-v2",
        "jina-bert-v3",
    ),
    *(
        "eurobert",
        "gemma-embedding",
        "t5",
        "t5encoder",
        "roberta",
        "xlm-roberta",
        "deberta-v2",
        "bart",
    ),
)
_SENSES = (
    "clip",
    "wavtokenizer-dec",
    "whisper",
    "siglip",
    "llava",
    "paligemma",
    "qwen2_audio",
    "mllama",
)


def why(architecture: str) -> str:
    """Why an architecture is not among those supported, where there is a reason; else ""."""
    if architecture in _ENCODERS:
        return _ENCODER
    if architecture in NEEDS:
        return f": it needs {NEEDS[architecture]}"
    return _PICTURES if architecture in _SENSES else ""


def quantisation(config: Mapping[str, Any]) -> str:
    """What a ``quantization_config`` asks for, and what to do.

    Args:
        config: the field of config.json.
    """
    method = str(config.get("quant_method", "an unknown method"))
    known = {"gptq": "GPTQ", "awq": "AWQ", "fp8": "FP8", "compressed-tensors": "compressed-tensors"}
    return (
        f"safetensors quantised by {known.get(method, method)} (quantization_config): take the model's "
        "unquantised safetensors, or a GGUF file of a type that is supported; this"
    )
