"""minimax-m2 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import SMALL, like_transformers

test_llama_cpp = model_test(check_golden, "minimax-m2")
test_transformers = like_transformers(
    "MiniMaxM2Config",
    {},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    sizes=SMALL
    | {"num_hidden_layers": 3, "num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16},
)
