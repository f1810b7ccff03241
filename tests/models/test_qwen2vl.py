"""qwen2vl's text part against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_transformers import SMALL, check_transformers

transformers: Any = pytest.importorskip("transformers")


@pytest.mark.parametrize("kind", ["Qwen2VL", "Qwen2_5_VL"])
def test_transformers(kind: str, tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    config = getattr(transformers, f"{kind}Config")(
        text_config=SMALL | {"rope_parameters": rope},
        vision_config={"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2},
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    check_transformers(model, tmp_path)
