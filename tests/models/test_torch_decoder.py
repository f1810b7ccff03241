"""The decoder's form in torch, against the native one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from dense_models import DENSE
from make_models import SPECS, write_model

from aleator.core.errors import ParameterError
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.layers.linear import tensor
from aleator.models.torch_decoder import TorchDecoder

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0"])
@pytest.mark.parametrize(
    "name", ["llama-freqs", "llama-yarn", "qwen2-tied-yarn", "qwen3-tied-yarn"]
)
def test_native_and_torch_layers_agree(tmp_path: Any, name: str, kind: str) -> None:
    path = write_model(tmp_path / "m.gguf", replace(SPECS[name], type=kind))
    decoder, plain = (build_decoder(open_weights(path), form=form) for form in ("native", "torch"))
    native = Context(decoder, n_ctx=96, n_seq_max=2, type_k="f32", type_v="f32")
    layers = Context(plain, n_ctx=96, n_seq_max=2, type_k="f32", type_v="f32")
    rng = np.random.default_rng(1)

    def same(batch: Batch) -> None:
        got, expected = native.decode(batch), layers.decode(batch)
        assert got.shape == expected.shape
        # Rounding activations turns differences of a last bit into some of 1/127 of an element, or 2^-8.
        tolerance = {"Q8_0": 1e-2, "BF16": 2e-3}.get(kind, 1e-5)
        assert np.abs(got - expected).max() < tolerance * (expected.max() - expected.min())

    same(Batch.one(rng.integers(0, 64, 40).tolist(), 0, logits=True))
    same(Batch.one(rng.integers(0, 64, 9).tolist(), 40, logits=True))
    for ctx in (native, layers):
        ctx.cache.seq_rm(0, 3, 12)
        ctx.cache.seq_add(0, 12, -1, -9)
        ctx.cache.seq_cp(0, 1)
    for i in range(3):
        batch = Batch()
        batch.add(5 + i, 40 + i, [0], logits=True)
        batch.add(8 + i, 40 + i, [1], logits=i != 1)
        same(batch)
    assert np.allclose(native.cache.keys.layers[-1], layers.cache.keys.layers[-1], atol=1e-4)


@pytest.mark.parametrize("name", ["smollm3", "llama4"])
def test_keys_that_are_not_rotated_stay_in_shifts(tmp_path: Any, name: str) -> None:
    write_model(tmp_path / "m.gguf", DENSE[name])
    weights, rows = open_weights(tmp_path / "m.gguf"), []
    assert not all(weights.config.rotated(layer) for layer in range(weights.config.n_layers))
    for form in ("native", "torch"):
        context = Context(build_decoder(weights, form=form), n_ctx=128, type_k="f32", type_v="f32")
        context.decode(Batch.one(list(range(1, 30))))
        context.cache.seq_rm(0, 3, 9)
        context.cache.seq_add(0, 9, -1, -6)
        rows.append(context.decode(Batch.one([5, 6], 23, logits=True)))
    assert np.abs(rows[0] - rows[1]).max() < 1e-5 * (rows[0].max() - rows[0].min())


@pytest.mark.parametrize("form", ["native", "torch"])
def test_keys_that_are_not_rotated_stay_when_many_are_rewritten(tmp_path: Any, form: str) -> None:
    write_model(tmp_path / "m.gguf", DENSE["smollm3"])
    decoder = build_decoder(open_weights(tmp_path / "m.gguf"), form=form)
    context = Context(decoder, n_ctx=256, type_k="f32")
    context.decode(Batch.one([1 + i % 50 for i in range(200)]))
    before = [keys.copy() for keys in context.cache.keys.layers]
    context.cache.seq_div(0, 0, -1, 2)  # more distances than are made up for while reading
    context.cache.update()
    rotated = [decoder.config.rotated(layer) for layer in range(decoder.config.n_layers)]
    assert rotated == [True, True, True, False]
    changed = [
        not np.array_equal(a, b) for a, b in zip(before, context.cache.keys.layers, strict=True)
    ]
    assert changed == rotated


def test_weights_elsewhere_or_in_other_types_go_through_torch(tmp_path: Any) -> None:
    path = write_model(tmp_path / "m.gguf", SPECS["llama"])
    decoder = build_decoder(open_weights(path), dtype=torch.bfloat16)
    assert isinstance(decoder, TorchDecoder)
    assert Context(decoder, n_ctx=16).decode(Batch.one([1])).dtype == np.float32
    with pytest.raises(ParameterError, match="form='native' computes on the CPU in float32"):
        build_decoder(open_weights(path), dtype=torch.bfloat16, form="native")
    with pytest.raises(ParameterError, match="form='jit' must be one of auto, native, torch"):
        build_decoder(open_weights(path), form="jit")


def test_blocks_are_widened_to_another_type(tmp_path: Any) -> None:
    path = write_model(tmp_path / "m.gguf", replace(SPECS["llama"], type="Q8_0"))
    weights = open_weights(path)
    decoder = build_decoder(weights, dtype=torch.bfloat16)
    assert isinstance(decoder, TorchDecoder)
    made = tensor(weights, "blk.0.attn_q.weight", torch.bfloat16)
    floats = weights.stored("blk.0.attn_q.weight").floats()
    assert torch.equal(made, torch.from_numpy(floats).to(torch.bfloat16))
    assert np.isfinite(Context(decoder, n_ctx=16).decode(Batch.one([1]))).all()
