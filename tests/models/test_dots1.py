"""dots1 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import SMALL, like_transformers

test_llama_cpp = model_test(check_golden, "dots1")
test_transformers = like_transformers(
    "Dots1Config",
    {},
    {"norm_topk_prob": True, "routed_scaling_factor": 2.5},
    sizes=SMALL
    | {
        "num_hidden_layers": 3,
        "n_routed_experts": 6,
        "n_shared_experts": 2,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
        "sliding_window": None,
    },
)
