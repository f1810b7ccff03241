"""minicpm against llama.cpp's answers and those of Granite, which it is with other fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_transformers import SMALL, check_transformers, renamed

transformers: Any = pytest.importorskip("transformers")


@pytest.mark.parametrize("tied", [True, False])
def test_transformers(tied: bool, tmp_path: Path) -> None:
    config = transformers.GraniteConfig(
        **SMALL,
        tie_word_embeddings=tied,
        embedding_multiplier=12.0,
        residual_multiplier=1.4 / 2**0.5,
        attention_multiplier=8**-0.5,
        logits_scaling=2.0,
    )

    def fields(values: dict[str, Any]) -> None:
        for key in ("embedding", "residual", "attention"):
            del values[f"{key}_multiplier"]
        del values["logits_scaling"]
        if tied:
            del values["tie_word_embeddings"]
        values |= {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}
        values["model_type"] = "minicpm"

    model = transformers.GraniteForCausalLM(config)
    check_transformers(model, tmp_path, change=lambda folder: renamed(folder, fields), whole=True)
