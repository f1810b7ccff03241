"""deepseek against llama.cpp's answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aleator.core.errors import UnsupportedModel
from aleator.models import open_weights
from tests.models.check_directory import check_directory

FIELDS = {
    "model_type": "deepseek", "n_routed_experts": 6, "num_experts_per_tok": 3, "n_shared_experts": 2,
    "moe_intermediate_size": 24, "first_k_dense_replace": 1, "scoring_func": "softmax",
    "norm_topk_prob": False,
}  # fmt: skip


def test_a_directory_gives_the_files_logits(tmp_path: Path) -> None:
    check_directory("deepseek", tmp_path, **FIELDS)


@pytest.mark.parametrize("change", [{"scoring_func": "sigmoid"}, {"norm_topk_prob": True}])
def test_what_is_not_computed_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FIELDS | change))
    with pytest.raises(UnsupportedModel, match=next(iter(change))):
        open_weights(tmp_path)
