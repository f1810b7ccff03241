"""nemotron_h_moe against llama.cpp's answers (tools/golden_models.py) and transformers' logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hybrid_models import HYBRID
from model_file import write_model

from aleator.core.errors import UnsupportedModel
from aleator.models import open_weights
from tests.models.check_transformers import like_transformers
from tests.models.test_nemotron_h import SIZES

test_transformers = like_transformers(
    "NemotronHConfig", {}, {"n_group": 3, "topk_group": 2, "norm_topk_prob": False}, tolerance=1e-4,
    sizes=SIZES | {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "n_routed_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40,
        "routed_scaling_factor": 2.5,
    },
)  # fmt: skip


def test_experts_of_another_width_are_refused(tmp_path: Path) -> None:
    spec = HYBRID["nemotron_h_moe"]
    other = replace(spec, meta={**spec.meta, "moe_latent_size": 16})
    with pytest.raises(UnsupportedModel, match="moe_latent_size"):
        open_weights(write_model(tmp_path / "m.gguf", other))
