"""granitemoe against llama.cpp's logits (tools/golden_models.py) and transformers'."""

from __future__ import annotations

from tests.models.check_golden import like_llama_cpp
from tests.models.check_transformers import SMALL, like_transformers

SIZES = SMALL | {
    "intermediate_size": 24, "num_local_experts": 6, "num_experts_per_tok": 3, "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0,
}  # fmt: skip

test_llama_cpp = like_llama_cpp("granitemoe", "granitemoe-shared")
test_transformers = like_transformers("GraniteMoeConfig", sizes=SIZES)
test_shared_experts_of_transformers = like_transformers(
    "GraniteMoeSharedConfig", {"shared_intermediate_size": 40}, sizes=SIZES
)
