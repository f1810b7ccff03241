"""What architectures that are often asked for need, and no decoder here computes yet."""

from __future__ import annotations

_GEMMA4 = (
    "embeddings of tokens for each layer, and layers that attend to the keys of an earlier layer"
)

NEEDS: dict[str, str] = {
    "bamba": "a reader of its config.json; as GGUF it is granitehybrid, which runs",
    "nemotron_h_moe": "experts without a gate",
    "kimi-linear": "a delta net with a decay for each channel (Kimi Team 2025, arXiv:2510.26692)",
    "gemma4": _GEMMA4,
    "gemma4_text": _GEMMA4,
    "gemma4_unified": _GEMMA4,
    "gemma3n": _GEMMA4,
    "gemma3n_text": _GEMMA4,
}
"""Names of architectures in GGUF files and of model types in config.json -> what they need."""
