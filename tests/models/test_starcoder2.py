"""starcoder2 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")

NAMES = ["starcoder2"]


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path, tolerance=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": None},
        {"sliding_window": 8, "use_bias": False, "tie_word_embeddings": False},
    ],
)
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.Starcoder2Config(**(SMALL | changes))
    check_transformers(transformers.Starcoder2ForCausalLM(config), tmp_path)
