"""What architectures that are often asked for need, and no decoder here computes yet."""

from __future__ import annotations

_SCAN = (
    "a scan with one decay for each head (Dao and Gu 2024, arXiv:2405.21060) and its grouped norm"
)
_LATENT = "latent attention, whose cache holds compressed keys (DeepSeek-AI 2024, arXiv:2405.04434)"

_GEMMA4 = (
    "embeddings of tokens for each layer, and layers that attend to the keys of an earlier layer"
)

NEEDS: dict[str, str] = {
    "bamba": _SCAN,
    "nemotron_h_moe": _SCAN,
    "kimi-linear": "a delta net with a decay for each channel (Kimi Team 2025, arXiv:2510.26692)",
    "lfm2moe": "layers that keep a short convolution's inputs alone",
    "lfm2_moe": "layers that keep a short convolution's inputs alone",
    "gemma4": _GEMMA4,
    "gemma4_text": _GEMMA4,
    "gemma4_unified": _GEMMA4,
    "gemma3n": _GEMMA4,
    "gemma3n_text": _GEMMA4,
    "deepseek2": _LATENT,
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "minicpm3": _LATENT,
    "llama4": "windows that begin anew every so many positions, and experts that scale what they take",
    "llama4_text": "windows that begin anew every so many positions, and experts that scale what they take",
}
"""Names of architectures in GGUF files and of model types in config.json -> what they need."""
