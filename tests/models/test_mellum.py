"""mellum against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import SMALL, check_golden, check_transformers

transformers: Any = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["mellum"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path, script_rows=4)


YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
MIXED = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "sliding_window": 8,
    "layer_types": [*["sliding_attention"] * 3, "full_attention"],
}


@pytest.mark.parametrize(
    ("changes", "whole"),
    [
        ({"rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN}}, True),
        ({"rope_parameters": {"full_attention": PLAIN, "sliding_attention": PLAIN}}, True),
        ({"layer_types": None, "norm_topk_prob": False}, False),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]}, False),
    ],
)
def test_transformers(changes: dict[str, Any], whole: bool, tmp_path: Path) -> None:
    config = transformers.MellumConfig(**(SMALL | MIXED | changes))
    check_transformers(transformers.MellumForCausalLM(config), tmp_path, whole=whole)
