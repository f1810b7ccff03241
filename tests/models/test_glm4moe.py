"""glm4moe against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import SMALL, like_transformers

test_llama_cpp = model_test(check_golden, "glm4moe")
test_transformers = like_transformers(
    "Glm4MoeConfig",
    {},
    {"use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 1.5},
    sizes=SMALL
    | {
        "num_hidden_layers": 3,
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "head_dim": 16,
    },
)
