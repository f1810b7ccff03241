"""xverse against llama.cpp's answers and those of Llama, which it is under another name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aleator.models.files.gguf import GGUFFile
from tests.models.check_transformers import SMALL, check_transformers, renamed

transformers: Any = pytest.importorskip("transformers")


@pytest.mark.parametrize("tied", [False, True])
def test_transformers(tied: bool, tmp_path: Path) -> None:
    """llama.cpp wants an output matrix even where it is the embedding."""
    config = transformers.LlamaConfig(**(SMALL | {"tie_word_embeddings": tied}))
    model = transformers.LlamaForCausalLM(config)
    check_transformers(
        model,
        tmp_path,
        change=lambda folder: renamed(folder, lambda f: f.update(model_type="xverse")),
        whole=True,
    )
    assert "output.weight" in GGUFFile(tmp_path / "converted.gguf").tensors
