"""Mixtral: llama with experts, against llama.cpp's logits (tools/golden_models.py) and transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_golden import check_prefill_and_greedy, check_script
from tests.models.check_transformers import check, write

transformers: Any = pytest.importorskip("transformers")
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize("name", ["mixtral", "mixtral-all"])
def test_llama_cpp(name: str, make_decoder: Any, golden_logits: Any) -> None:
    check_prefill_and_greedy(make_decoder(name), name, golden_logits)
    check_script(make_decoder(name), name, golden_logits)


@pytest.mark.parametrize("changes", [{}, {"sliding_window": 7, "head_dim": 12}])
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.MixtralConfig(**SIZES | changes)
    check(write(transformers.MixtralForCausalLM(config), tmp_path), tmp_path)
