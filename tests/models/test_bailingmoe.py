"""bailingmoe against llama.cpp's answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aleator.core.errors import UnsupportedModel
from aleator.models import open_weights
from tests.models.check_directory import check_directory

FIELDS = {
    "model_type": "bailing_moe", "num_experts": 6, "num_experts_per_tok": 3, "num_shared_experts": 2,
    "moe_intermediate_size": 24, "norm_topk_prob": True,
}  # fmt: skip


def test_a_directory_gives_the_files_logits(tmp_path: Path) -> None:
    check_directory("bailingmoe", tmp_path, **FIELDS)


def test_a_normalised_output_matrix_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FIELDS | {"norm_head": True}))
    with pytest.raises(UnsupportedModel, match="norm_head"):
        open_weights(tmp_path)
