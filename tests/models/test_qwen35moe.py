"""qwen35moe against llama.cpp's logits and states (tools/golden_models.py) and transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.check_delta import MIXTURE, SIZES, check_cache, check_golden
from tests.models.check_transformers import check, write

transformers: Any = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["qwen35moe"])
def test_logits_and_states_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(tmp_path, name)


def test_rewinds_checkpoints_and_cached_prefixes(tmp_path: Path) -> None:
    check_cache(tmp_path, "qwen35moe")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_hidden_layers": 5, "linear_num_value_heads": 6},
        {"linear_num_value_heads": 6, "linear_value_head_dim": 8},  # as GGUF wants it
    ],
)
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = transformers.Qwen3_5MoeTextConfig(**(SIZES | MIXTURE | changes))
    check(write(transformers.Qwen3_5MoeForCausalLM(config), tmp_path), tmp_path, tolerance=1e-4)
