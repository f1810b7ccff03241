"""ernie4_5-moe against llama.cpp's logits (tools/golden_models.py) and transformers'."""

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
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "moe_num_experts": 6,
    "moe_k": 3,
    "max_position_embeddings": 512,
}


def test_llama_cpp(make_decoder: Any, golden_logits: Any) -> None:
    check_prefill_and_greedy(make_decoder("ernie4_5-moe"), "ernie4_5-moe", golden_logits)
    check_script(make_decoder("ernie4_5-moe"), "ernie4_5-moe", golden_logits)


@pytest.mark.parametrize(
    "changes", [{}, {"moe_num_shared_experts": 0, "tie_word_embeddings": False}]
)
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    model = transformers.Ernie4_5_MoeForCausalLM(
        transformers.Ernie4_5_MoeConfig(**(SIZES | changes))
    )
    for name, values in model.named_parameters():
        if "correction_bias" in name:
            values.data.normal_(0, 0.1)
    check(write(model, tmp_path), tmp_path)
