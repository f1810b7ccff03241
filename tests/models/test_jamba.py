"""jamba against llama.cpp's logits (tools/golden_models.py), and a real model in a cache of two pools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from make_models import SPECS, write_model

from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from tests.models.check_transformers import SMALL, like_transformers

# B and C are small before they are normalised, which magnifies the last bits.
test_transformers = like_transformers(
    "JambaConfig", {}, {"num_experts": 1}, {"mamba_conv_bias": False, "tie_word_embeddings": True},
    tolerance=1e-4, sizes=SMALL | {
        "intermediate_size": 48, "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2,
        "mamba_d_state": 8, "mamba_dt_rank": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
        "expert_layer_period": 3, "expert_layer_offset": 1, "use_mamba_kernels": False,
    },
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_norms_in_16_bits(tmp_path: Path, dtype: str) -> None:
    """Those of a state's step and matrices too; PyTorch warns of weights in another type."""
    pytest.importorskip("torch")
    weights = open_weights(write_model(tmp_path / "m.gguf", SPECS["jamba"]))
    exact, rounded = (
        Context(build_decoder(weights, dtype=each, form="torch"), n_ctx=16).decode(
            Batch.one([3, 1, 4])
        )
        for each in ("float32", dtype)
    )
    assert np.abs(exact - rounded).max() < 0.05 * (exact.max() - exact.min())
