"""Keys, values and states in the host's memory, as NumPy arrays that native code reads and writes in place.

Blocks may be rotated by a Hadamard matrix first.  A block's scale follows from its largest element.  Where one
channel is much larger than the others, as in keys, these lose most of their bits; the matrix spreads it over
its block.  The matrix is its own inverse, so reading rotates back; native attention rotates the query instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import aleator._native as _native
from aleator.cache.storage.layer import Bytes, Cells, LayerFormat, LayerStorage, StateArrays
from aleator.cache.storage.types import StorageType
from aleator.core.threads import pool

Array = npt.NDArray[Any]
ALIGNMENT = 64
"""Where arrays begin, in bytes: at a line of the processor's cache."""


def zeros(n_bytes: int) -> Bytes:
    """Bytes set to 0, or MemoryError; memory is taken as they are first used."""
    try:
        data = np.zeros(n_bytes + ALIGNMENT - 1, np.uint8)
    except ValueError as error:  # more than can be counted
        raise MemoryError(str(error)) from None
    start = -data.ctypes.data % ALIGNMENT
    return data[start : start + n_bytes]


def encoded_rows(type_: StorageType, rotation: int, x: npt.NDArray[np.float32]) -> Bytes:
    """Rows float32 [n, width] as a type stores them, uint8 [n, bytes of a row]."""
    made = np.empty((len(x), type_.bytes(x.shape[1])), np.uint8)
    _native.store_rows(pool(), type_.native, rotation, x, made, np.arange(len(x)))
    return made


class HostLayer(LayerStorage[Array]):
    """Keys or values of one layer on the CPU."""

    def __init__(self, format: LayerFormat) -> None:
        super().__init__(format)
        self.bytes, element = zeros(self.nbytes), format.type.element
        flat = self.bytes if element is None else self.bytes.view(element)
        self.data: Array = flat.reshape(self.taken_shape(format.n_cells))

    @property
    def address(self) -> int:
        return self.bytes.ctypes.data

    @property
    def rows(self) -> Bytes | None:
        return None if self.by_channel else self.bytes.reshape(self.n_cells, -1)

    def write(self, cells: Cells, rows: Array) -> None:
        if not self.dim:  # of a model whose values are part of its keys
            return
        own = self.rows
        if own is None:
            elements = self.encoded(rows).view(self.data.dtype)
            self.put_bytes(cells, np.ascontiguousarray(elements.T).view(np.uint8))
        else:
            x = np.ascontiguousarray(rows, np.float32).reshape(len(rows), -1)
            _native.store_rows(pool(), self.type.native, self.rotation, x, own, cells)

    def read(self, cells: Cells) -> Array:
        if not self.dim:
            return np.empty((len(cells), self.heads, 0), np.float32)
        own = self.rows
        if own is None:
            own = np.ascontiguousarray(np.moveaxis(self.take(cells), -1, 0)).view(np.uint8)
            own, cells = own.reshape(len(cells), self.row_bytes), np.arange(len(cells))
        made = np.empty((len(cells), self.heads * self.dim), np.float32)
        _native.load_rows(pool(), self.type.native, self.rotation, own, cells, made)
        return made.reshape(len(cells), self.heads, self.dim)

    @staticmethod
    def joined(rows: Sequence[Array]) -> Array:
        return np.concatenate(rows, 1)

    def take(self, cells: Cells) -> Array:
        return self.data.take(cells, self.axis)

    def put(self, cells: Cells, taken: Array) -> None:
        self.data[self._at(cells)] = taken

    def put_back(self, cells: Cells) -> tuple[Any, ...]:
        return self.data.__setitem__, self._at(cells), self.take(cells)

    def encoded(self, rows: Array) -> Bytes:
        x = np.ascontiguousarray(rows, np.float32).reshape(len(rows), -1)
        return encoded_rows(self.type, self.rotation, x)

    def bytes_of(self, cells: Cells) -> Bytes:
        rows = self.heads * self.dim if self.by_channel else len(cells)
        flat: Bytes = self.take(cells).reshape(-1).view(np.uint8)
        return flat.reshape(rows, -1)

    def put_bytes(self, cells: Cells, data: Bytes) -> None:
        flat = np.ascontiguousarray(data).reshape(-1).view(self.data.dtype)
        self.put(cells, flat.reshape(self.taken_shape(len(cells))))

    def zero(self, cells: Cells | None = None) -> None:
        if cells is None:
            self.data.fill(0)
        else:
            self.data[self._at(cells)] = 0

    def _at(self, cells: Cells) -> tuple[Any, ...]:
        return (..., cells) if self.by_channel else (cells,)


class HostStates(StateArrays[Array]):
    """Recurrent states on the CPU."""

    def zeros(self, shape: Sequence[int]) -> Array:
        return zeros(4 * int(np.prod(shape, dtype=np.int64))).view(np.float32).reshape(shape)

    def row(self, array: Array, row: int) -> Array:
        copy: Array = array[row].copy()
        return copy

    def zero(self, array: Array, rows: Sequence[int]) -> None:
        array[list(rows)] = 0

    def host(self, array: Array, rows: Sequence[int]) -> npt.NDArray[np.float32]:
        taken: npt.NDArray[np.float32] = array[list(rows)]
        return taken

    def of_host(self, values: npt.NDArray[np.float32]) -> Array:
        return values

    def address(self, array: Array) -> int:
        return array.ctypes.data
