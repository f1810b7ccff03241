"""What architectures that are often asked for need, and no decoder here computes yet."""

from __future__ import annotations

_GEMMA3N = (
    "several streams of hidden states (AltUp), a low-rank path beside attention (LAuReL), embeddings of tokens "
    "for each layer, and layers that attend to the keys of an earlier layer"
)
_DRAFT = "hidden states and keys of the Gemma 4 model that it drafts for"

NEEDS: dict[str, str] = {
    "bamba": "a reader of its config.json; as GGUF it is granitehybrid, which runs",
    "nemotron_h_moe": "experts without a gate",
    "kimi-linear": "a delta net with a decay for each channel (Kimi Team 2025, arXiv:2510.26692)",
    "gemma4-assistant": _DRAFT,
    "gemma4_assistant": _DRAFT,
    "gemma4_unified_assistant": _DRAFT,
    "gemma3n": _GEMMA3N,
    "gemma3n_text": _GEMMA3N,
}
"""Names of architectures in GGUF files and of model types in config.json -> what they need."""
