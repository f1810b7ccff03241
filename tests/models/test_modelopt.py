"""Directories of NVIDIA's ModelOpt: NVFP4 and FP8."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from aleator.core.errors import AleatorError
from aleator.models import open_weights
from tests.models.check_converted import logits
from tests.models.prequantised import Made, fp8, nvfp4, ours, write_quantised

NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt"}}
FP8 = NVFP4 | {"quant_algo": "FP8"}
FIRST = "model.layers.0.self_attn.q_proj."
CODES = torch.float8_e4m3fn


def made_fp8(rng: np.random.Generator, out: int, n_in: int) -> Made:
    """Its scale is a number, not a vector."""
    tensors, whole = fp8(rng, out, n_in, by="matrix", name="weight_scale")
    return tensors | {"weight_scale": tensors["weight_scale"][0]}, whole


@pytest.mark.parametrize(
    ("config", "make", "kind"), [(NVFP4, nvfp4, "F32"), (FP8, made_fp8, "F8_E4M3")]
)
@pytest.mark.parametrize("apart", [False, True])
def test_numbers_are_what_the_format_says(
    tmp_path: Path, config: dict[str, Any], make: Callable[..., Made], kind: str, apart: bool
) -> None:
    """``apart``: older versions say how in a file of its own."""
    path = tmp_path / "m"
    whole = write_quantised(path, config, make)
    if apart:
        fields = json.loads((path / "config.json").read_text())
        told = {"quantization": {"quant_algo": fields.pop("quantization_config")["quant_algo"]}}
        (path / "config.json").write_text(json.dumps(fields))
        (path / "hf_quant_config.json").write_text(json.dumps(told))
    weights = open_weights(path)
    for stem, expected in whole.items():
        assert weights.stored(ours(stem)).type == kind
        np.testing.assert_array_equal(weights.floats(ours(stem)), expected)
    ids = list(range(20))
    assert (logits(weights, ids) == logits(open_weights(path / "floats"), ids)).all()


@pytest.mark.parametrize(
    ("end", "tensor", "what"),
    [
        ("weight_scale", None, "weight_scale' is missing"),
        ("weight_scale", torch.ones(128, 8), "is stored in F32; it must be F8_E4M3"),
        ("weight_scale", torch.ones(128, 4).to(CODES), r"it must be \[128, 8\]"),
        ("weight_scale", torch.full((128, 8), torch.nan).to(CODES), "holds NaN"),
        ("weight_scale_2", None, "weight_scale_2' is missing"),
        ("weight_scale_2", torch.ones(2), r"is of shape \[2\]; it must be one number"),
        ("weight_scale_2", torch.tensor(torch.nan), "holds NaN or an infinity"),
        ("pre_quant_scale", torch.ones(128), "pre_quant_scale' is not part of the architecture"),
    ],
)
def test_damaged_files(tmp_path: Path, end: str, tensor: torch.Tensor | None, what: str) -> None:
    write_quantised(tmp_path / "m", NVFP4, nvfp4)
    file = tmp_path / "m" / "model.safetensors"
    named = load_file(file)
    named.pop(FIRST + end, None)
    save_file(named | ({} if tensor is None else {FIRST + end: tensor}), file)
    with pytest.raises(AleatorError, match=what):
        open_weights(tmp_path / "m").check_finite(ours(FIRST))


def test_other_ways_are_refused(tmp_path: Path) -> None:
    write_quantised(tmp_path / "m", NVFP4 | {"quant_algo": "W4A16_AWQ"}, nvfp4)
    with pytest.raises(AleatorError, match="'modelopt' with quant_algo='W4A16_AWQ'"):
        open_weights(tmp_path / "m")
