"""mpt against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import like_transformers

test_llama_cpp = model_test(check_golden, "mpt", tolerance=1e-4)
test_transformers = like_transformers(
    "MptConfig",
    {},
    {"n_heads": 6, "d_model": 48, "attn_config": {"clip_qkv": 1.0, "softmax_scale": 0.3}},
    sizes={"vocab_size": 96, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
)
