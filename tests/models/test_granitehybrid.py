"""granitehybrid against llama.cpp's answers (tools/golden_models.py) and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_hybrid import check_golden, check_reuse
from tests.models.check_transformers import check, write

transformers: Any = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["granitehybrid", "granitehybrid-experts"])
def test_against_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


def test_rewinds_and_cached_prefixes(tmp_path: Path) -> None:
    check_reuse("granitehybrid", tmp_path)


@pytest.mark.parametrize(
    "changes", [{}, {"num_local_experts": 0, "position_embedding_type": "rope"}]
)
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 24,
        "shared_intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "mamba_n_heads": 8,
        "mamba_n_groups": 2,
        "mamba_d_state": 8,
        "mamba_chunk_size": 16,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.3,
        "tie_word_embeddings": True,
    }
    config = transformers.GraniteMoeHybridConfig(**sizes | changes)
    model = write(transformers.GraniteMoeHybridForCausalLM(config), tmp_path)
    check(model, tmp_path, tolerance=1e-4)
