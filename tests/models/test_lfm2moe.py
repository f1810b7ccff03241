"""lfm2moe against llama.cpp's answers (tools/golden_models.py) and transformers' logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hybrid_models import HYBRID
from model_file import write_model

from aleator.core.errors import UnsupportedModel
from aleator.models import open_weights
from tests.models.check_transformers import SMALL, like_transformers

test_transformers = like_transformers(
    "Lfm2MoeConfig", {}, {"use_expert_bias": False, "norm_topk_prob": False}, tolerance=1e-4,
    sizes=SMALL | {
        "intermediate_size": 96, "moe_intermediate_size": 24, "num_dense_layers": 1, "num_experts": 4,
        "num_experts_per_tok": 2, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
    },
)  # fmt: skip


def test_a_window_in_the_file_is_not_read(tmp_path: Path) -> None:
    """llama.cpp reads it of lfm2 alone, where it is refused."""
    for arch in ("lfm2moe", "lfm2"):
        spec = replace(HYBRID[arch], meta={**HYBRID[arch].meta, "attention.sliding_window": 4})
        path = write_model(tmp_path / f"{arch}.gguf", spec)
        if arch == "lfm2":
            with pytest.raises(UnsupportedModel, match="sliding_window"):
                open_weights(path)
        else:
            assert open_weights(path).config.window is None
