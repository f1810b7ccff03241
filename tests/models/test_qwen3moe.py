"""qwen3moe against llama.cpp's logits (tools/golden_models.py) and transformers'."""

from __future__ import annotations

from tests.models.check_golden import like_llama_cpp
from tests.models.check_transformers import SMALL, like_transformers

SIZES = SMALL | {
    "moe_intermediate_size": 16, "num_hidden_layers": 3, "head_dim": 8, "num_experts": 6,
    "num_experts_per_tok": 3,
}  # fmt: skip

test_llama_cpp = like_llama_cpp("qwen3moe")
# After a shift llama.cpp multiplies keys by YaRN's magnitude once more.
test_llama_cpp_with_yarn = like_llama_cpp("qwen3moe-all", n_rows=4)
test_transformers = like_transformers(
    "Qwen3MoeConfig",
    {},
    {"norm_topk_prob": True},
    {"mlp_only_layers": [1]},
    {"decoder_sparse_step": 2},
    {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    sizes=SIZES,
)
