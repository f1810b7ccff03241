"""command-r against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")

NAMES = ["command-r"]


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


@pytest.mark.parametrize(
    "changes", [{}, {"use_qk_norm": True, "logit_scale": 0.5, "attention_bias": True}]
)
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.CohereConfig(**(SMALL | changes))
    check_transformers(transformers.CohereForCausalLM(config), tmp_path)
