"""cohere2 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import SMALL, like_transformers

test_llama_cpp = model_test(check_golden, "cohere2", script_rows=4)
test_transformers = like_transformers(
    "Cohere2Config",
    {},
    {"logit_scale": 0.5, "attention_bias": True},
    sizes=SMALL | {"num_hidden_layers": 4, "sliding_window": 6},
)
