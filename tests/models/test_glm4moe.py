"""glm4moe against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")
SIZES: dict[str, Any] = SMALL | {
    "num_hidden_layers": 3,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "head_dim": 16,
}


@pytest.mark.parametrize("name", ["glm4moe"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


@pytest.mark.parametrize(
    "changes", [{}, {"use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 1.5}]
)
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.Glm4MoeConfig(**(SIZES | changes))
    check_transformers(transformers.Glm4MoeForCausalLM(config), tmp_path)
