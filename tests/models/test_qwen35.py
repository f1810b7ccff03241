"""qwen35 against llama.cpp's logits and states (tools/golden_models.py) and transformers'."""

from __future__ import annotations

from tests.models.check_delta import SIZES, check_cache, check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import like_transformers

test_llama_cpp = model_test(check_golden, "qwen35", "qwen35-further")
test_rewinds_checkpoints_and_cached_prefixes = model_test(check_cache, "qwen35")
test_transformers = like_transformers(
    "Qwen3_5TextConfig",
    {},
    {"linear_num_value_heads": 2, "attention_bias": True},
    {"tie_word_embeddings": True},
    {"linear_value_head_dim": 8},  # as GGUF wants it
    sizes=SIZES,
    tolerance=1e-4,
)
