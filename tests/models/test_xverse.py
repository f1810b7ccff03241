"""xverse against llama.cpp's answers and those of Llama, which it is under another name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_transformers, renamed

transformers: Any = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["xverse"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


def test_transformers(tmp_path: Path) -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    check_transformers(
        model,
        tmp_path,
        change=lambda folder: renamed(folder, lambda f: f.update(model_type="xverse")),
        whole=True,
    )
