"""minicpm3 against llama.cpp (tools/golden_models.py) and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import check_golden, check_transformers

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize("name", ["minicpm3", "minicpm3-longrope"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    # After a shift llama.cpp multiplies lengths by longrope's factor once more.
    check_golden(name, tmp_path, script_rows=4 if "longrope" in name else 8)


@pytest.mark.parametrize("changes", [{}, {"scale_depth": None, "dim_model_base": None}])
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.MiniCPM3Config(**SIZES | changes)
    check_transformers(transformers.MiniCPM3ForCausalLM(config), tmp_path)
