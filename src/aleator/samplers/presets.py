"""Named sets of sampling parameters, each with its engine's own order.

Parameters that a preset does not name are neutral.  ``llama.cpp`` is the default of the command line and of
``generate``.
"""

from __future__ import annotations

from typing import Any

from aleator.core.errors import ParameterError

# Akunu's path on the CPU.  It records the mass before top-k, so that min-p and top-p act on un-renormalised
# probabilities; keeps 256 tokens if top_k is off or not less than the vocabulary; penalises a token once per
# time it was generated, and not at all under a grammar; and draws from a Mersenne Twister.
_AKUNU = {
    "samplers": ("penalties", "temperature", "softmax", "top_k", "min_p", "top_p"),
    "penalty_last_n": -1,
    "penalty_scope": "generated",
    "repetition_per": "occurrence",
    "repetition_under_grammar": "none",
    "mass": "full",
    "top_k_limit": 256,
    "draw": "mt19937",
}

PRESETS: dict[str, dict[str, Any]] = {
    # its default chain and values
    "llama.cpp": {
        "samplers": (
            "penalties", "dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature",
        ),
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "temperature": 0.8,
    },
    # penalties, temperature, min-p, top-k, top-p; penalties look back to the start
    "vllm": {
        "samplers": ("penalties", "temperature", "min_p", "top_k", "top_p"),
        "penalty_last_n": -1,
        "penalty_scope": "mixed",
    },
    # generate(do_sample=True)
    "transformers": {
        "samplers": (
            "penalties", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff",
        ),
        "penalty_last_n": -1,
        "top_k": 50,
    },
    # temperature and top-p; penalties count generated tokens only
    "openai": {
        "samplers": ("penalties", "temperature", "top_p"),
        "penalty_last_n": -1,
        "penalty_scope": "generated",
    },
    "akunu-greedy": {**_AKUNU, "temperature": 0.0},
    "akunu-balanced": {**_AKUNU, "temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "akunu-creative": {**_AKUNU, "temperature": 1.0, "top_p": 0.9},
    "akunu-very-creative": {**_AKUNU, "temperature": 1.2, "top_p": 0.95},
    "akunu-code": {**_AKUNU, "temperature": 0.2, "top_k": 40, "top_p": 0.95, "min_p": 0.1},
    # always the most likely token
    "greedy": {"samplers": ("penalties", "temperature"), "temperature": 0.0},
    # the model's own distribution
    "neutral": {},
}  # fmt: skip
DEFAULT_PRESET = "llama.cpp"


def check_preset(name: object) -> str:
    """Return the name of a preset; for an unknown one, ParameterError lists the names."""
    if not (isinstance(name, str) and name in PRESETS):
        raise ParameterError(
            "preset", f"there is no preset {name!r:.60}; the names are {', '.join(PRESETS)}"
        )
    return name
