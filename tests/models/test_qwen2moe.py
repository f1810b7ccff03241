"""qwen2moe against llama.cpp's logits (tools/golden_models.py) and transformers'."""

from __future__ import annotations

import json
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
    "shared_expert_intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize("name", ["qwen2moe"])
def test_prefill_and_greedy(name: str, make_decoder: Any, golden_logits: Any) -> None:
    check_prefill_and_greedy(make_decoder(name), name, golden_logits)


def test_shared_cut_and_shifted_sequences(make_decoder: Any, golden_logits: Any) -> None:
    check_script(make_decoder("qwen2moe"), "qwen2moe", golden_logits)


@pytest.mark.parametrize("changes", [{}, {"norm_topk_prob": True}, {"mlp_only_layers": [0]}])
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.Qwen2MoeConfig(**(SIZES | changes))
    check(write(transformers.Qwen2MoeForCausalLM(config), tmp_path), tmp_path)


def test_default_windows_of_transformers(tmp_path: Path) -> None:
    """A config.json that names no kinds of layers: every other one of the first has a window."""
    changes = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}
    config = transformers.Qwen2MoeConfig(**(SIZES | changes))
    model = write(transformers.Qwen2MoeForCausalLM(config), tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    del values["layer_types"]
    path.write_text(json.dumps(values))
    check(model, tmp_path)
