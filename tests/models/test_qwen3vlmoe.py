"""qwen3vlmoe against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from aleator.models import open_weights
from tests.models.check_converted import logits
from tests.models.check_transformers import SMALL, check, write

transformers: Any = pytest.importorskip("transformers")


def with_pictures(**changes: Any) -> Any:
    text = SMALL | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    pairs = changes.get("head_dim", 8) // 2
    sections = [(pairs + 2 - axis) // 3 for axis in range(3)]
    rope = {"rope_type": "default", "rope_theta": 1e5, "mrope_section": sections}
    text["rope_parameters"] = rope
    vision: dict[str, Any] = {
        "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32,
        "deepstack_visual_indexes": [0],
    }  # fmt: skip
    config = transformers.Qwen3VLMoeConfig(text_config=text | changes, vision_config=vision)
    return transformers.Qwen3VLMoeForConditionalGeneration(config)


@pytest.mark.parametrize(
    "changes", [{}, {"head_dim": 16, "num_hidden_layers": 3, "moe_intermediate_size": 48}]
)
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    check(write(with_pictures(**changes), tmp_path), tmp_path, whole=True)


@pytest.mark.parametrize("width", [32, 16])
def test_square_experts_in_either_order(width: int, tmp_path: Path) -> None:
    """Down is square with 32 and gate and up with 16; the other one tells the order."""
    check(write(with_pictures(moe_intermediate_size=width), tmp_path), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    ids = list(range(20))
    expected = logits(open_weights(tmp_path), ids).tobytes()
    stacked = [name for name in tensors if ".mlp.experts." in name]
    shapes = {tuple(tensors[name].shape[1:]) for name in stacked}
    assert (32, 32) in shapes
    assert len(shapes) == 2
    turned = {name: tensors[name].transpose(1, 2).contiguous() for name in stacked}
    save_file(tensors | turned, file)
    assert logits(open_weights(tmp_path), ids).tobytes() == expected


def test_experts_as_published_and_one_by_one(tmp_path: Path) -> None:
    """Matrices of all experts in either order, and a tensor for each matrix: the same bits."""
    write(with_pictures(), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    ids = [int(t) for t in np.random.default_rng(1).integers(0, 96, 20)]
    expected = logits(open_weights(tmp_path), ids).tobytes()
    stacked = [name for name in tensors if ".mlp.experts." in name]
    assert len(stacked) == 4
    turned = {name: tensors[name].transpose(1, 2).contiguous() for name in stacked}
    apart: dict[str, torch.Tensor] = {}
    for name in stacked:
        at, _, part = name.rpartition(".")
        rows = tensors[name]
        if rows.shape[2] != (32 if part == "gate_up_proj" else 24):
            rows = rows.transpose(1, 2)
        for expert, matrix in enumerate(rows):
            halves = {"down_proj": matrix}
            if part == "gate_up_proj":
                halves = {"gate_proj": matrix[:24], "up_proj": matrix[24:]}
            apart |= {f"{at}.{expert}.{own}.weight": m.clone() for own, m in halves.items()}
    for changed in (turned, apart):
        others = {name: tensors[name] for name in tensors if name not in stacked}
        save_file(others | changed, file)
        assert logits(open_weights(tmp_path), ids).tobytes() == expected
