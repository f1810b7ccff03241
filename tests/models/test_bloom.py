"""bloom against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")
SIZES = {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4}

NAMES = ["bloom", "bloom-six-heads"]


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path, tolerance=1e-4)


@pytest.mark.parametrize(
    "changes", [{}, {"n_head": 6, "hidden_size": 48, "tie_word_embeddings": False}]
)
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.BloomConfig(**(SIZES | changes))
    check_transformers(transformers.BloomForCausalLM(config), tmp_path)
