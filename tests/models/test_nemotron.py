"""nemotron against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}


@pytest.mark.parametrize("name", ["nemotron"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


@pytest.mark.parametrize("changes", [{}, {"mlp_bias": True, "attention_bias": True}])
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.NemotronConfig(**(SIZES | changes))
    check_transformers(transformers.NemotronForCausalLM(config), tmp_path)
