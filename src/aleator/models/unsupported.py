"""What architectures that are often asked for need, and no decoder here computes yet."""

from __future__ import annotations

_SCAN = (
    "a scan with one decay for each head (Dao and Gu 2024, arXiv:2405.21060) and its grouped norm"
)
_DELTA = "a gated delta net's states (Yang et al. 2024, arXiv:2412.06464)"

NEEDS: dict[str, str] = {
    "bamba": _SCAN,
    "nemotron_h_moe": _SCAN,
    "qwen3next": _DELTA,
    "qwen3_next": _DELTA,
    "qwen35": _DELTA,
    "qwen35moe": _DELTA,
    "qwen3_5": _DELTA,
    "qwen3_5_moe": _DELTA,
    "kimi-linear": _DELTA,
    "lfm2moe": "layers that keep a short convolution's inputs alone",
    "lfm2_moe": "layers that keep a short convolution's inputs alone",
    "llama4": "windows that begin anew every so many positions, and experts that scale what they take",
    "llama4_text": "windows that begin anew every so many positions, and experts that scale what they take",
}
"""Names of architectures in GGUF files and of model types in config.json -> what they need."""
