"""minimax-m2 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")
SIZES: dict[str, Any] = SMALL | {
    "num_hidden_layers": 3,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "head_dim": 16,
}


@pytest.mark.parametrize("name", ["minimax-m2"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            }
        },
    ],
)
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.MiniMaxM2Config(**(SIZES | changes))
    check_transformers(transformers.MiniMaxM2ForCausalLM(config), tmp_path)
