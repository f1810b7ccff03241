"""How GGUF and safetensors files store numbers: block sizes, dequantisation, tests for NaN.

Sizes and layouts are those of ggml's ``block_*`` structures (ggml-common.h).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aleator._native as _native
from aleator.core.errors import UnsupportedModel
from aleator.core.records import dataclass
from aleator.core.threads import pool


@dataclass(frozen=True)
class TensorType:
    """A storage type."""

    name: str  # ggml's
    id: int  # number of the ggml type
    block: int  # numbers that are stored together
    size: int  # bytes that they take
    # Offsets of a block's floating-point words: its numbers are finite if and only if these words are
    exponents: tuple[int, ...] = (0,)
    width: int = 2  # bytes of such a word
    mask: int = 0x7C00  # its exponent bits


TENSOR_TYPES: dict[str, TensorType] = {
    t.name: t
    for t in (
        TensorType("F32", 0, 1, 4, width=4, mask=0x7F800000),
        TensorType("F16", 1, 1, 2),
        TensorType("BF16", 30, 1, 2, mask=0x7F80),
        TensorType("Q4_0", 2, 32, 18),
        TensorType("Q4_1", 3, 32, 20, (0, 2)),
        TensorType("Q5_0", 6, 32, 22),
        TensorType("Q5_1", 7, 32, 24, (0, 2)),
        TensorType("Q8_0", 8, 32, 34),
        TensorType("Q2_K", 10, 256, 84, (80, 82)),
        TensorType("Q3_K", 11, 256, 110, (108,)),
        TensorType("Q4_K", 12, 256, 144, (0, 2)),
        TensorType("Q5_K", 13, 256, 176, (0, 2)),
        TensorType("Q6_K", 14, 256, 210, (208,)),
        TensorType("IQ4_NL", 20, 32, 18),
        TensorType("IQ4_XS", 23, 256, 136),
        # The scale is 2^(byte - 128), its largest multiple 12: values from 252 on count as damage.
        TensorType("MXFP4", 39, 32, 17, width=1, mask=0xFC),
        TensorType("IQ2_XXS", 16, 256, 66),
        TensorType("IQ2_XS", 17, 256, 74),
        TensorType("IQ2_S", 22, 256, 82),
        TensorType("IQ3_XXS", 18, 256, 98),
        TensorType("IQ3_S", 21, 256, 110),
        TensorType("IQ1_S", 19, 256, 50),
        # Its scale is the highest four bits of four words; the exponent is in the last two.
        TensorType("IQ1_M", 29, 256, 56, (52,), width=4, mask=0x7000C000),
        TensorType("TQ1_0", 34, 256, 54, (52,)),
        TensorType("TQ2_0", 35, 256, 66, (64,)),
    )
}
BY_ID = {t.id: t for t in TENSOR_TYPES.values()}
FLOAT_TYPES = ("F32", "F16", "BF16")
"""Single numbers."""
SCALED_TYPES = {
    name: TensorType(name, -1, 64, size, width=4, mask=0x7F800000)
    for name, size in (("F8_E4M3", 68), ("NF4", 36))
}
"""Floats that share a float32, which comes first; GGUF files do not have these types."""
_READ_AT_ONCE = 1 << 22
"""Numbers that are read at a time: bounds the memory needed besides the result."""

# ggml's types that no kernel here reads, by their numbers (ggml.h).
_OTHER_TYPES = {
    **{9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
    **{40: "NVFP4", 41: "Q1_0", 42: "Q2_0"},
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as its file stores it."""

    type: str  # name of its storage type
    shape: tuple[int, ...]  # in PyTorch's order, rows first
    # uint8 ``[number of bytes]``, rows one after the other; read-only, mostly a memory map
    data: NDArray[np.uint8]
    # int32: of matrices in blocks, the place of each stored column in the rows of ``floats``; None: its own
    order: NDArray[np.int32] | None = None

    @staticmethod
    def of(values: NDArray[np.float32]) -> StoredTensor:
        """A float32 array as if a file stored it."""
        return frozen("F32", values.shape, np.ascontiguousarray(values, np.float32))

    def moved(self, move: Callable[[NDArray[Any]], NDArray[Any]]) -> StoredTensor:
        """The tensor with its numbers elsewhere, a copy: in the same type, or in F32 if that has blocks.

        One with an ``order`` is in F16, see :meth:`in_order`.

        ``move`` takes and returns an array of numbers of the type's size, whose values mean nothing.
        """
        if self.type not in FLOAT_TYPES:
            made = StoredTensor.of(self.floats()) if self.order is None else self.in_order()
            return made.moved(move)
        kind = np.uint32 if self.type == "F32" else np.uint16
        numbers = np.ascontiguousarray(move(self.data.view(kind).reshape(self.shape)))
        return frozen(self.type, numbers.shape, numbers)

    def moved_rows(self, move: Callable[[NDArray[Any]], NDArray[Any]]) -> StoredTensor:
        """The tensor with its rows elsewhere, a copy in the same type.

        ``move`` takes and returns an array whose elements are the rows; a vector's are its numbers.
        """
        lead = self.shape[:-1] or self.shape
        size = self.data.size // math.prod(lead)
        made = np.ascontiguousarray(move(self.data.view(f"V{size}").reshape(lead)))
        return frozen(self.type, (*made.shape, *self.shape[len(lead) :]), made, self.order)

    def in_order(self) -> StoredTensor:
        """The tensor without an ``order``: as it is, or in F16."""
        if self.order is None:
            return self
        made = np.empty(self.shape, np.float16)
        for first, part in self.pieces():
            with np.errstate(over="ignore"):  # FiniteCheck finds them
                made[first : first + len(part)] = part
        return frozen("F16", self.shape, made)

    @property
    def n_elements(self) -> int:
        """How many numbers the tensor holds."""
        return math.prod(self.shape)

    def first_nonfinite(self, first: int = 0, most: int | None = None) -> tuple[int | None, int]:
        """Find the first block with a NaN or an infinity in about ``most`` bytes, from a block's first on.

        Return the index of its first element, row-major, or None; and the byte where the search ended.  The
        stored bytes are read once, at about the speed of memory.
        """
        kind = TENSOR_TYPES.get(self.type) or SCALED_TYPES[self.type]
        end = self.data.size
        if most is not None:
            end = min(end, first + -(-most // kind.size) * kind.size)
        part = self.data[first:end]
        hits = [
            _native.find_nonfinite(part, offset, kind.size, kind.width, kind.mask)
            for offset in kind.exponents
        ]
        blocks = [hit for hit in hits if hit >= 0]
        index = (first // kind.size + min(blocks)) * kind.block if blocks else None
        return index, end

    def floats(self) -> NDArray[np.float32]:
        """The tensor's numbers as float32, a new array of this shape."""
        if self.type == "F32":  # mostly norms, for which waking threads takes longer than copying
            return self.data.view(np.float32).reshape(self.shape).copy()
        made = np.empty((self.n_elements // self.shape[-1], self.shape[-1]), np.float32)
        for first, part in self.pieces():
            made[first : first + len(part)] = part
        return made.reshape(self.shape)

    def pieces(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Rows of the tensor as float32, some at a time.

        Yields:
            Number of the first row, and rows [n, last dimension].
        """
        columns = self.shape[-1]
        rows = self.n_elements // columns
        stored = _native.StoredMatrix(self.data, self.type, rows, columns, None)
        step = max(1, _READ_AT_ONCE // columns)
        for first in range(0, rows, step):
            index = np.arange(first, min(first + step, rows))
            part = np.empty((len(index), columns), np.float32)
            _native.read_rows(pool(), stored, index, part)
            if self.order is not None:
                part[:, self.order] = part.copy()
            yield first, part


def frozen(
    kind: str, shape: tuple[int, ...], data: NDArray[Any], order: NDArray[np.int32] | None = None
) -> StoredTensor:
    """A tensor of bytes that are in memory, read-only, as is its order: native code checks it once."""
    made = data.reshape(-1).view(np.uint8)
    for each in (made, order):
        if each is not None:
            each.flags.writeable = False
    return StoredTensor(kind, shape, made, order)


def unsupported_type(path: object, tensor: str, type_id: int) -> UnsupportedModel:
    """The error for a tensor whose ggml type is not in :data:`TENSOR_TYPES`."""
    name = _OTHER_TYPES.get(type_id, f"number {type_id}")
    return UnsupportedModel(
        f"{path}: tensor {tensor!r} has the type {name}, which is not supported; supported are "
        f"{', '.join(TENSOR_TYPES)}"
    )
