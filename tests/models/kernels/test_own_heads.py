"""What attention's programs do before it, after it and beside: the bits of the launches one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from aleator.cache.storage.layer import TYPES, HostLayer, LayerFormat
from aleator.models.kernels import attention, cells, heads, recurrent, works
from aleator.models.kernels.norms import RowNorm
from aleator.models.kernels.own_heads import OwnHeads
from aleator.models.kernels.planes import stack
from aleator.models.kernels.product import product
from aleator.models.kernels.rotation import RotationAngles
from aleator.models.kernels.seen import listed
from tests.models.bits import equal
from tests.models.kernels.test_attention import seen_tensors
from tests.models.kernels.test_fused import matrix, vector
from tests.models.kernels.test_recurrent import ROWS, batch_of, numbers, runs_of


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
    group = heads.Heads(whole, None, True, None, (x[..., plain:],), skipped=rank, turn=rotation)
    finish = heads.finishing([group], by, torch.arange(t), scales=scales)
    own = OwnHeads(x[..., :plain], ups, downs)
    made = attention.attend(whole, keys, values, seen, 0.1, finished=True, finish=finish, own=own)
    assert equal(made, expected.numpy())


def test_compressed_keys_of_more_cells_take_more_launches() -> None:
    """As many heads as have programs of their own leave room for a second one each."""
    of: Any = SimpleNamespace(longest=attention.SHORT + 1)
    for t in range(1, attention.FEW + 1):
        assert attention.shares(t, 1, attention.ALONE // t, of) > 1


@pytest.mark.usefixtures("small_programs")
@pytest.mark.parametrize("cells_of_one_launch", [1024, 64])
@pytest.mark.parametrize(
    ("cache", "rotation", "group"), [("q8_0", 32, 1), ("f16", 0, 3), ("bf16", 0, 8)]
)
def test_new_keys_and_values_are_finished_by_their_readers(
    cache: str, rotation: int, group: int, cells_of_one_launch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More cells are shared by programs, here in turns, of which one finishes keys and values."""
    monkeypatch.setattr(attention, "SHORT", cells_of_one_launch)
    monkeypatch.setattr(attention, "PROGRAMS", 12)
    t, n, dim, wide, room = 3, 2, 64, 32, 300
    by = RotationAngles(vector(t * 32, 3).view(t, 16, 2), 32, True)
    which, counts = np.arange(t, dtype=np.int32), np.array([70, 229, 1])
    cell_ids = torch.tensor([69, 298, 299])
    lists = np.arange(room, dtype=np.int32)
    seen = seen_tensors(listed(lists, np.array([0, 70, 299, 300]), which, counts, None))
    results = []
    for joined in (False, True):
        layers = [
            HostLayer(LayerFormat(TYPES[cache], n, size, room, False, rotation))
            for size in (dim, wide)
        ]
        for i, layer in enumerate(layers):
            old = vector(room * n * layer.dim, i).numpy().reshape(room, n, -1)
            layer.write(np.arange(room), old)
        keys, values = map(cells.side, layers)
        k, v = (vector(t * n * size, 5).view(t, n, size) for size in (32, wide))
        q = vector(t * n * group * dim, 6).view(t, n * group, dim)
        norm = RowNorm("rms", vector(dim, 9), None, 1e-5) if group > 1 else None
        shared = vector(t * 32, 7).view(t, 1, 32).expand(t, n, 32)
        shares = attention.shares(t, n, group, seen) if joined else 1
        assert shares == (2 if joined and cells_of_one_launch == 64 else 1)
        queries = heads.heads_of([q], norm, True, None, copies=shares)
        groups = [
            queries._replace(turn=rotation),
            heads.heads_of([k, shared], None, True, keys),
            heads.heads_of([v], None, False, values, keep=True),
        ]
        finish = heads.finishing(groups, by, cell_ids)
        if not joined:
            works.launch(finish)
        how: Any = {"finished": True, "finish": finish if joined else None}
        made = attention.attend(queries.x[:t], keys, values, seen, 0.1, **how)
        results.append([made, *(torch.from_numpy(layer.read(np.arange(room))) for layer in layers)])
    for one, other in zip(*results, strict=True):
        assert equal(other, one.numpy())


@pytest.mark.usefixtures("small_programs")
@pytest.mark.parametrize("once", [False, True])
def test_scans_beside_attention(once: bool) -> None:
    batch, rng = batch_of("mixed"), np.random.default_rng(8)
    runs, t = runs_of(batch, True), 3
    wide = [torch.from_numpy(numbers(rng, len(batch.order), k)) for k in (40, 8, 16, 16, 40)]
    u, step, b, c, gate = wide
    rest = [torch.from_numpy(numbers(rng, 8)) for _ in range(3)]
    rate, d, bias = -rest[0].abs(), *rest[1:]
    start = torch.from_numpy(numbers(rng, ROWS, 40, 16))
    layer = HostLayer(LayerFormat(TYPES["f16"], 2, 16, 20, False, 0))
    layer.write(np.arange(20), numbers(rng, 20, 2, 16))
    side, q = cells.side(layer), torch.from_numpy(numbers(rng, t, 4, 16))
    lists, counts = np.arange(20, dtype=np.int32), np.array([20, 18, 3])
    seen = seen_tensors(listed(lists, np.array([0, 20]), np.zeros(t, np.int32), counts, None))
    results = []
    for beside in (False, True):
        kept = start.clone()
        y, work = recurrent.scanning(u, step, rate, b, c, d, gate, kept, runs, True, bias)
        if not beside:
            works.launch(work)
        room = None if once else torch.empty(2 * 2 * 2 * 20)  # of two tokens at a time
        how: Any = {"room": room, "beside": work if beside else None}
        results.append((y, kept, attention.attend(q, side, side, seen, 0.2, **how)))
    for got, expected in zip(*results, strict=True):
        assert equal(got, expected.numpy())
