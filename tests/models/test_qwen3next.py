"""qwen3next against llama.cpp's logits and states (tools/golden_models.py) and transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.check_delta import MIXTURE, SIZES, check_cache, check_golden
from tests.models.check_transformers import check, write

transformers: Any = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["qwen3next", "qwen3next-joint"])
def test_logits_and_states_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(tmp_path, name)


def test_rewinds_checkpoints_and_cached_prefixes(tmp_path: Path) -> None:
    check_cache(tmp_path, "qwen3next")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layer_types": ["full_attention", *["linear_attention"] * 3], "norm_topk_prob": False},
        {"mlp_only_layers": [1], "tie_word_embeddings": True},
        {"linear_value_head_dim": 8},  # as GGUF wants it
    ],
)
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = transformers.Qwen3NextConfig(**(SIZES | MIXTURE | changes))
    check(write(transformers.Qwen3NextForCausalLM(config), tmp_path), tmp_path, tolerance=1e-4)
