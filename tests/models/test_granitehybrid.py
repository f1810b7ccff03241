"""granitehybrid against llama.cpp's answers (tools/golden_models.py) and transformers' logits."""

from __future__ import annotations

from tests.models.check_golden import model_test
from tests.models.check_hybrid import check_golden, check_reuse
from tests.models.check_transformers import SMALL, like_transformers

test_llama_cpp = model_test(check_golden, "granitehybrid", "granitehybrid-experts")
test_rewinds_and_cached_prefixes = model_test(check_reuse, "granitehybrid")
test_transformers = like_transformers(
    "GraniteMoeHybridConfig", {}, {"num_local_experts": 0, "position_embedding_type": "rope"}, tolerance=1e-4,
    sizes=SMALL | {
        "intermediate_size": 24, "shared_intermediate_size": 48, "num_hidden_layers": 3, "num_local_experts": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "mamba_n_heads": 8,
        "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 16, "embedding_multiplier": 3.0,
        "logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3,
        "tie_word_embeddings": True,
    },
)  # fmt: skip
