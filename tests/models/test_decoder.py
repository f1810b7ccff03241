"""Broken model files are refused by name of the tensor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dense_models import DENSE
from make_models import SPECS, write_model
from model_file import Array

from aleator.core.errors import FileFormatError, InvalidBatch
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.config import QueryGrowth
from aleator.models.decoder import Decoder, alibi_slopes

SPEC = SPECS["llama"]


def build(folder: Path, tensors: dict[str, Array], arch: str = "llama") -> None:
    path = write_model(folder / "m.gguf", replace(SPEC, arch=arch), tensors)
    build_decoder(open_weights(path))


def test_qwen2_needs_its_biases(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"blk.0.attn_q.bias"):
        build(tmp_path, dict(SPEC.each_tensor()), "qwen2")


@pytest.mark.parametrize("name", ["blk.0.attn_v.weight", "blk.1.ffn_down.weight"])
def test_tensor_of_another_shape(tmp_path: Path, name: str) -> None:
    tensors = dict(SPEC.each_tensor())
    tensors[name] = tensors[name][:-1]
    with pytest.raises(FileFormatError, match=name):
        build(tmp_path, tensors)


def test_frequency_divisors_must_be_positive(tmp_path: Path) -> None:
    tensors = dict(SPECS["llama-freqs"].each_tensor())
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


@pytest.mark.parametrize("name", ["llama", "jamba"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.05), ("float16", 0.01)])
def test_weights_in_16_bits(tmp_path: Path, name: str, dtype: str, tolerance: float) -> None:
    """Norms of a state's step too; PyTorch warns of weights in another type."""
    pytest.importorskip("torch")
    weights = open_weights(write_model(tmp_path / "m.gguf", SPECS[name]))
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


@pytest.mark.parametrize("form", ["native", "torch"])
def test_positions_end_where_their_vectors_do(form: str, tmp_path: Path) -> None:
    decoder = build_decoder(
        open_weights(write_model(tmp_path / "m.gguf", DENSE["gpt2"])), form=form
    )
    n = decoder.n_positions
    assert n is not None
    context = Context(decoder, n_ctx=2 * n, n_seq_max=2)
    context.decode(Batch.one([1], n - 1))
    context.cache.seq_rm(0, -1, -1)
    with pytest.raises(
        InvalidBatch, match=f"position {n}: .* of positions 0 to {n - 1} only"
    ) as caught:
        context.decode(Batch.one([1, 2, 3], n - 1))
    assert caught.value.index == 1


@pytest.mark.parametrize(
    ("name", "uses"), [("gpt2", True), ("bloom", True), ("mistral3", True), ("smollm3", False)]
)
def test_what_positions_do_besides_rotating(name: str, uses: bool, tmp_path: Path) -> None:
    decoder = build_decoder(open_weights(write_model(tmp_path / "m.gguf", DENSE[name])))
    assert decoder.uses_positions is uses


@pytest.mark.parametrize("ahead", [0, 1])
def test_queries_grow_with_their_position(ahead: int) -> None:
    made: Any = SimpleNamespace(config=SimpleNamespace(query_growth=QueryGrowth(0.25, 8, ahead)))
    at = np.array([0, 6, 7, 8, 15, 16, 100, 7], np.int32)
    scales = Decoder.query_scales(made, at)
    assert scales is not None
    assert scales.dtype == np.float32
    np.testing.assert_allclose(scales, 1 + 0.25 * np.log(1 + (at + ahead) // 8), rtol=1e-7)
    made.config.query_growth = None
    assert Decoder.query_scales(made, at) is None


def test_rotations_for_the_size_of_a_context_are_told_apart(tmp_path: Path) -> None:
    """Keys of one are no keys of the other; where the size does not matter there is nothing to tell."""
    plain = build_decoder(open_weights(write_model(tmp_path / "p.gguf", SPEC)))
    assert plain.rotation_identity == ""
    assert plain.in_context(1 << 20) is plain
    tensors = dict(SPEC.each_tensor())
    pairs = SPEC.head_dim // 2
    for name, factor in (("long", 3.0), ("short", 1.5)):
        tensors[f"rope_factors_{name}.weight"] = np.full(pairs, factor, np.float32)
    path = write_model(tmp_path / "l.gguf", replace(SPEC, scaling="longrope", factor=2.0), tensors)
    decoder = build_decoder(open_weights(path))
    original = decoder.config.rope.original_context
    short, same, long = (decoder.in_context(n) for n in (original, 1, original + 1))
    assert short.rotation_identity == same.rotation_identity != long.rotation_identity
    ratio = np.array(short.rotation.frequencies) / np.array(long.rotation.frequencies)
    np.testing.assert_allclose(ratio, 2.0, rtol=1e-6)
