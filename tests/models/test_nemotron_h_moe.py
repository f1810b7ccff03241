"""nemotron_h_moe against llama.cpp's answers (tools/golden_models.py) and transformers' logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hybrid_models import HYBRID, write_hybrid

from aleator.core.errors import UnsupportedModel
from aleator.models import open_weights
from tests.models.check_hybrid import check_generation, check_golden, check_reuse
from tests.models.check_transformers import check, write

transformers: Any = pytest.importorskip("transformers")
NAME = "nemotron_h_moe"
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "ssm_state_size": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "chunk_size": 16,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
}


def test_against_llama_cpp(tmp_path: Path) -> None:
    check_golden(NAME, tmp_path)


def test_rewinds_and_cached_prefixes(tmp_path: Path) -> None:
    check_reuse(NAME, tmp_path)


def test_generation_and_sessions(tmp_path: Path) -> None:
    check_generation(NAME, tmp_path)


@pytest.mark.parametrize("changes", [{}, {"n_group": 3, "topk_group": 2, "norm_topk_prob": False}])
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.NemotronHConfig(**SIZES | changes)
    check(write(transformers.NemotronHForCausalLM(config), tmp_path), tmp_path, tolerance=1e-4)


def test_experts_of_another_width_are_refused(tmp_path: Path) -> None:
    spec = HYBRID[NAME]
    other = replace(spec, meta={**spec.meta, "moe_latent_size": 16})
    with pytest.raises(UnsupportedModel, match="moe_latent_size"):
        open_weights(write_hybrid(tmp_path / "m.gguf", other))
