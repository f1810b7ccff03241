"""Keys whose cells have moved: turned when they are read, or in place.

Rotations compose: the key at position p + d is the key at p turned by d more.  A shift only moves the
cell's position; ``KVCache.key_positions`` says what the stored key is turned to.  Attention makes up
for the difference d: the native step turns the query back by d, once per distinct d; the torch layers
turn the keys they read.  So a shift writes nothing, +3 and -3 cancel exactly, and however many shifts
follow each other, the stored bytes stay those that were first rounded.

Only where the d are many (``seq_div``, or a window that moves at every token) are the rows rewritten:
from float32, each once, by the whole d.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from aleator.cache.kv_cache import KVCache

MAX_DISTANCES = 64
"""Distinct distances above which stored keys are rewritten."""

CHUNK_BYTES = 1 << 26
"""About how much float32 is turned at once."""

Cells = npt.NDArray[np.int64]


def behind(cache: KVCache) -> Cells:
    """Cells whose stored key is not at the cell's position."""
    top = cache.cells.top
    positions = cache.cells.positions[:top]
    return np.flatnonzero((positions >= 0) & (positions != cache.key_positions[:top]))


def settle(cache: KVCache) -> None:
    """Within a frame, do what must be done about shifts before decoding."""
    if cache.k_storage == "raw":
        return
    cells = behind(cache)
    distances = cache.cells.positions[cells] - cache.key_positions[cells]
    if len(np.unique(distances)) > MAX_DISTANCES:
        rewrite(cache, cells)


def rewrite(cache: KVCache, cells: Cells) -> None:
    """Within a frame, turn the stored keys of these cells to their positions."""
    undo, positions = cache.journal.undo, cache.key_positions
    undo(positions.__setitem__, cells, positions[cells])
    for layers, index, turned in _turned(cache, cells):
        for i, layer in enumerate(layers):
            undo(*cache.keys.put_back(layer, index))
            cache.keys.write(layer, index, turned[:, i])
    positions[cells] = cache.cells.positions[cells]


def turned_keys(cache: KVCache, layer: int, cells: Cells) -> torch.Tensor:
    """A layer's keys of these cells at the cells' positions, float32 [n, heads, dim]."""
    index = torch.from_numpy(cells).to(cache.devices[layer])
    keys = cache.keys.read(layer, index).float()
    if cache.rotate is None:
        return keys
    return cache.rotate(layer, keys, _distances(cache, cells).to(keys.device))


def _distances(cache: KVCache, cells: Cells) -> torch.Tensor:
    return torch.from_numpy(
        (cache.cells.positions[cells] - cache.key_positions[cells]).astype(np.int64)
    )


def _turned(cache: KVCache, cells: Cells) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
    """Layers with the same shape, device and rotation together: (layers, cells, [n, layers, G, D])."""
    assert cache.rotate is not None  # noqa: S101  seq_add and seq_div refuse otherwise
    groups: dict[object, list[int]] = {}
    for layer, shape in enumerate(cache.shapes):
        same = (shape.kv_heads, shape.head_dim, shape.rope, cache.devices[layer])
        groups.setdefault(same, []).append(layer)
    for layers in groups.values():
        shape, device = cache.shapes[layers[0]], cache.devices[layers[0]]
        per_cell = len(layers) * shape.kv_heads * shape.head_dim * 4
        step = max(1, CHUNK_BYTES // per_cell)
        for start in range(0, len(cells), step):
            part = cells[start : start + step]
            index = torch.from_numpy(part).to(device)
            keys = torch.stack([cache.keys.read(i, index).float() for i in layers], 1)
            flat = keys.view(len(part), -1, shape.head_dim)
            turned = cache.rotate(layers[0], flat, _distances(cache, part).to(device))
            yield layers, index, turned.view(keys.shape)
