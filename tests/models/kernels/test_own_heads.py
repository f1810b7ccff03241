"""Queries and values that each head's program makes: the bits of the launches one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aleator.cache.storage.layer import TYPES, HostLayer, LayerFormat
from aleator.models.kernels import attention, cells, heads, works
from aleator.models.kernels.own_heads import OwnHeads
from aleator.models.kernels.planes import stack
from aleator.models.kernels.product import product
from aleator.models.kernels.rotation import RotationAngles
from aleator.models.kernels.seen import listed
from tests.models.bits import equal
from tests.models.kernels.test_attention import seen_tensors
from tests.models.kernels.test_fused import matrix, vector


@pytest.mark.usefixtures("small_programs")
@pytest.mark.parametrize(
    ("up", "down", "cache", "scaled"),
    [
        ("Q8_0", "Q4_K", "f16", True), ("Q4_1", "F16", "q8_0", False), ("BF16", "Q6_K", "bf16", False),
        ("F32", "BF16", "f32", True),
    ],
)  # fmt: skip
def test_one_launch_is_several(up: str, down: str, cache: str, scaled: bool) -> None:
    t, n, plain, rank, turned, wide, stored = 2, 3, 64, 256, 32, 70, 20
    ups = stack([matrix(up, rank, plain, False, seed=i) for i in range(n)])
    downs = stack([matrix(down, wide, rank, False, seed=9 + i) for i in range(n)])
    rotation = 32 if cache == "q8_0" else 0
    layer = HostLayer(LayerFormat(TYPES[cache], 1, rank + turned, stored, False, rotation))
    layer.write(
        np.arange(stored), vector(stored * (rank + turned), 1).numpy().reshape(stored, 1, -1)
    )
    keys, values = cells.side(layer), cells.side(layer, rank)
    x = vector(t * n * (plain + turned), 2).view(t, n, -1)
    by = RotationAngles(vector(t * turned, 3).view(t, turned // 2, 2), rank, True)
    scales = vector(t, 4) if scaled else None
    which, counts = np.zeros(t, np.int32), np.array([stored, stored - 3])
    seen = seen_tensors(
        listed(np.arange(stored, dtype=np.int32), np.array([0, stored]), which, counts, None)
    )

    number = torch.arange(n, dtype=torch.int32).repeat(t)
    first = product(ups, x[..., :plain].reshape(t * n, plain), expert=number).view(t, n, rank)
    q = torch.cat((first, x[..., plain:]), -1)
    group = heads.Heads(q, None, True, None)
    works.launch(heads.finishing([group], by, torch.arange(t), scales=scales))
    attended = attention.attend(q.clone(), keys, values, seen, 0.1)
    expected = product(downs, attended.view(t * n, rank), expert=number).view(t, -1)

    whole = torch.empty(t, n, rank + turned)
    group = heads.Heads(whole, None, True, None, (x[..., plain:],), skipped=rank)
    finish = heads.finishing([group], by, torch.arange(t), scales=scales, apart=True)
    own = OwnHeads(x[..., :plain], ups, finish, downs)
    made = attention.attend(whole, keys, values, seen, 0.1, spare=True, own=own)
    assert equal(made, expected.numpy())
