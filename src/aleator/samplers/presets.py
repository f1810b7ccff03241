"""Named sets of sampling parameters, each with its own order.

``llama.cpp``     its default chain and values; the default of the command line and of ``generate``
``transformers``  ``generate`` with do_sample: temperature before truncation, top_k 50
``greedy``        always the most likely token
``neutral``       draws from the model's own distribution
"""

from __future__ import annotations

from typing import Any

LLAMA_CPP_ORDER = (
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"
)  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    "llama.cpp": {
        "samplers": LLAMA_CPP_ORDER,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "temperature": 0.8,
    },
    "transformers": {
        "samplers": ("penalties", "temperature", "top_k", "top_p", "min_p"),
        "penalty_last_n": -1,
        "top_k": 50,
    },
    "greedy": {"samplers": ("penalties", "temperature"), "temperature": 0.0},
    "neutral": {},
}
DEFAULT_PRESET = "llama.cpp"
