"""The width of exaone-moe's shared experts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dense_models import DENSE
from model_file import write_model

from aleator.models import open_weights


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
