"""seed_oss against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}

NAMES = ["seed_oss"]


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


@pytest.mark.parametrize("changes", [{"head_dim": 16}, {"head_dim": 8, "attention_bias": False}])
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.SeedOssConfig(**(SIZES | changes))
    check_transformers(transformers.SeedOssForCausalLM(config), tmp_path)
