"""dots1 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")
SIZES: dict[str, Any] = SMALL | {
    "num_hidden_layers": 3,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "sliding_window": None,
}


@pytest.mark.parametrize("name", ["dots1"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


@pytest.mark.parametrize("changes", [{}, {"norm_topk_prob": True, "routed_scaling_factor": 2.5}])
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.Dots1Config(**(SIZES | changes))
    check_transformers(transformers.Dots1ForCausalLM(config), tmp_path)
