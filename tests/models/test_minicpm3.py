"""minicpm3 against llama.cpp (tools/golden_models.py) and transformers."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import SMALL, like_transformers

test_llama_cpp = model_test(check_golden, "minicpm3")
# After a shift llama.cpp multiplies lengths by longrope's factor once more.
test_llama_cpp_with_longrope = model_test(check_golden, "minicpm3-longrope", script_rows=4)
test_transformers = like_transformers(
    "MiniCPM3Config", {}, {"scale_depth": None, "dim_model_base": None},
    sizes=SMALL | {
        "intermediate_size": 48, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16,
        "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 12,
    },
)  # fmt: skip
