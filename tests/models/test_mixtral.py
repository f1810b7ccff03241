"""Mixtral: llama with experts, against llama.cpp's logits (tools/golden_models.py) and transformers'."""

from __future__ import annotations

from tests.models.check_golden import like_llama_cpp
from tests.models.check_transformers import SMALL, like_transformers

test_llama_cpp = like_llama_cpp("mixtral", "mixtral-all")
test_transformers = like_transformers(
    "MixtralConfig", {}, {"sliding_window": 7, "head_dim": 12},
    sizes=SMALL | {"intermediate_size": 24, "num_local_experts": 6, "num_experts_per_tok": 3},
)  # fmt: skip
