"""phi3 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import like_transformers

LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 3.0, 4.0],
    },
    "original_max_position_embeddings": 32,
}  # fmt: skip

test_llama_cpp = model_test(check_golden, "phi3")
# llama.cpp multiplies lengths once more when it shifts keys.
test_llama_cpp_with_longrope = model_test(
    check_golden, "phi3-longrope", "phi3-longrope-short", script_rows=4
)
test_transformers = like_transformers(
    "Phi3Config",
    {},
    {"num_key_value_heads": 4, "partial_rotary_factor": 0.5},
    {"sliding_window": 12},
)
# transformers goes by the length of the text, we by that of the context.
test_longrope_within_the_original_length = like_transformers("Phi3Config", LONGROPE, n=24, n_ctx=32)
test_longrope_beyond_the_original_length = like_transformers("Phi3Config", LONGROPE, n=40, n_ctx=64)
