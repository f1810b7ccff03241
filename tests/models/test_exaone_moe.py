"""exaone-moe against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dense_models import DENSE
from model_file import write_model

from aleator.models import open_weights
from tests.models.check_transformers import SMALL, like_transformers

test_transformers = like_transformers(
    "ExaoneMoeConfig", {}, {"n_group": 3, "topk_group": 2, "num_shared_experts": 2},
    sizes=SMALL | {
        "num_hidden_layers": 3, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
        "sliding_window": 6, "sliding_window_pattern": 3,
    },
)  # fmt: skip


@pytest.mark.parametrize(
    ("said", "wide"), [({}, 24), ({"expert_shared_feed_forward_length": 40}, 40)]
)
def test_shared_experts_are_as_wide_as_the_file_says(
    said: dict[str, Any], wide: int, tmp_path: Path
) -> None:
    """Whatever their number, which llama.cpp does not use here."""
    spec = DENSE["exaone-moe"]
    assert spec.experts is not None
    experts = replace(spec.experts, n_shared=2)
    path = write_model(
        tmp_path / "m.gguf", replace(spec, experts=experts, meta={**spec.meta, **said})
    )
    found = open_weights(path).config.experts
    assert found is not None
    assert found.n_ff_shared == wide
