"""seed_oss against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")

NAMES = ["seed_oss"]


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


@pytest.mark.parametrize("changes", [{"head_dim": 16}, {"head_dim": 8, "attention_bias": False}])
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.SeedOssConfig(**(SMALL | changes))
    check_transformers(transformers.SeedOssForCausalLM(config), tmp_path)
