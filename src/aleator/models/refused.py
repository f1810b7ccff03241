"""Models that are deliberately not supported, by their names in files, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping

from aleator.core.errors import UnsupportedModel

_GEMMA3N = (
    "several streams of hidden states (AltUp), a low-rank path beside attention (LAuReL), embeddings of tokens "
    "for each layer, and layers that attend to the keys of an earlier layer"
)
_DRAFT = "hidden states and keys of the Gemma 4 model that it drafts for"

NEEDS: dict[str, str] = {
    "bamba": "a reader of its config.json; as GGUF it is granitehybrid, which runs",
    "gemma4-assistant": _DRAFT,
    "gemma4_assistant": _DRAFT,
    "gemma4_unified_assistant": _DRAFT,
    "gemma3n": _GEMMA3N,
    "gemma3n_text": _GEMMA3N,
}
"""Names of architectures in GGUF files and of model types in config.json -> what they need."""


_PICTURES = (
    ": it computes pictures or sound, for which there are no encoders here; the text part of such a model runs "
    "by itself"
)
_ENCODER = ": it is an encoder of another kind; those of bert's kind run here, and decoders"

KINDS: Mapping[str, str] = {
    "adapter": ": load the model that it is for, and the adapter with it (adapters={name: file}; --lora FILE)",
    "mmproj": _PICTURES,
    "imatrix": "",
}
"""``general.type`` of a GGUF file, other than "model" -> what to do, for the end of the error."""

_ENCODERS = ("t5", "t5encoder", "deberta-v2", "bart")
_SENSES = (
    "clip", "wavtokenizer-dec", "whisper", "siglip", "llava", "paligemma", "qwen2_audio", "mllama",
)  # fmt: skip


def why(architecture: str) -> str:
    """Why an architecture is not supported, if there is a special reason; else ""."""
    if architecture in _ENCODERS:
        return _ENCODER
    if architecture in NEEDS:
        return f": it needs {NEEDS[architecture]}"
    return _PICTURES if architecture in _SENSES else ""


def quantisation(
    path: object, method: str, key: str = "", value: object = None
) -> UnsupportedModel:
    """The error for a ``quant_method`` with this value of a field, which says what to do."""
    of = f" with {key}={value!r:.200}" if key else ""
    return UnsupportedModel(
        f"{path}: safetensors quantised by {method!r:.80}{of} are not supported (quantization_config; GPTQ "
        "of 4 and 8 bits, AWQ of 4, FP8, MXFP4, NVFP4, nf4, fp4 and compressed-tensors are): take the model's "
        "unquantised safetensors, or a GGUF file"
    )
