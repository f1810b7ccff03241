"""cohere2 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")
SIZES: dict[str, Any] = SMALL | {"num_hidden_layers": 4, "sliding_window": 6}


@pytest.mark.parametrize("name", ["cohere2"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path, script_rows=4)


@pytest.mark.parametrize("changes", [{}, {"logit_scale": 0.5, "attention_bias": True}])
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.Cohere2Config(**(SIZES | changes))
    check_transformers(transformers.Cohere2ForCausalLM(config), tmp_path)
