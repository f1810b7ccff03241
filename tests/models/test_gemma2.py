"""gemma2 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")
SIZES = SMALL | {"num_hidden_layers": 4}

NAMES = ["gemma2", "gemma2-wide-heads"]


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path, tolerance=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 8, "head_dim": 8, "query_pre_attn_scalar": 16},
        {
            "sliding_window": 8,
            "head_dim": 16,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": None,
        },
        {
            "sliding_window": 8,
            "head_dim": 8,
            "attn_logit_softcapping": None,
            "tie_word_embeddings": False,
        },
    ],
)
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.Gemma2Config(**(SIZES | changes))
    check_transformers(transformers.Gemma2ForCausalLM(config), tmp_path)
