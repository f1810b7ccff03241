"""DeepSeek-OCR 2's text part against transformers; the first one's directories: test_directories.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_transformers import SMALL, check_transformers

HALF = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32}
SAM = {
    "output_channels": 16, "image_size": 64, "patch_size": 16, "window_size": 2, "mlp_dim": 32,
    "global_attn_indexes": [0],
}  # fmt: skip
TEXT = SMALL | {
    "num_key_value_heads": 4, "num_hidden_layers": 3, "n_routed_experts": 6, "n_shared_experts": 2,
    "num_experts_per_tok": 3, "moe_intermediate_size": 24, "mlp_layer_types": ["dense", "sparse", "sparse"],
    "routed_scaling_factor": 1.5,
}  # fmt: skip


def test_transformers(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    encoder = HALF | {"intermediate_size": 32, "num_key_value_heads": 2}
    vision = {"sam_config": HALF | SAM, "encoder_config": encoder}
    config = transformers.DeepseekOcr2Config(text_config=TEXT, vision_config=vision)
    model = transformers.DeepseekOcr2ForConditionalGeneration(config)
    check_transformers(model, tmp_path, whole=True)
