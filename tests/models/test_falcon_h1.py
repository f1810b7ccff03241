"""falcon-h1 against llama.cpp's answers (tools/golden_models.py) and transformers' logits."""

from __future__ import annotations

from tests.models.check_golden import model_test
from tests.models.check_hybrid import check_generation, check_golden, check_reuse, check_shift
from tests.models.check_transformers import SMALL, like_transformers

test_llama_cpp = model_test(check_golden, "falcon-h1", "falcon-h1-norm")
test_rewinds_and_cached_prefixes = model_test(check_reuse, "falcon-h1")
test_generation_and_sessions = model_test(check_generation, "falcon-h1")
test_shifted_keys_are_rotated = model_test(check_shift, "falcon-h1")
test_transformers = like_transformers(
    "FalconH1Config", {},
    {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "key_multiplier": 1.0}, tolerance=1e-4,
    sizes=SMALL | {
        "intermediate_size": 48, "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 8,
        "mamba_chunk_size": 16, "embedding_multiplier": 3.0, "lm_head_multiplier": 0.5, "key_multiplier": 0.6,
        "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.2,
        "ssm_out_multiplier": 0.7, "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7], "mlp_multipliers": [1.4, 0.6],
    },
)  # fmt: skip
