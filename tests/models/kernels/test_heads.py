"""Heads made ready and stored in one launch, under Triton's interpreter: native bits, and no others."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs in a process of its own", allow_module_level=True)

import torch

from aleator.cache.storage.layer import TYPES, HostLayer, LayerFormat
from aleator.models.kernels import cells, heads
from aleator.models.kernels.norms import RowNorm
from aleator.models.triton_ops import TritonOps

GUARD = 4096
"""Elements before and after the cache's memory that must stay as they are."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):  # of what is masked out
        yield


@pytest.mark.parametrize("rotation", [0, 2, 32])
@pytest.mark.parametrize("kind", [name for name in TYPES if name != "iq4_nl"])
@pytest.mark.parametrize("order", [[3, -1, 0, 6, 1], [-1, -1], [7]], ids=str)
def test_tokens_are_stored_where_they_are_to_be(kind: str, rotation: int, order: list[int]) -> None:
    made = LayerFormat(TYPES[kind], 2, 64, 8, False, rotation)
    rng = np.random.default_rng(2)
    before, x = (rng.standard_normal((n, 2, 64)).astype(np.float32) for n in (8, len(order)))
    layer, expected = HostLayer(made), HostLayer(made)
    layer.write(np.arange(8), before)
    expected.write(np.arange(8), before)
    kept = np.array(order) >= 0
    if kept.any():
        expected.write(np.array(order)[kept], x[kept])
    side = cells.side(layer)
    whole = torch.full((side.data.numel() + 2 * GUARD,), 77, dtype=side.data.dtype)
    data = whole[GUARD:-GUARD].view(side.data.shape)
    data.copy_(side.data)
    to = side._replace(
        data=data, halves=data.view(torch.float16) if TYPES[kind].block > 1 else data
    )
    heads.finish([heads.Heads(torch.from_numpy(x), None, False, to)], None, torch.tensor(order))
    assert data.numpy().tobytes() == cells.side(expected).data.numpy().tobytes()
    assert (whole[:GUARD] == 77).all()
    assert (whole[-GUARD:] == 77).all()


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("dim", [24, 64, 80])
@pytest.mark.parametrize("each", [False, True])
def test_heads_are_normalised_each_by_itself(kind: str, dim: int, each: bool) -> None:
    rng = np.random.default_rng(dim)
    x = torch.from_numpy(rng.standard_normal((5, 3, dim)).astype(np.float32))
    shape = (3, dim) if each else (dim,)
    weight, bias = (torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for _ in "wb")
    norm = RowNorm(kind, weight, bias if kind == "layer" else None, 1e-5)
    expected = norm(x.clone())
    whole = torch.full((x.numel() + GUARD,), 77.0)
    made = whole[:-GUARD].view(x.shape)
    made.copy_(x)
    heads.finish([heads.Heads(made, norm, False, None)], None, torch.arange(5))
    assert made.numpy().tobytes() == expected.numpy().tobytes()
    assert (whole[-GUARD:] == 77).all()


def test_heads_without_matrices_of_their_own_have_nothing_to_take() -> None:
    """Where keys are not compressed there are none."""
    ops = TritonOps.__new__(TritonOps)
    assert callable(ops.each_head([]))
