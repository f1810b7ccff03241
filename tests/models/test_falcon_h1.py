"""falcon-h1 against llama.cpp's answers (tools/golden_models.py) and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_hybrid import check_generation, check_golden, check_reuse, check_shift
from tests.models.check_transformers import check, write

transformers: Any = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["falcon-h1", "falcon-h1-norm"])
def test_against_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


def test_rewinds_and_cached_prefixes(tmp_path: Path) -> None:
    check_reuse("falcon-h1", tmp_path)


def test_generation_and_sessions(tmp_path: Path) -> None:
    check_generation("falcon-h1", tmp_path)


def test_shifted_keys_are_rotated(tmp_path: Path) -> None:
    check_shift("falcon-h1", tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{}, {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "key_multiplier": 1.0}],
)
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "mamba_d_ssm": 64,
        "mamba_n_heads": 8,
        "mamba_n_groups": 2,
        "mamba_d_state": 8,
        "mamba_chunk_size": 16,
        "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.5,
        "key_multiplier": 0.6,
        "attention_in_multiplier": 1.3,
        "attention_out_multiplier": 0.8,
        "ssm_in_multiplier": 1.2,
        "ssm_out_multiplier": 0.7,
        "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
        "mlp_multipliers": [1.4, 0.6],
    }
    config = transformers.FalconH1Config(**sizes | changes)
    check(write(transformers.FalconH1ForCausalLM(config), tmp_path), tmp_path, tolerance=1e-4)
