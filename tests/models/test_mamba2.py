"""mamba2 against llama.cpp's answers (tools/golden_models.py) and transformers' logits."""

from __future__ import annotations

from tests.models.check_golden import model_test
from tests.models.check_hybrid import check_generation, check_golden, check_reuse
from tests.models.check_transformers import like_transformers

test_llama_cpp = model_test(check_golden, "mamba2", "mamba2-tied")
test_rewinds_and_cached_prefixes = model_test(check_reuse, "mamba2")
test_generation_and_sessions = model_test(check_generation, "mamba2")
test_transformers = like_transformers(
    "Mamba2Config", {}, {"use_conv_bias": False, "tie_word_embeddings": True}, tolerance=1e-4,
    sizes={
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8,
        "state_size": 8, "n_groups": 2, "chunk_size": 16,
    },
)  # fmt: skip
