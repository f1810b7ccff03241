"""mistral3 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import like_transformers

YARN = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 8,
    "llama_4_scaling_beta": 0.5, "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip

test_llama_cpp = model_test(check_golden, "mistral3")
test_transformers = like_transformers(
    "Ministral3Config", {"head_dim": 8}, {"head_dim": 16, "rope_parameters": YARN}
)
