"""starcoder2 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import like_transformers

test_llama_cpp = model_test(check_golden, "starcoder2", tolerance=1e-4)
test_transformers = like_transformers(
    "Starcoder2Config",
    {"sliding_window": None},
    {"sliding_window": 8, "use_bias": False, "tie_word_embeddings": False},
)
