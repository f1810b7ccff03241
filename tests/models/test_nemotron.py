"""nemotron against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")
SIZES: dict[str, Any] = SMALL | {"num_hidden_layers": 3}


@pytest.mark.parametrize("name", ["nemotron"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


@pytest.mark.parametrize("changes", [{}, {"mlp_bias": True, "attention_bias": True}])
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.NemotronConfig(**(SIZES | changes))
    check_transformers(transformers.NemotronForCausalLM(config), tmp_path)
