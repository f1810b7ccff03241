"""Weights on the device: a stored matrix is laid out once, at load, as the kernels of products read it.

A matrix in ggml's blocks becomes planes of about the same size: packed low bits, packed high bits, scales.
A *run* is 32 elements of a row, ``e = 16 h + 4 j + b``: two halves ``h`` of four words ``j`` of four bytes
``b``.  So a word of weights, masked and shifted, meets a word of activations.

* ``low``, 8, 4 or 2 bits: [bits, n_out, runs, 4], as many words per run: with 8 bits a word for each
  ``4 h + j``; with 4 for each ``j``, half ``h`` in its nibble ``h``; with 2 for each ``j // 2``, the bits of
  ``(h, j)`` at ``4 (j % 2) + 2 h``.
* ``high``, 2 bits: as ``low``; 1 bit: [1, n_out, runs, 4], ``(h, j)`` at bit ``4 h + j``.
* ``d``, ``m``: [blocks, n_out], float16, or the exponents of MXFP4, uint8.
* ``scale``, ``least`` (blocks of 256): int8, [2, n_out, runs] with a scale for each half, else [n_out, runs].

A matrix in F32, F16 or BF16 keeps its type, as [n_out, chunks, 128].  A word of 32 bits has elements of one of
the contract's 16 lanes, and 16 words follow each other: F32 and BF16 are in order, and of F16 element
``32 j + 16 h + i`` is at ``32 j + 2 i + h``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise, permutations
from typing import Any, NamedTuple

import torch

from aleator.models.files.tensor_types import TENSOR_TYPES
from aleator.models.kernels.unpacking import UNPACKERS, Unpacked

Tensor = torch.Tensor

CHUNK = 128
"""A row of a matrix in floats is padded to a multiple of this."""
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types whose elements are floats."""
_AT_ONCE = 1 << 24  # elements laid out at a time
# The axis of n_out
_ROWS = {"low": -3, "high": -3, "d": -1, "m": -1, "scale": -2, "least": -2, "bias": -1}


class Form(NamedTuple):
    """The layout of a type in blocks, and the meaning of its bits."""

    low: int  # packed low bits, 2, 4 or 8; 8 bits are int8
    high: int = 0  # packed high bits, 0 to 2
    offset: int = 0  # subtracted from the bits
    table: str = ""  # the table of 4-bit values: "", "IQ4" or "MXFP4"
    has_m: bool = False  # whether there is ``m`` (blocks of 32)
    group: int = 256  # elements that share a scale, in blocks of 256: 16, 32, or 256 for none
    least: int = 0  # bits of a least value: 0 for none, 8, or 4, in the upper nibble of the scale
    d_factor: float = 1.0  # the scale is the stored one times this power of 2


FORMS = {
    "Q8_0": Form(8),
    "Q4_0": Form(4, offset=8),
    "Q4_1": Form(4, has_m=True),
    "Q5_0": Form(4, 1, offset=16),
    "Q5_1": Form(4, 1, has_m=True),
    "IQ4_NL": Form(4, table="IQ4"),
    "MXFP4": Form(4, offset=12, table="MXFP4"),
    "Q2_K": Form(2, group=16, least=4),
    "Q3_K": Form(2, 1, offset=4, group=16),
    "Q4_K": Form(4, group=32, least=8),
    "Q5_K": Form(4, 1, group=32, least=8),
    "Q6_K": Form(4, 2, offset=32, group=16),
    "IQ4_XS": Form(4, table="IQ4", group=32),
    "IQ2_XXS": Form(8, group=32, d_factor=0.125),
    "IQ2_XS": Form(8, group=16, d_factor=0.125),
    "IQ2_S": Form(8, group=16, d_factor=0.125),
    "IQ3_XXS": Form(8, group=32, d_factor=0.25),
    "IQ3_S": Form(8, group=32),
    "IQ1_S": Form(8, group=32, d_factor=0.125),
    "IQ1_M": Form(8, group=16, d_factor=0.125),
    "TQ1_0": Form(2, offset=1),
    "TQ2_0": Form(2, offset=1),
}
"""The form of each type of ggml's blocks."""


@dataclass(frozen=True)
class Planes:
    """A matrix on a device, or one for each of E experts: then each tensor begins with an axis of E."""

    type: str  # ggml's name of how it was stored
    n_out: int  # width of the output
    n_in: int  # width of the input
    low: Tensor  # elements: their low bits, uint8, or a float type's; see above
    high: Tensor | None = None  # high bits, uint8, or None
    d: Tensor | None = None  # scales, float16 or uint8, or None
    m: Tensor | None = None  # least values of blocks, float16, or None
    scale: Tensor | None = None  # scales of groups, int8, or None
    least: Tensor | None = None  # least values of groups, int8, or None
    bias: Tensor | None = None  # float32 [n_out], or None

    @property
    def block(self) -> int:
        """Elements of a block: 32 or 256; 1 of a float type."""
        return TENSOR_TYPES[self.type].block

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors on the device, by name."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: part for name, part in parts.items() if isinstance(part, Tensor)}

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(part.nbytes for part in self.tensors.values())


def planes(
    data: Tensor,
    type: str,
    n_out: int,
    n_in: int,
    bias: Tensor | None = None,
    device: torch.device | None = None,
) -> Planes:
    """Lay out a matrix, some rows at a time, to need little extra memory.

    Args:
        data: its bytes as in the file, uint8 of any shape.
        type: ggml's name of its type.
        n_out: its rows.
        n_in: elements of a row, in whole blocks.
        bias: float32 [n_out] on the device, or None.
        device: where the planes are; None: where ``data`` is.
    """
    made: dict[str, Tensor] = {}
    rows = data.reshape(n_out, -1)
    first = 0
    for part in rows.split(max(_AT_ONCE // n_in, 1)):
        for name, plane in _laid_out(part.to(device or data.device), type, n_in).items():
            axis = plane.dim() + _ROWS[name]
            if name not in made:
                made[name] = plane.new_empty((*plane.shape[:axis], n_out, *plane.shape[axis + 1 :]))
            made[name].narrow(axis, first, len(part)).copy_(plane)
        first += len(part)
    return Planes(type, n_out, n_in, **made, bias=bias)


def stack(matrices: Sequence[Planes]) -> Planes:
    """Join matrices of one type and shape, one for each expert, into one stack."""
    first = matrices[0]
    for each in matrices:
        if (each.type, each.n_out, each.n_in) != (first.type, first.n_out, first.n_in):
            raise ValueError("experts differ in type or shape")
        if each.tensors.keys() != first.tensors.keys():
            raise ValueError("some experts have a bias, and some have none")
    joined: dict[str, Any] = {
        name: torch.stack([each.tensors[name] for each in matrices]) for name in first.tensors
    }
    return replace(first, **joined)


def joined(matrices: Sequence[Planes]) -> list[Planes]:
    """Matrices with the same input; neighbours of one type, all with a bias or all without, become one."""
    made: list[Planes] = []
    for each in matrices:
        last = made[-1] if made else None
        if last is None or last.type != each.type or last.tensors.keys() != each.tensors.keys():
            made.append(each)
            continue
        both: dict[str, Any] = {
            name: torch.cat((part, each.tensors[name]), _ROWS[name])
            for name, part in last.tensors.items()
        }
        made[-1] = replace(last, n_out=last.n_out + each.n_out, **both)
    return made


def together(listed: Sequence[Sequence[Planes]]) -> Sequence[int]:
    """The order of these lists in which :func:`joined` leaves the fewest matrices."""

    def joints(order: Sequence[int]) -> int:
        each = [(part.type, part.tensors.keys()) for i in order for part in listed[i]]
        return sum(a == b for a, b in pairwise(each))

    return max(permutations(range(len(listed))), key=joints)


def _laid_out(rows: Tensor, type: str, n_in: int) -> dict[str, Tensor]:
    """The planes of some rows, uint8 [n, row bytes]."""
    if type in FLOATS:
        return {"low": _by_lanes(rows.contiguous().view(FLOATS[type]))}
    blocks = rows.reshape(-1, TENSOR_TYPES[type].size)
    return _packed(FORMS[type], UNPACKERS[type](blocks), len(rows), n_in)


def _by_lanes(rows: Tensor) -> Tensor:
    """Rows [n, n_in] of floats -> [n, chunks, 128], padded with zeros."""
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % CHUNK))
    words = padded.reshape(len(rows), -1, _apart(rows), 16).transpose(2, 3)
    return words.reshape(len(rows), -1, CHUNK)


def in_order(lanes: Tensor) -> Tensor:
    """Rows [n, chunks, 128] -> [n, 128 chunks], the inverse of how rows are laid out."""
    return lanes.flatten(1).unflatten(1, (-1, 16, _apart(lanes))).transpose(2, 3).flatten(1)


def _apart(floats: Tensor) -> int:
    """How many groups of 16 elements are taken apart, to put elements 16 apart into one word."""
    return 2 if floats.dtype == torch.float16 else 1


def _packed(form: Form, parts: Unpacked, n: int, n_in: int) -> dict[str, Tensor]:
    """The planes of n rows."""
    u = parts.u.reshape(n, n_in // 32, 2, 4, 4)
    made = {"low": _bits(u & (1 << form.low) - 1 if form.high else u, form.low)}
    if form.high:
        made["high"] = _bits(u >> form.low, form.high)
    for name in ("d", "m"):
        part = getattr(parts, name)
        if part is not None:
            whole = part.contiguous().view(torch.float16) if part.shape[1] == 2 else part
            made[name] = whole.reshape(n, -1).T.contiguous()
    for name in ("scale", "least"):
        part = getattr(parts, name)
        if part is not None:
            groups = part.view(torch.int8).reshape(n, -1)
            halves = groups.reshape(n, -1, 2).permute(2, 0, 1)
            made[name] = halves.contiguous() if form.group == 16 else groups
    return made


def _bits(u: Tensor, width: int) -> Tensor:
    """Elements uint8 [n, runs, 2, 4, 4] of ``width`` bits, packed: [width, n, runs, 4]."""
    n, runs = u.shape[:2]
    if width == 8:
        return u.permute(2, 3, 0, 1, 4).reshape(8, n, runs, 4)
    if width == 4:
        return (u[:, :, 0] | u[:, :, 1] << 4).permute(2, 0, 1, 3).contiguous()
    if width == 2:
        first = u[:, :, 0] | u[:, :, 1] << 2
        return (first[:, :, ::2] | first[:, :, 1::2] << 4).permute(2, 0, 1, 3).contiguous()
    shift = torch.arange(8, dtype=torch.uint8, device=u.device)
    return (u.reshape(n, runs, 8, 4) << shift[:, None]).sum(2, dtype=torch.uint8)[None]
