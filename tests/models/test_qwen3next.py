"""qwen3next against llama.cpp's logits and states (tools/golden_models.py) and transformers'."""

from __future__ import annotations

from tests.models.check_delta import MIXTURE, SIZES, check_cache, check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import like_transformers

test_llama_cpp = model_test(check_golden, "qwen3next", "qwen3next-joint")
test_rewinds_checkpoints_and_cached_prefixes = model_test(check_cache, "qwen3next")
test_transformers = like_transformers(
    "Qwen3NextConfig",
    {},
    {"layer_types": ["full_attention", *["linear_attention"] * 3], "norm_topk_prob": False},
    {"mlp_only_layers": [1], "tie_word_embeddings": True},
    {"linear_value_head_dim": 8},  # as GGUF wants it
    sizes=SIZES | MIXTURE,
    tolerance=1e-4,
)
