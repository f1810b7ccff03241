"""bloom against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import like_transformers

test_llama_cpp = model_test(check_golden, "bloom", "bloom-six-heads", tolerance=1e-4)
test_transformers = like_transformers(
    "BloomConfig",
    {},
    {"n_head": 6, "hidden_size": 48, "tie_word_embeddings": False},
    sizes={"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4},
)
