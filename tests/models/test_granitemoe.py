"""granitemoe against llama.cpp's logits (tools/golden_models.py) and transformers'."""

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
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
}


@pytest.mark.parametrize("name", ["granitemoe", "granitemoe-shared"])
def test_llama_cpp(name: str, make_decoder: Any, golden_logits: Any) -> None:
    check_prefill_and_greedy(make_decoder(name), name, golden_logits)
    check_script(make_decoder(name), name, golden_logits)


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    config = transformers.GraniteMoeConfig(**SIZES)
    check(write(transformers.GraniteMoeForCausalLM(config), tmp_path), tmp_path)


def test_shared_experts_of_transformers(tmp_path: Path) -> None:
    config = transformers.GraniteMoeSharedConfig(**SIZES, shared_intermediate_size=40)
    check(write(transformers.GraniteMoeSharedForCausalLM(config), tmp_path), tmp_path)
