"""ernie4_5 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import like_transformers

test_llama_cpp = model_test(check_golden, "ernie4_5")
test_transformers = like_transformers(
    "Ernie4_5Config",
    {"head_dim": 16},
    {"head_dim": 8, "use_bias": True, "tie_word_embeddings": False},
)
