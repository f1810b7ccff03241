"""mamba2 against llama.cpp's answers (tools/golden_models.py) and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_hybrid import check_generation, check_golden, check_reuse
from tests.models.check_transformers import check, write

transformers: Any = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["mamba2", "mamba2-tied"])
def test_against_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


def test_rewinds_and_cached_prefixes(tmp_path: Path) -> None:
    check_reuse("mamba2", tmp_path)


def test_generation_and_sessions(tmp_path: Path) -> None:
    check_generation("mamba2", tmp_path)


@pytest.mark.parametrize("changes", [{}, {"use_conv_bias": False, "tie_word_embeddings": True}])
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_heads": 8,
        "head_dim": 8,
        "state_size": 8,
        "n_groups": 2,
        "chunk_size": 16,
    }
    config = transformers.Mamba2Config(**sizes | changes)
    check(write(transformers.Mamba2ForCausalLM(config), tmp_path), tmp_path, tolerance=1e-4)
