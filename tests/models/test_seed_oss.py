"""seed_oss against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import like_transformers

test_llama_cpp = model_test(check_golden, "seed_oss")
test_transformers = like_transformers(
    "SeedOssConfig", {"head_dim": 16}, {"head_dim": 8, "attention_bias": False}
)
