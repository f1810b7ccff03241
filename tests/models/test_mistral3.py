"""mistral3 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")

NAMES = ["mistral3"]


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"head_dim": 8},
        {
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 8,
                "llama_4_scaling_beta": 0.5,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        },
    ],
)
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.Ministral3Config(**(SMALL | changes))
    check_transformers(transformers.Ministral3ForCausalLM(config), tmp_path)
