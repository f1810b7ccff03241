"""What the cells of one pool store, which of them tokens see, and keys whose cells have moved.

Rotations compose: the key at position p + d is the key at p rotated by d more.  A shift only moves the
cell's position; :attr:`Rows.key_positions` holds the position that the stored key is rotated to.  Attention
corrects for the difference d: the native step rotates the query back by d, once per distinct d; the torch
layers rotate the keys that they read.  So a shift writes nothing, +3 and -3 cancel exactly, and the stored
bytes stay those that were first rounded, however many shifts follow.

Rows are rewritten only if there are many distinct d (``seq_div``, or a window that moves at every token): each
once, in float32, by the whole d.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from aleator._native import Cells, StoredRows
from aleator.cache.devices import Device
from aleator.cache.journal import Journal
from aleator.cache.options import CacheOptions
from aleator.cache.storage.storage import Storage, side_bytes
from aleator.core.arrays import Bytes, Int32s, Int64s
from aleator.core.records import dataclass

RotateKeys = Callable[[int, Any, Any], Any]
"""``rotate(layer, keys, deltas)`` rotates float32 keys [n, G, D], of any number of heads, by int64 [n]
positions; it may overwrite the keys.  Keys are NumPy arrays if the cache is on the CPU, else torch tensors;
torch layers always pass tensors.  Positions are NumPy arrays or torch tensors."""


def unbroken(index: Int64s) -> slice | None:
    """Return indices that ascend without gaps as a slice, which is read without a copy; else None."""
    n = len(index)
    if n == 0 or index[-1] - index[0] != n - 1 or (np.diff(index) != 1).any():
        return None
    return slice(int(index[0]), int(index[0]) + n)


@dataclass(frozen=True)
class LayerShape:
    """What a layer stores per cell: ``kv_heads`` keys of ``head_dim``, values of ``head_dim_v``.

    With a ``head_dim_v`` of 0, values are part of the keys.
    Layers whose keys are rotated in the same way have the same number ``rope``.
    """

    kv_heads: int
    head_dim: int
    head_dim_v: int
    rope: int = 0


def bytes_for(
    layers: Sequence[LayerShape],
    n_cells: int,
    type_k: str = CacheOptions.type_k,
    type_v: str = CacheOptions.type_v,
) -> tuple[int, int]:
    """Bytes that K and V will take, without allocating them."""
    return (
        side_bytes("type_k", type_k, [(s.kv_heads, s.head_dim) for s in layers], n_cells),
        side_bytes("type_v", type_v, [(s.kv_heads, s.head_dim_v) for s in layers], n_cells),
    )


class Seen(NamedTuple):
    """Which cells T tokens attend to: lists in order of position; a token sees a prefix of one list.

    Attributes:
        cells: int32, the lists one after the other.
        start: int64, where each list begins, and where the last ends.
        list: int32 [T], each token's list.
        counts: int64 [T], the number of cells of its list that the token sees.
        deltas: int32, how far the stored keys of listed cells lag behind them; None: nowhere.
    """

    cells: Int32s
    start: Int64s
    list: Int32s
    counts: Int64s
    deltas: Int32s | None


class Rows:
    """Keys and values of ``n_cells`` cells, in every layer, with arguments of :class:`aleator.cache.KVCache`.

    Attributes:
        parts: the storage of every layer's keys, then of every layer's values.
        key_positions: int32 [n_cells], the position that a cell's stored key is rotated to.  After a shift it
            lags behind the cell's position, and attention corrects for the difference.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        n_cells: int,
        devices: Sequence[Device],
        *,
        type_k: str,
        type_v: str,
        v_layout: str,
        k_storage: str,
        hadamard: bool,
        rotate: RotateKeys | None,
    ) -> None:
        self.shapes, self.devices = list(layers), list(devices)
        self.k_storage, self.rotate = k_storage, rotate
        keys = [(s.kv_heads, s.head_dim) for s in layers]
        self.keys = Storage("type_k", type_k, keys, n_cells, devices, keys=True, hadamard=hadamard)
        values = [(s.kv_heads, s.head_dim_v) for s in layers]
        self.values = Storage(
            "type_v", type_v, values, n_cells, devices, layout=v_layout, hadamard=hadamard
        )
        self.parts = [*self.keys.parts, *self.values.parts]
        self.key_positions = np.zeros(n_cells, np.int32)

    @cached_property
    def _stored(self) -> StoredRows | None:
        """Copies cells in all layers at once; None if that is not possible."""
        keys, values = self.keys.rows(), self.values.rows()
        return StoredRows([*keys, *values]) if keys and values else None

    def preserve(self, journal: Journal, cells: Int64s) -> None:
        """Restore what these cells store now if the frame is undone."""
        stored = self._stored
        journal.undo(self.key_positions.__setitem__, cells, self.key_positions[cells])
        if stored is not None:
            journal.undo(stored.put, cells, stored.take(cells))
            return
        for part in self.parts:
            journal.undo(*part.put_back(cells))

    @cached_property
    def row_bytes(self) -> int:
        """Bytes that one cell stores in all layers."""
        return sum(part.row_bytes for part in self.parts)

    def taken(self, cells: Int64s) -> Bytes:
        """A copy of what some cells store, one layer after the other, keys first."""
        if self._stored is not None:
            return self._stored.take(cells)
        parts = [part.bytes_of(cells).ravel() for part in self.parts]
        return np.concatenate(parts or [np.empty(0, np.uint8)])  # all layers may have windows

    def put(self, cells: Int64s, taken: Bytes, first: int = 0) -> None:
        """Store in ``cells`` what :meth:`taken` returned, from the cell at its index ``first`` on."""
        if self._stored is not None:
            self._stored.put(cells, taken, first)
            return
        if len(taken) == 0:
            return
        n, at = len(taken) // self.row_bytes, 0
        for part in self.parts:
            rows = taken[at : at + n * part.row_bytes]
            at += len(rows)
            size = part.type.block_bytes if part.by_channel else part.row_bytes
            if size:
                each = rows.reshape(-1, n, size)[:, first : first + len(cells)]
                part.put_bytes(cells, np.ascontiguousarray(each))

    def copy(self, src: Int64s, dst: Int64s) -> None:
        """Copy what the cells ``src`` store to ``dst``, as if all were read before any is written."""
        for part in self.parts:
            part.put(dst, part.take(src))
        self.key_positions[dst] = self.key_positions[src]

    def zero(self, cells: Int64s) -> None:
        """Zero what these cells store; zeroing all cells is cheaper."""
        whole = len(cells) == len(self.key_positions)
        for part in self.parts:
            part.zero(None if whole else cells)


MAX_DISTANCES = 64
"""Number of distinct distances above which stored keys are rewritten."""

CHUNK_BYTES = 1 << 26
"""Approximate bytes of float32 that are rotated at once."""


def behind(cells: Cells, rows: Rows) -> Int64s:
    """Cells whose stored key is not at the cell's position, int64 [n]."""
    top = cells.top
    positions = cells.positions[:top]
    return np.flatnonzero((positions >= 0) & (positions != rows.key_positions[:top]))


def settle(journal: Journal, cells: Cells, rows: Rows) -> None:
    """Clear pending shifts before decoding; rewrite the keys if their distances are too many."""
    if not cells.has_shift:
        return
    if rows.k_storage != "raw":
        moved = behind(cells, rows)
        if len(np.unique(lags(cells, rows, moved))) > MAX_DISTANCES:
            rewrite(journal, cells, rows, moved)
    cells.clear_shifts()


def rewrite(journal: Journal, cells: Cells, rows: Rows, moved: Int64s) -> None:
    """Rotate the stored keys of the cells ``moved`` to their positions.

    Layers of one shape, device and rotation are rotated together, as keys [n, layers * G, D].
    """
    positions, rotate = rows.key_positions, rows.rotate
    if rotate is None:  # seq_add and seq_div refuse
        return
    journal.undo(positions.__setitem__, moved, positions[moved])
    groups: dict[object, list[int]] = {}
    for layer, shape in enumerate(rows.shapes):
        same = (shape.kv_heads, shape.head_dim, shape.rope, rows.devices[layer])
        groups.setdefault(same, []).append(layer)
    for layers in groups.values():
        first, parts = layers[0], [rows.keys.parts[layer] for layer in layers]
        heads = parts[0].heads
        step = max(1, CHUNK_BYTES // (len(layers) * heads * parts[0].dim * 4))
        for start in range(0, len(moved), step):
            some = moved[start : start + step]
            keys = parts[0].joined([part.read(some) for part in parts])
            rotated = rotate(first, keys, lags(cells, rows, some))
            for i, part in enumerate(parts):
                journal.undo(*part.put_back(some))
                part.write(some, rotated[:, i * heads : (i + 1) * heads])
    positions[moved] = cells.positions[moved]


def read_keys(cells: Cells, rows: Rows, layer: int, index: Int64s) -> Any:
    """A layer's keys of some cells at the cells' positions, float32 [n, heads, dim]."""
    keys = rows.keys.parts[layer].read(index)
    if rows.rotate is None:
        return keys
    return rows.rotate(layer, keys, lags(cells, rows, index))


def lags(cells: Cells, rows: Rows, index: Int64s) -> Int64s:
    """How far the stored keys of some cells lag behind their positions, int64 [n]."""
    return (cells.positions[index] - rows.key_positions[index]).astype(np.int64)
