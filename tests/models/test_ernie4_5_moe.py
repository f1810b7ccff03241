"""ernie4_5-moe against llama.cpp's logits (tools/golden_models.py) and transformers'."""

from __future__ import annotations

from tests.models.check_golden import like_llama_cpp
from tests.models.check_transformers import SMALL, like_transformers

test_llama_cpp = like_llama_cpp("ernie4_5-moe")
test_transformers = like_transformers(
    "Ernie4_5_MoeConfig", {}, {"moe_num_shared_experts": 0, "tie_word_embeddings": False},
    sizes=SMALL | {
        "moe_intermediate_size": 16, "num_hidden_layers": 3, "moe_num_experts": 6, "moe_k": 3,
    },
)  # fmt: skip
