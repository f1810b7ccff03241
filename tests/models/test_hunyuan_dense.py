"""hunyuan-dense against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_no_shift, check_transformers

transformers: Any = pytest.importorskip("transformers")

NAMES = ["hunyuan-dense"]


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
                "rope_type": "dynamic",
                "rope_theta": 10000.0,
                "factor": 1.0,
                "alpha": 50.0,
            },
        },
    ],
)
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.HunYuanDenseV1Config(**(SMALL | changes))
    check_transformers(transformers.HunYuanDenseV1ForCausalLM(config), tmp_path)


def test_a_shift_is_refused(tmp_path: Path) -> None:
    check_no_shift("hunyuan-dense", tmp_path)
