"""gemma2 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from tests.models.check_dense import check_golden
from tests.models.check_golden import model_test
from tests.models.check_transformers import SMALL, like_transformers

test_llama_cpp = model_test(check_golden, "gemma2", "gemma2-wide-heads", tolerance=1e-4)
test_transformers = like_transformers(
    "Gemma2Config",
    {"head_dim": 8, "query_pre_attn_scalar": 16},
    {"head_dim": 16, "attn_logit_softcapping": 2.0, "final_logit_softcapping": None},
    {"head_dim": 8, "attn_logit_softcapping": None, "tie_word_embeddings": False},
    sizes=SMALL | {"num_hidden_layers": 4, "sliding_window": 8},
)
