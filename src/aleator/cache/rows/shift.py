"""Keys whose cells have moved: rotated when they are read, or in place.

Rotations compose: the key at position p + d is the key at p rotated by d more.  A shift only moves the
cell's position; :attr:`Rows.key_positions` says what the stored key is rotated to.  Attention makes up
for the difference d: the native step rotates the query back by d, once per distinct d; the torch layers
rotate the keys they read.  So a shift writes nothing, +3 and -3 cancel exactly, and however many shifts
follow each other, the stored bytes stay those that were first rounded.

Only where the d are many (``seq_div``, or a window that moves at every token) are the rows rewritten:
from float32, each once, by the whole d.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

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
    for layers, part, rotated in _rotated(cells, rows, moved):
        heads = rows.shapes[layers[0]].kv_heads
        for i, layer in enumerate(layers):
            journal.undo(*rows.keys.parts[layer].put_back(part))
            rows.keys.parts[layer].write(part, rotated[:, i * heads : (i + 1) * heads])
    positions[moved] = cells.positions[moved]


def read_keys(cells: Cells, rows: Rows, layer: int, index: CellIndex) -> Any:
    """A layer's keys of some cells at the cells' positions, float32 [n, heads, dim]."""
    keys = rows.keys.parts[layer].read(index)
    if rows.rotate is None:
        return keys
    return rows.rotate(layer, keys, _distances(cells, rows, index))


def _distances(cells: Cells, rows: Rows, index: CellIndex) -> CellIndex:
    moved = cells.positions[index] - rows.key_positions[index]
    return moved.astype(np.int64)


def _rotated(
    cells: Cells, rows: Rows, moved: CellIndex
) -> Iterator[tuple[list[int], CellIndex, Any]]:
    """Layers of one shape, device and rotation together: (layers, cells, keys [n, layers * G, D])."""
    if rows.rotate is None:  # seq_add and seq_div refuse
        return
    groups: dict[object, list[int]] = {}
    for layer, shape in enumerate(rows.shapes):
        same = (shape.kv_heads, shape.head_dim, shape.rope, rows.devices[layer])
        groups.setdefault(same, []).append(layer)
    for layers in groups.values():
        shape = rows.shapes[layers[0]]
        step = max(1, CHUNK_BYTES // (len(layers) * shape.kv_heads * shape.head_dim * 4))
        parts = [rows.keys.parts[i] for i in layers]
        for start in range(0, len(moved), step):
            part = moved[start : start + step]
            keys = parts[0].joined([each.read(part) for each in parts])
            yield layers, part, rows.rotate(layers[0], keys, _distances(cells, rows, part))
