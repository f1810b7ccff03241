"""hunyuan-moe against llama.cpp's logits (tools/golden_models.py) and transformers'."""

from __future__ import annotations

from typing import Any

from tests.models.check_golden import check_prefill_and_greedy
from tests.models.check_transformers import SMALL, like_transformers

test_transformers = like_transformers(
    "HunYuanMoEV1Config",
    sizes=SMALL | {"intermediate_size": 24, "head_dim": 8, "num_experts": 6, "moe_topk": 3},
)


def test_llama_cpp(make_decoder: Any, golden_logits: Any) -> None:
    check_prefill_and_greedy(make_decoder("hunyuan-moe"), "hunyuan-moe", golden_logits)
