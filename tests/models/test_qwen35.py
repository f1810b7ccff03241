"""qwen35 against llama.cpp's logits and states (tools/golden_models.py) and transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.check_delta import SIZES, check_cache, check_golden
from tests.models.check_transformers import check, write

transformers: Any = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["qwen35", "qwen35-further"])
def test_logits_and_states_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(tmp_path, name)


def test_rewinds_checkpoints_and_cached_prefixes(tmp_path: Path) -> None:
    check_cache(tmp_path, "qwen35")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"linear_num_value_heads": 2, "attention_bias": True},
        {"tie_word_embeddings": True},
        {"linear_value_head_dim": 8},  # as GGUF wants it
    ],
)
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = transformers.Qwen3_5TextConfig(**(SIZES | changes))
    check(write(transformers.Qwen3_5ForCausalLM(config), tmp_path), tmp_path, tolerance=1e-4)
