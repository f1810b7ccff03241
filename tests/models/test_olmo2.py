"""olmo2 against llama.cpp's answers and transformers' logits."""

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

NAMES = ["olmo2", "olmo2-windows"]


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    # llama.cpp multiplies lengths once more when it shifts keys under YaRN.
    check_golden(name, tmp_path, script_rows=4 if "windows" in name else 8)


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 4, "attention_bias": True}])
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.Olmo2Config(**(SIZES | changes))
    check_transformers(transformers.Olmo2ForCausalLM(config), tmp_path)


def test_olmo3_has_windows(tmp_path: Path) -> None:
    config = transformers.Olmo3Config(**SIZES | {"num_hidden_layers": 4, "sliding_window": 8})
    check_transformers(transformers.Olmo3ForCausalLM(config), tmp_path)
