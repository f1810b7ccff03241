"""Broken model files are refused by name of the tensor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from make_models import SPECS, random_tensors, write_model
from model_file import Array

from aleator.core.errors import FileFormatError
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.decoder import alibi_slopes

SPEC = SPECS["llama"]


def build(folder: Path, tensors: dict[str, Array], arch: str = "llama") -> None:
    path = write_model(folder / "m.gguf", replace(SPEC, arch=arch), tensors)
    build_decoder(open_weights(path))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "token_embd.weight", "output_norm.weight"])
def test_weights_that_are_not_finite(tmp_path: Path, name: str, value: float) -> None:
    tensors = random_tensors(SPEC)
    tensors[name].flat[5] = value
    with pytest.raises(FileFormatError, match=name):
        build(tmp_path, tensors)


@pytest.mark.parametrize("name", ["blk.0.attn_k.weight", "blk.1.ffn_norm.weight"])
def test_missing_tensor(tmp_path: Path, name: str) -> None:
    tensors = random_tensors(SPEC)
    del tensors[name]
    with pytest.raises(FileFormatError, match=name):
        build(tmp_path, tensors)


def test_qwen2_needs_its_biases(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"blk.0.attn_q.bias"):
        build(tmp_path, random_tensors(SPEC), "qwen2")


@pytest.mark.parametrize("name", ["blk.0.attn_v.weight", "blk.1.ffn_down.weight"])
def test_tensor_of_another_shape(tmp_path: Path, name: str) -> None:
    tensors = random_tensors(SPEC)
    tensors[name] = tensors[name][:-1]
    with pytest.raises(FileFormatError, match=name):
        build(tmp_path, tensors)


def test_frequency_divisors_must_be_positive(tmp_path: Path) -> None:
    tensors = random_tensors(SPECS["llama-freqs"])
    tensors["rope_freqs.weight"][2] = 0.0
    with pytest.raises(FileFormatError, match=r"rope_freqs.weight"):
        build(tmp_path, tensors)


def test_longrope_without_tables_rotates_as_without_scaling(tmp_path: Path) -> None:
    """As llama.cpp has it."""
    plain = build_decoder(open_weights(write_model(tmp_path / "m.gguf", SPEC))).rotation
    path = write_model(tmp_path / "l.gguf", replace(SPEC, scaling="longrope", factor=2.0))
    for n_ctx in (16, 1 << 20):
        found = build_decoder(open_weights(path)).in_context(n_ctx).rotation
        assert found.frequencies.tolist() == plain.frequencies.tolist()
        assert found.magnitude == plain.magnitude


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.05), ("float16", 0.01)])
def test_weights_in_16_bits(tmp_path: Path, dtype: str, tolerance: float) -> None:
    pytest.importorskip("torch")
    weights = open_weights(write_model(tmp_path / "m.gguf", SPEC))
    rows = []
    for d in ("float32", dtype):
        ctx = Context(build_decoder(weights, dtype=d), n_ctx=16)
        rows.append(ctx.decode(Batch.one([3, 1, 4], logits=True)))
        assert rows[-1].dtype == np.float32
    assert np.abs(rows[0] - rows[1]).max() < tolerance * (rows[0].max() - rows[0].min())


def test_slopes_of_numbers_of_heads_that_are_no_powers_of_two() -> None:
    """The heads beyond the next smaller power take the steps between (arXiv:2108.12409)."""
    for n, largest, exponents in (
        (6, 8.0, [2, 4, 6, 8, 1, 3]), (4, 2.0, [0.5, 1, 1.5, 2]), (1, 8.0, [8]), (3, 8.0, [4, 8, 2]),
    ):  # fmt: skip
        assert (
            alibi_slopes(n, largest).tolist() == np.exp2(-np.array(exponents, np.float32)).tolist()
        )
