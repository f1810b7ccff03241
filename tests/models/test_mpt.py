"""mpt against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")
SIZES = {"vocab_size": 96, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}

NAMES = ["mpt"]


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path, tolerance=1e-4)


@pytest.mark.parametrize(
    "changes",
    [{}, {"n_heads": 6, "d_model": 48, "attn_config": {"clip_qkv": 1.0, "softmax_scale": 0.3}}],
)
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.MptConfig(**(SIZES | changes))
    check_transformers(transformers.MptForCausalLM(config), tmp_path)
