"""jais2 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import SMALL, like_transformers

test_llama_cpp = model_test(check_golden, "jais2")
test_transformers = like_transformers("Jais2Config", sizes=SMALL | {"num_hidden_layers": 3})
