"""hunyuan-dense against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden, check_no_shift
from tests.models.check_golden import model_test
from tests.models.check_transformers import like_transformers

test_llama_cpp = model_test(check_golden, "hunyuan-dense")
test_a_shift_is_refused = model_test(check_no_shift, "hunyuan-dense")
test_transformers = like_transformers(
    "HunYuanDenseV1Config",
    {"head_dim": 8},
    {
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "dynamic",
            "rope_theta": 10000.0,
            "factor": 1.0,
            "alpha": 50.0,
        },
    },
)
