"""qwen35moe against llama.cpp's logits and states (tools/golden_models.py) and transformers'."""

from __future__ import annotations

from tests.models.check_delta import MIXTURE, SIZES, check_cache, check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import like_transformers

test_llama_cpp = model_test(check_golden, "qwen35moe")
test_rewinds_checkpoints_and_cached_prefixes = model_test(check_cache, "qwen35moe")
test_transformers = like_transformers(
    "Qwen3_5MoeTextConfig",
    {},
    {"num_hidden_layers": 5, "linear_num_value_heads": 6},
    {"linear_num_value_heads": 6, "linear_value_head_dim": 8},  # as GGUF wants it
    sizes=SIZES | MIXTURE,
    tolerance=1e-4,
)
