"""hunyuan-moe against llama.cpp's logits (tools/golden_models.py) and transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_golden import check_prefill_and_greedy
from tests.models.check_transformers import check, write

transformers: Any = pytest.importorskip("transformers")
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 6,
    "moe_topk": 3,
    "max_position_embeddings": 512,
}


def test_llama_cpp(make_decoder: Any, golden_logits: Any) -> None:
    check_prefill_and_greedy(make_decoder("hunyuan-moe"), "hunyuan-moe", golden_logits)


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    model = transformers.HunYuanMoEV1ForCausalLM(transformers.HunYuanMoEV1Config(**SIZES))
    check(write(model, tmp_path), tmp_path)
