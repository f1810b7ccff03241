"""Cells as torch layers use them: masks against the definition, cell by cell, and keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aleator.cache.kv_cache import KVCache, LayerShape
from aleator.cache.pools.cell_pool import CellPool
from aleator.cache.pools.window import WindowPool
from aleator.cache.rows.rows import read_keys
from aleator.cache.rows.tensors import CellTensors, WindowTensors
from tests.cache.scripted import rotate

SHAPES = [LayerShape(1, 2, 2), LayerShape(2, 1, 3)]
GIVEN: dict[str, Any] = {"n_seq_max": 3, "type_k": "f32", "type_v": "f32"}


def turned(layer: int, keys: Any, deltas: Any) -> Any:
    if isinstance(keys, torch.Tensor):
        return keys + torch.as_tensor(deltas)[:, None, None] * (layer + 1)
    return rotate(layer, keys, deltas)


KINDS: dict[str, dict[str, Any]] = {
    "cells": {},
    "raw": {"k_storage": "raw"},
    "channels": {"v_layout": "channel"},
}


def pools() -> dict[str, CellPool]:
    made: dict[str, CellPool] = {
        name: KVCache(SHAPES, 48, **GIVEN, rotate=turned, **options).first
        for name, options in KINDS.items()
    }
    for window, sinks, chunked in ((1, 0, False), (4, 0, False), (4, 2, False), (4, 3, True)):
        options: Any = {"window": window, "sinks": sinks, "chunked": chunked, "rotate": turned}
        made[f"window {window} {sinks} {chunked}"] = WindowPool(SHAPES, 48, **GIVEN, **options)
    return made


def sees(pool: CellPool, position: int, other: int) -> bool:
    if not isinstance(pool, WindowPool) or other < pool.sinks:
        return True
    if pool.chunked:
        return other >= position // pool.window * pool.window
    return other > position - pool.window


def expected(pool: CellPool, made: CellTensors, tokens: list[tuple[int, int]], causal: bool) -> Any:
    """By token and cell that is read, whether it is seen."""
    cells = made._index.tolist()
    return [
        [
            seq in pool.cells.owners_of(c)
            and (pool.cells.positions[c] <= position or not causal)
            and sees(pool, position, int(pool.cells.positions[c]))
            for c in cells
        ]
        for position, seq in tokens
    ]


def visible(made: CellTensors, n_tokens: int) -> Any:
    for layer in range(2):
        assert made.device(layer).type == "cpu"
    mask = made.mask(0)
    if mask is not None:
        assert not made.causal
        assert set(mask.flatten().tolist()) <= {0.0, -torch.inf}
        return (mask == 0).tolist()
    if made.causal:
        return np.tri(n_tokens, made.n, dtype=bool).tolist()
    return np.ones((n_tokens, made.n), bool).tolist()


def place(pool: CellPool, tokens: list[tuple[int, int]], causal: bool = True) -> CellTensors:
    positions, seqs = (np.array(x, np.int32) for x in zip(*tokens, strict=True))
    owners = np.left_shift(np.uint64(1), seqs.astype(np.uint64))[:, None]
    part: Any = pool.place(positions, seqs, owners, causal)
    made: CellTensors = part.tensors()
    t = len(tokens)
    for layer, shape in enumerate(SHAPES):
        k = torch.arange(t * shape.kv_heads * shape.head_dim).view(t, shape.kv_heads, -1)
        v = torch.arange(t * shape.kv_heads * shape.head_dim_v).view(t, shape.kv_heads, -1)
        at = 0 if made.raw else torch.from_numpy(positions)[:, None, None]
        made.write(layer, (k * 7 + at * (layer + 1)).float(), v.float() + positions[0])
    assert made.positions().tolist() == pool.cells.positions[made._index].tolist()
    return made


@pytest.mark.parametrize("name", pools())
def test_masks_keys_and_values(name: str) -> None:
    pool, rng = pools()[name], np.random.default_rng(3)
    last = [-1, -1, -1]
    kinds = set()
    for round_ in range(40):
        tokens = []
        for seq in rng.permutation(3)[: 1 + int(rng.integers(3))].tolist():
            for _ in range(int(rng.integers(1, 5))):
                last[seq] += 1
                tokens.append((last[seq], seq))
        causal = isinstance(pool, WindowPool) or bool(rng.integers(4))
        made = place(pool, tokens, causal)
        assert visible(made, len(tokens)) == expected(pool, made, tokens, causal)
        kinds.add((made.causal, made.mask(0) is None, len(made._seen.start) > 2))
        assert not made.blind
        assert made.raw == (name == "raw")
        for layer in range(2):
            k, v = made.read(layer)
            assert k.dtype == v.dtype == torch.float32
            seen = read_keys(pool.cells, pool.rows, layer, made._index)
            assert np.array_equal(k.numpy(), seen) or (made.raw and made._seen.deltas is None)
            assert np.array_equal(v.numpy(), pool.rows.values.parts[layer].read(made._index))
        if round_ % 3 == 2:
            seq = int(rng.integers(3))
            pool.cells.seq_add(seq, 0, -1, 2 if round_ % 2 else -1)
            last[seq] = pool.cells.seq_pos_max(seq)
        if round_ % 5 == 4:
            pool.cells.seq_rm(int(rng.integers(3)), 0, -1)
            pool.cells.seq_rm(-1, 9, -1)
            pool.cells.seq_rm(0, 5, 7)
            pool.cells.seq_cp(0, 1, 0, 3)
            last = [pool.cells.seq_pos_max(s) for s in range(3)]
    assert len(kinds) >= 3
    assert isinstance(made, WindowTensors) == isinstance(pool, WindowPool)


def test_one_text_is_read_in_order_without_a_mask() -> None:
    pool = pools()["cells"]
    made = place(pool, [(0, 0), (1, 0), (2, 0)])
    assert (made.causal, made.mask(0), made.n) == (True, None, 3)
    made = place(pool, [(3, 0)])
    assert (made.causal, made.mask(0), made.n) == (False, None, 4)
    made = place(pool, [(4, 0), (5, 0)])
    assert made.mask(1) is made.mask(0)
    assert made.mask(0).tolist() == [[0.0] * 5 + [-torch.inf], [0.0] * 6]  # type: ignore[union-attr]
    window = pools()["window 4 0 False"]
    made = place(window, [(i, 0) for i in range(4)])
    assert (made.causal, made.mask(0)) == (True, None)
    window.cells.seq_rm(0, 0, -1)
    made = place(window, [(i, 0) for i in range(5)])
    assert not made.causal
    mask = made.mask(0)
    assert mask is not None
    assert (mask[4] == 0).tolist() == [False, True, True, True, True]


def test_a_token_that_sees_nothing() -> None:
    pool = pools()["cells"]
    place(pool, [(5, 0)])
    part: Any = pool.place(
        np.array([3], np.int32), np.array([1], np.int32), np.array([[1]], np.uint64)
    )
    made: CellTensors = part.tensors()
    assert (made.blind, made.n) == (True, 0)


def test_the_same_numbers_of_cells_in_other_lists_are_no_triangle() -> None:
    pool = pools()["cells"]
    place(pool, [(0, 1)])
    tokens = [(0, 0), (1, 1)]
    made = place(pool, tokens)  # one sees a cell, and the other one two, as in a text of two tokens
    assert (made._seen.counts.tolist(), made.causal) == ([1, 2], False)
    assert visible(made, 2) == expected(pool, made, tokens, True)
    pool = pools()["cells"]
    made = place(pool, [(i, 0) for i in range(3)], causal=False)
    assert (made.causal, made.mask(0), made.n) == (False, None, 3)


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("split", [False, True])
def test_a_rotation_in_place_leaves_what_is_stored(kind: str, split: bool) -> None:
    """A rotation may overwrite the keys that it gets, and these may be a view of the cache."""

    def rotate(layer: int, keys: Any, deltas: Any) -> Any:
        keys += torch.as_tensor(deltas)[:, None, None] if isinstance(keys, torch.Tensor) else 0
        return keys

    shape = LayerShape(1, 32, 32)
    cache = KVCache([shape], 16, n_seq_max=2, type_k=kind, type_v="f32", rotate=rotate)
    cells = np.array([0, 2, 3] if split else [0, 1, 2])
    owners = np.ones((3, 1), np.uint64)
    cache.cells.put(cells, np.arange(3, dtype=np.int32), owners)
    cache.key_positions[cells] = range(3)
    cache.keys.parts[0].write(cells, np.ones((3, 1, 32), np.float32))
    cache.seq_add(0, 0, -1, 2)
    stored = cache.keys.parts[0].bytes_of(cells)
    with cache.step() as step:
        part = step.place(np.array([5], np.int32), np.zeros(1, np.int32), owners[:1])
        made: CellTensors = part.tensors()
        for _ in range(2):
            k = made.read(0)[0][:3]
            assert k.dtype == torch.float32
            assert (k - 3).abs().max() < 0.01
        assert np.array_equal(cache.keys.parts[0].bytes_of(cells), stored)
