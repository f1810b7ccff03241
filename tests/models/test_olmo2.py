"""olmo2 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")

NAMES = ["olmo2", "olmo2-windows"]


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    # llama.cpp multiplies lengths once more when it shifts keys under YaRN.
    check_golden(name, tmp_path, script_rows=4 if "windows" in name else 8)


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 4, "attention_bias": True}])
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.Olmo2Config(**(SMALL | changes))
    check_transformers(transformers.Olmo2ForCausalLM(config), tmp_path)


def test_olmo3_has_windows(tmp_path: Path) -> None:
    config = transformers.Olmo3Config(**SMALL | {"num_hidden_layers": 4, "sliding_window": 8})
    check_transformers(transformers.Olmo3ForCausalLM(config), tmp_path)
