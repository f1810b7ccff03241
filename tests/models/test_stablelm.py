"""stablelm against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aleator.core.errors import UnsupportedModel
from aleator.models import open_weights
from tests.models.check_transformers import SMALL, like_transformers

transformers: Any = pytest.importorskip("transformers")

test_transformers = like_transformers(
    "StableLmConfig",
    {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}},
    {"rope_parameters": {"rope_theta": 1e5, "partial_rotary_factor": 0.5}, "use_qkv_bias": True},
    whole=True,
)


@pytest.mark.parametrize("key", ["qk_layernorm", "use_parallel_residual"])
def test_what_is_not_computed_is_refused(key: str, tmp_path: Path) -> None:
    transformers.StableLmConfig(**SMALL, **{key: True}).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=key):
        open_weights(tmp_path)
