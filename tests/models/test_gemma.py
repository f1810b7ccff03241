"""gemma against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import SMALL, like_transformers

test_llama_cpp = model_test(check_golden, "gemma")
test_transformers = like_transformers(
    "GemmaConfig",
    {},
    {"hidden_act": "gelu", "tie_word_embeddings": False},
    sizes=SMALL | {"num_hidden_layers": 3, "head_dim": 16},
)
