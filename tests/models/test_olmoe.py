"""olmoe against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import SMALL, like_transformers

test_llama_cpp = model_test(check_golden, "olmoe")
test_transformers = like_transformers(
    "OlmoeConfig",
    sizes=SMALL | {"num_hidden_layers": 3, "num_experts": 6, "num_experts_per_tok": 2},
)
