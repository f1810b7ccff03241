"""Keys whose cells have moved: rotated when they are read, or in place.

Rotations compose: the key at position p + d is the key at p rotated by d more.  A shift only moves the
cell's position; :attr:`Rows.key_positions` says what the stored key is rotated to.  Attention makes up
for the difference d: the native step rotates the query back by d, once per distinct d; the torch layers
turn the keys they read.  So a shift writes nothing, +3 and -3 cancel exactly, and however many shifts
follow each other, the stored bytes stay those that were first rounded.

Only where the d are many (``seq_div``, or a window that moves at every token) are the rows rewritten:
from float32, each once, by the whole d.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from aleator._native import Cells
from aleator.cache.journal import Journal
from aleator.cache.rows.rows import CellIndex, Rows

MAX_DISTANCES = 64
"""Distinct distances above which stored keys are rewritten."""

CHUNK_BYTES = 1 << 26
"""About how much float32 is rotated at once."""


def behind(cells: Cells, rows: Rows) -> CellIndex:
    """Cells whose stored key is not at the cell's position, int64 [n]."""
    top = cells.top
    positions = cells.positions[:top]
    return np.flatnonzero((positions >= 0) & (positions != rows.key_positions[:top]))


def settle(journal: Journal, cells: Cells, rows: Rows) -> None:
    """Do what must be done about shifts before decoding."""
    if not cells.has_shift:
        return
    if rows.k_storage != "raw":
        moved = behind(cells, rows)
        distances = cells.positions[moved] - rows.key_positions[moved]
        if len(np.unique(distances)) > MAX_DISTANCES:
            rewrite(journal, cells, rows, moved)
    cells.clear_shifts()


def rewrite(journal: Journal, cells: Cells, rows: Rows, moved: CellIndex) -> None:
    """Rotate the stored keys of the cells ``moved`` to their positions."""
    positions = rows.key_positions
    journal.undo(positions.__setitem__, moved, positions[moved])
    for layers, index, rotated in _rotated(cells, rows, moved):
        for i, layer in enumerate(layers):
            journal.undo(*rows.keys.put_back(layer, index))
            rows.keys.write(layer, index, rotated[:, i])
    positions[moved] = cells.positions[moved]


def read_keys(cells: Cells, rows: Rows, layer: int, index: CellIndex) -> torch.Tensor:
    """A layer's keys of some cells at the cells' positions, float32 [n, heads, dim]."""
    on_device = torch.from_numpy(index).to(rows.devices[layer])
    keys = rows.keys.read(layer, on_device).float()
    if rows.rotate is None:
        return keys
    return rows.rotate(layer, keys, _distances(cells, rows, index).to(keys.device))


def _distances(cells: Cells, rows: Rows, index: CellIndex) -> torch.Tensor:
    moved = cells.positions[index] - rows.key_positions[index]
    return torch.from_numpy(moved.astype(np.int64))


def _rotated(
    cells: Cells, rows: Rows, moved: CellIndex
) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
    """Layers of one shape, device and rotation together: (layers, cells, keys [n, layers, G, D])."""
    if rows.rotate is None:  # seq_add and seq_div refuse
        return
    groups: dict[object, list[int]] = {}
    for layer, shape in enumerate(rows.shapes):
        same = (shape.kv_heads, shape.head_dim, shape.rope, rows.devices[layer])
        groups.setdefault(same, []).append(layer)
    for layers in groups.values():
        shape, device = rows.shapes[layers[0]], rows.devices[layers[0]]
        per_cell = len(layers) * shape.kv_heads * shape.head_dim * 4
        step = max(1, CHUNK_BYTES // per_cell)
        for start in range(0, len(moved), step):
            part = moved[start : start + step]
            index = torch.from_numpy(part).to(device)
            keys = torch.stack([rows.keys.read(i, index).float() for i in layers], 1)
            flat = keys.view(len(part), -1, shape.head_dim)
            rotated = rows.rotate(layers[0], flat, _distances(cells, rows, part).to(device))
            yield layers, index, rotated.view(keys.shape)
