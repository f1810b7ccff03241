"""mellum against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import SMALL, like_transformers

YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128,
}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
MIXED = SMALL | {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16,
    "num_hidden_layers": 4, "sliding_window": 8,
    "layer_types": [*["sliding_attention"] * 3, "full_attention"],
}  # fmt: skip

test_llama_cpp = model_test(check_golden, "mellum", script_rows=4)
test_transformers = like_transformers(
    "MellumConfig",
    {"rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN}},
    {"rope_parameters": {"full_attention": PLAIN, "sliding_attention": PLAIN}},
    sizes=MIXED,
    whole=True,
)
test_what_gguf_cannot_say = like_transformers(
    "MellumConfig",
    {"layer_types": None, "norm_topk_prob": False},
    {"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]},
    sizes=MIXED,
)
