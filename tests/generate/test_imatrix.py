"""Sums of squares of the inputs of a model's matrices: of which matrices, how many inputs, and their values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from make_models import SPECS, write_model

from aleator.generate import Context
from aleator.generate.imatrix import InputSums
from aleator.models import build_decoder, open_weights
from aleator.models.weights import Weights

TEXT = [5 + 7 * i % 50 for i in range(20)]


def opened(name: str, folder: Path) -> tuple[Weights, Context]:
    weights = open_weights(write_model(folder / f"{name}.gguf", SPECS[name]))
    return weights, Context(build_decoder(weights), n_ctx=8, n_threads=1)


@pytest.mark.parametrize("bos", [None, 1])
def test_inputs_are_counted_and_squared(bos: int | None, tmp_path: Path) -> None:
    """Of two chunks of eight tokens; the rest is not read."""
    weights, context = opened("llama", tmp_path)
    sums = InputSums(weights)
    assert sums.found() == {}
    assert list(sums.read(context, TEXT, 8, 2, bos)) == [1, 2]
    assert context.cache.used == 8  # of the second chunk alone
    found = sums.found()
    layers = [name for name in weights.names() if name.startswith("blk.")]
    assert found.keys() == {name for name in layers if "norm" not in name}
    assert all(rows.tolist() == [16] for _, rows in found.values())
    read = np.array(TEXT[:16]).reshape(2, 8)
    read[:, 0] = read[:, 0] if bos is None else bos
    x = weights.floats("token_embd.weight")[read.ravel()].astype(np.float64)
    x /= np.sqrt((x * x).mean(1, keepdims=True) + 1e-5)
    x *= weights.floats("blk.0.attn_norm.weight")
    for name in ("q", "k", "v"):
        np.testing.assert_allclose(
            found[f"blk.0.attn_{name}.weight"][0], [(x * x).sum(0)], rtol=1e-5
        )


def test_experts_are_counted_one_by_one(tmp_path: Path) -> None:
    weights, context = opened("mixtral", tmp_path)
    sums = InputSums(weights)
    assert [*sums.read(context, TEXT, 4, 1, None)] == [1]
    squares, rows = sums.found()["blk.1.ffn_gate_exps.weight"]
    assert squares.shape == (6, 64)
    assert rows.sum() == 4 * SPECS["mixtral"].n_used
    assert ((squares.sum(1) > 0) == (rows > 0)).all()


def test_what_is_not_read_to_the_end_lets_others_read(tmp_path: Path) -> None:
    weights, context = opened("llama", tmp_path)
    first, second = InputSums(weights), InputSums(weights)
    reading = first.read(context, TEXT, 8, 2, None)
    assert next(reading) == 1
    reading.close()
    assert list(second.read(context, TEXT, 8, 1, None)) == [1]
    assert {name: rows.tolist() for name, (_, rows) in first.found().items()} == {
        name: rows.tolist() for name, (_, rows) in second.found().items()
    }
