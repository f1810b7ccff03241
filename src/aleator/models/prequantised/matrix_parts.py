"""One matrix of the several tensors that stand for it: codes, scales, zeros.

Here are its parts by their names, and the stored types that have the same numbers (docs/numerics.md, part 2):
four bits with zeros become Q4_0 or Q5_0, eight bits Q8_0, floats with scales F8_E4M3, NF4 or MXFP4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aleator.core.arrays import Bytes, Floats, Int32s, Int64s
from aleator.core.errors import FileFormatError
from aleator.core.records import dataclass
from aleator.models.files.fields import MAX_WIDTH, Fields
from aleator.models.files.tensor_types import FLOAT_TYPES, StoredTensor, frozen

Steps = NDArray[np.int8] | NDArray[np.int16]

_AT_ONCE = 1 << 22
"""Numbers that are taken apart at a time."""


@dataclass(frozen=True)
class Packed:
    """A matrix that several tensors stand for."""

    shape: tuple[int, ...]  # as the architecture asks for it
    make: Callable[[], StoredTensor]  # reads them


class Parts:
    """The tensors that stand for one matrix, by the ends of their names."""

    def __init__(
        self, stem: str, codes: Path, found: Mapping[str, tuple[Path, StoredTensor]]
    ) -> None:
        self.stem, self._codes, self._found = stem, codes, found

    def __contains__(self, end: object) -> bool:
        return f"{self.stem}{end}" in self._found

    def error(self, end: str, message: str) -> FileFormatError:
        """The error to raise about a tensor."""
        name = self.stem + end
        return FileFormatError(self.file(end), f"the tensor {name!r} {message}", field=name)

    def file(self, end: str) -> Path:
        """The file of a tensor; if it is missing, that of the codes."""
        return self._found[self.stem + end][0] if end in self else self._codes

    def tensor(
        self, end: str, kinds: tuple[str, ...], shape: tuple[int | None, ...] | None = None
    ) -> StoredTensor:
        """A tensor of one of these types and of this shape, in which None is any size."""
        if end not in self:
            raise self.error(end, "is missing: without it the matrix has no numbers")
        made = self._found[self.stem + end][1]
        if made.type not in kinds:
            raise self.error(end, f"is stored in {made.type}; it must be {' or '.join(kinds)}")
        same = shape is None or (
            len(shape) == len(made.shape)
            and all(n in (None, size) for n, size in zip(shape, made.shape, strict=True))
        )
        if not same:
            wanted = ["any" if n is None else n for n in shape or ()]
            raise self.error(end, f"is of shape {list(made.shape)}; it must be {wanted}")
        return made

    def float8(self, end: str) -> Bytes:
        """The codes of a tensor of FP8, which must have no NaN."""
        made = array(self.tensor(end, ("F8_E4M3",)), "u1")
        if ((made & 0x7F) == 0x7F).any():
            raise self.error(end, "holds NaN: the file is damaged, or its training diverged")
        return made

    def integers(self, end: str, low: int, high: int) -> Int64s:
        """The elements of a tensor of I32 or I64, which must be in ``[low, high]``."""
        tensor = self.tensor(end, ("I32", "I64"))
        made = array(tensor, "<i4" if tensor.type == "I32" else "<i8").astype(np.int64)
        outside = made[(made < low) | (made > high)]
        if outside.size:
            raise self.error(end, f"has {outside.flat[0]}; it must be between {low} and {high}")
        return made


def two_sizes(given: Fields, key: str, listed: object) -> tuple[int, int]:
    """The rows and columns of blocks in the field ``key``, which must be two positive integers."""
    if (
        not isinstance(listed, list)
        or len(listed) != 2
        or not all(type(n) is int and 1 <= n <= MAX_WIDTH for n in listed)
    ):
        raise given.error(key, f"{key} is {listed!r:.60}; it must be two positive integers")
    return listed[0], listed[1]


def array(tensor: StoredTensor, kind: str) -> NDArray[Any]:
    """A tensor's elements, of a type of NumPy."""
    return tensor.data.view(kind).reshape(tensor.shape)


# --- four bits: pairs, whose first element is in a byte's low nibble ---


def apart(pairs: Bytes) -> Bytes:
    """[..., n / 2] pairs -> [..., n] elements."""
    return np.stack([pairs & 15, pairs >> 4], -1).reshape(*pairs.shape[:-1], -1)


def paired(codes: NDArray[Any]) -> Bytes:
    """[..., n] elements -> [..., n / 2] pairs."""
    made: Bytes = (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)
    return made


def halves(pairs: Bytes) -> Bytes:
    """[..., 16] pairs as ggml has 32 elements: the second sixteen in the high nibbles of the first."""
    made = np.empty_like(pairs)
    first, second = pairs[..., :8], pairs[..., 8:]
    made[..., ::2] = first & 15 | second << 4
    made[..., 1::2] = first >> 4 | second & 0xF0
    return made


def grouped(
    pairs: Callable[[slice], Bytes], scales: Floats, zeros: Bytes, group: Int64s
) -> StoredTensor:
    """The matrix scale * (code - zero) [n_out, n_in].

    Args:
        pairs: the codes of some rows, of a multiple of eight.
        scales: [n_out, groups].
        zeros: the same, 0 to 16.
        group: of each column.
    """
    n_out, n_in = len(scales), len(group)
    order, of = _in_order(group)
    half = _half_scales(scales, of)
    if half is None:
        return _widened(
            lambda rows: apart(pairs(rows)).astype(np.int8) - zeros[rows][:, group].astype(np.int8),
            scales,
            group,
        )
    symmetric = bool((zeros == 8).all())
    blocks = np.empty((n_out, n_in // 32, 18 if symmetric else 22), np.uint8)
    blocks[..., :2] = half[..., None].view(np.uint8)
    for rows in _some_rows(n_out, n_in):
        codes = pairs(rows)
        if order is not None:
            codes = paired(apart(codes)[:, order])
        codes = codes.reshape(-1, n_in // 32, 16)
        if not symmetric:  # code - zero + 16 has five bits
            five = apart(codes) + (16 - zeros[rows][:, of[::32], None])
            blocks[rows, :, 2:6] = np.packbits(five >> 4, -1, bitorder="little")
            codes = paired(five & 15)
        blocks[rows, :, -16:] = halves(codes)
    return frozen("Q4_0" if symmetric else "Q5_0", (n_out, n_in), blocks, order)


def of_bytes(steps: Callable[[slice], Steps], scales: Floats, group: Int64s) -> StoredTensor:
    """The matrix scale * step [n_out, n_in]: Q8_0 where all steps are of eight bits.

    Args:
        steps: those of some rows.
        scales: [n_out, groups].
        group: of each column.
    """
    n_out, n_in = len(scales), len(group)
    order, of = _in_order(group)
    half = _half_scales(scales, of)
    if half is None:
        return _widened(steps, scales, group)
    blocks = np.empty((n_out, n_in // 32, 34), np.uint8)
    blocks[..., :2] = half[..., None].view(np.uint8)
    for rows in _some_rows(n_out, n_in):
        wide = steps(rows)
        narrow = wide.astype(np.int8)
        if not np.array_equal(narrow, wide):
            return _widened(steps, scales, group)
        if order is not None:
            narrow = narrow[:, order]
        blocks[rows, :, 2:] = narrow.view(np.uint8).reshape(-1, n_in // 32, 32)
    return frozen("Q8_0", (n_out, n_in), blocks, order)


def of_integers(
    bits: int, codes: Callable[[slice], Bytes], scales: Floats, zeros: NDArray[Any], group: Int64s
) -> StoredTensor:
    """The matrix scale * (code - zero) of 4 bits, in pairs, or 8; see :func:`grouped`."""
    if bits == 4:
        return grouped(codes, scales, zeros.astype(np.uint8), group)
    less = zeros.astype(np.int16)
    return of_bytes(lambda rows: codes(rows) - less[rows][:, group], scales, group)


def _some_rows(n_out: int, n_in: int) -> list[slice]:
    """All rows of a matrix, some at a time: multiples of eight."""
    step = max(_AT_ONCE // n_in // 8, 1) * 8
    return [slice(first, min(first + step, n_out)) for first in range(0, n_out, step)]


def _in_blocks(group: Int64s) -> bool:
    """Whether columns that share a block are of one group."""
    return bool((group.reshape(-1, 32) == group[::32, None]).all())


def _in_order(group: Int64s) -> tuple[Int32s | None, Int64s]:
    """The order of columns in which alone blocks can have their groups, and these so; None: as they are."""
    if len(group) % 32 == 0 and not _in_blocks(group):
        order = np.argsort(group, kind="stable").astype(np.int32)
        if _in_blocks(group[order]):
            return order, group[order]
    return None, group


def _half_scales(scales: Floats, group: Int64s) -> NDArray[np.float16] | None:
    """Float16 scales of the blocks [n_out, n_in / 32]; None where blocks cannot have the groups or scales."""
    if len(group) % 32 or not _in_blocks(group):
        return None
    with np.errstate(over="ignore"):
        half = scales.astype(np.float16)
    return half[:, group[::32]] if np.array_equal(half.astype(np.float32), scales) else None


def _widened(steps: Callable[[slice], Steps], scales: Floats, group: Int64s) -> StoredTensor:
    """The matrix in floats.

    Groups that blocks cannot have are rounded as GPTQ's own product is, other scales not at all.
    """
    rounded = len(group) % 32 == 0 and not _in_blocks(group)
    made = np.empty((len(scales), len(group)), np.float16 if rounded else np.float32)
    for rows in _some_rows(*made.shape):
        with np.errstate(over="ignore", invalid="ignore"):  # FiniteCheck finds them
            made[rows] = scales[rows][:, group] * steps(rows)
    return frozen("F16" if rounded else "F32", made.shape, made)


# --- floats with a scale ---


def scaled(kind: str, codes: Bytes, scales: Floats) -> StoredTensor:
    """Codes [n, bytes of 64 elements] after their scales [n]: a matrix [n, 64]."""
    blocks = np.empty((len(codes), 4 + codes.shape[1]), np.uint8)
    blocks[:, :4] = scales.astype("<f4").reshape(-1, 1).view(np.uint8)
    blocks[:, 4:] = codes
    return frozen(kind, (len(codes), 64), blocks)


def float8(parts: Parts, end: str, high: int, wide: int) -> Packed:
    """The matrix ``weight`` of FP8 codes, whose blocks of ``high`` x ``wide`` have scales, named by ``end``."""
    n_out, n_in = parts.tensor("weight", ("F8_E4M3",)).shape
    scale = parts.tensor(end, FLOAT_TYPES)

    def make() -> StoredTensor:
        data = parts.float8("weight")
        of_rows = scale.floats().reshape(-(-n_out // high), -1)[np.arange(n_out) // high]
        if not (np.abs(of_rows) < 2.0**100).all():
            raise parts.error(end, "holds NaN or a number of 2^100 or more: the file is damaged")
        scales = of_rows[:, np.arange(0, n_in, 64) // wide] * np.float32(256)
        filled = np.pad(data, ((0, 0), (0, -n_in % 64)))
        made = scaled("F8_E4M3", filled.reshape(-1, 64), scales)
        if n_in % 64 == 0:
            return replace(made, shape=(n_out, n_in))
        return StoredTensor.of(made.floats().reshape(n_out, -1)[:, :n_in])

    return Packed((n_out, n_in), make)


def float8_values(codes: Bytes) -> Floats:
    """What FP8 codes stand for [any shape]."""
    filled = np.pad(codes.reshape(-1), (0, -codes.size % 64)).reshape(-1, 64)
    ones = np.full(len(filled), 256, np.float32)
    return scaled("F8_E4M3", filled, ones).floats().reshape(-1)[: codes.size].reshape(codes.shape)


_FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
"""What codes of FP4 (e2m1) without the sign stand for."""


def float4(pairs: Bytes, scales: Floats, group: Int64s) -> StoredTensor:
    """The matrix scale * number in F32; ``scales`` are [n_out, groups], ``group`` that of each column."""
    numbers = np.concatenate([_FLOAT4, -_FLOAT4])
    made = np.empty((len(scales), len(group)), np.float32)
    for rows in _some_rows(*made.shape):
        with np.errstate(over="ignore", invalid="ignore"):  # FiniteCheck finds them
            made[rows] = scales[rows][:, group] * numbers[apart(pairs[rows])]
    return StoredTensor.of(made)


def mxfp4(codes: StoredTensor, scales: StoredTensor) -> Packed:
    """The matrix of codes, a run of 32 in 16 bytes, and the exponents of the runs' scales [..., runs]."""
    shape = *scales.shape[:-1], 32 * scales.shape[-1]

    def make() -> StoredTensor:
        blocks, pairs = np.empty((scales.n_elements, 17), np.uint8), codes.data.reshape(-1, 16)
        blocks[:, 0] = scales.data
        for some in _some_rows(len(blocks), 32):
            blocks[some, 1:] = halves(pairs[some])
        return frozen("MXFP4", shape, blocks)

    return Packed(shape, make)
