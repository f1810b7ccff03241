"""command-r against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import like_transformers

test_llama_cpp = model_test(check_golden, "command-r")
test_transformers = like_transformers(
    "CohereConfig", {}, {"use_qk_norm": True, "logit_scale": 0.5, "attention_bias": True}
)
