"""qwen3moe against llama.cpp's logits (tools/golden_models.py) and transformers'."""

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
    "head_dim": 8,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize("name", ["qwen3moe", "qwen3moe-all"])
def test_prefill_and_greedy(name: str, make_decoder: Any, golden_logits: Any) -> None:
    check_prefill_and_greedy(make_decoder(name), name, golden_logits)


@pytest.mark.parametrize(("name", "rows"), [("qwen3moe", 8), ("qwen3moe-all", 4)])
def test_shared_cut_and_shifted_sequences(
    name: str, rows: int, make_decoder: Any, golden_logits: Any
) -> None:
    # After a shift llama.cpp multiplies keys by YaRN's magnitude once more.
    check_script(make_decoder(name), name, golden_logits, n_rows=rows)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_topk_prob": True},
        {"mlp_only_layers": [1]},
        {"decoder_sparse_step": 2},
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    ],
)
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.Qwen3MoeConfig(**(SIZES | changes))
    check(write(transformers.Qwen3MoeForCausalLM(config), tmp_path), tmp_path)
