"""Rotation of queries and keys, by positions and by Hadamard matrices, with the bits of native decoders."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from aleator.core.arrays import Int32s
from aleator.models.kernels.floats import EXACT, sized
from aleator.models.layers.rotation import Rotation


class RotationAngles(NamedTuple):
    """Angles of rotations, and which channels they rotate."""

    cos_sin: torch.Tensor  # float32 [rows, pairs, 2]
    offset: int  # channels before the rotated ones
    interleaved: bool  # neighbouring channels are a pair, else those ``pairs`` apart


def rotation_angles(
    rotation: Rotation, positions: Int32s, magnitude: float, device: torch.device
) -> RotationAngles:
    """The angles of these positions, int32 [n], one row per position, which the host computes."""
    cos_sin = torch.from_numpy(rotation.angles(positions, magnitude))
    if device.type == "cuda":
        cos_sin = cos_sin.pin_memory().to(device, non_blocking=True)
    return RotationAngles(cos_sin, rotation.offset, rotation.interleaved)


def rotate(
    x: torch.Tensor, angles: RotationAngles, rows: torch.Tensor | None = None, every: int = 1
) -> torch.Tensor:
    """Rotate heads in place: channels (a, b) become (a cos - b sin, a sin + b cos).

    Args:
        x: float32 [T, heads, dim]; a head's channels are contiguous, a token's heads may be apart.
        angles: the angles.
        rows: the row of angles for each token, int [T]; None: the token's index.
        every: how many successive tokens share a row.
    """
    t, heads, _ = x.shape
    pairs = angles.cos_sin.shape[1]
    if t == 0 or pairs == 0:
        return x
    if x.stride(2) != 1:
        raise ValueError("the channels of a head must lie side by side")
    wide = triton.next_power_of_2(pairs)
    block = max(1, sized(1 << 14, 512) // wide)
    _rotate[(triton.cdiv(t * heads, block),)](
        x, angles.cos_sin, rows, t * heads, heads, x.stride(0), x.stride(1), angles.offset, every,
        PAIRS=pairs, WIDE=wide, BLOCK=block, INTERLEAVED=angles.interleaved, **EXACT,
    )  # fmt: skip
    return x


@triton.jit
def rotate_pairs(
    x, angles, here, PAIRS: tl.constexpr, WIDE: tl.constexpr, INTERLEAVED: tl.constexpr
):
    """Rotate heads in place; pointers to their first rotated channels and to their angles are [N, 1]."""
    pair = tl.arange(0, WIDE)
    angle = angles + 2 * pair[None, :]
    cos = tl.load(angle, mask=here)
    sin = tl.load(angle + 1, mask=here)
    if INTERLEAVED:
        first = x + 2 * pair[None, :]
        second = first + 1
    else:
        first = x + pair[None, :]
        second = first + PAIRS
    a = tl.load(first, mask=here)
    b = tl.load(second, mask=here)
    tl.store(first, a * cos - b * sin, mask=here)
    tl.store(second, a * sin + b * cos, mask=here)


@triton.jit(do_not_specialize=["n", "every"])
def _rotate(
    x, angles, rows, n, heads, t_stride, h_stride, offset, every,
    PAIRS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """``BLOCK`` heads, of all tokens; each thread has both channels of its pairs."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pair = tl.arange(0, WIDE)
    here = (row < n)[:, None] & (pair < PAIRS)[None, :]
    t = row // heads
    at = t.to(tl.int64) * t_stride + (row - t * heads) * h_stride + offset
    if rows is not None:
        angle_row = tl.load(rows + t // every, mask=row < n).to(tl.int64)
    else:
        angle_row = (t // every).to(tl.int64)
    rotate_pairs(
        x + at[:, None], angles + angle_row[:, None] * (2 * PAIRS), here, PAIRS, WIDE, INTERLEAVED
    )


def hadamard(x: torch.Tensor, block: int) -> torch.Tensor:
    """Rotate every ``block`` channels in place by the Hadamard matrix that is its own inverse.

    Args:
        x: float32 [..., n], contiguous, n a multiple of ``block``.
        block: a power of 2; 0 or 1: nothing is rotated.
    """
    if block < 2 or x.numel() == 0:
        return x
    rows = x.numel() // block
    at_once = max(1, sized(1 << 15, 1024) // block)
    scale = hadamard_scale(block)
    _hadamard[(triton.cdiv(rows, at_once),)](
        x.view(-1), rows, scale, ROWS=at_once, BLOCK=block, LOG=block.bit_length() - 1, **EXACT
    )
    return x


def hadamard_scale(block: int) -> float:
    """The factor that makes a matrix of sums and differences its own inverse."""
    return float(np.float32(1) / np.sqrt(np.float32(max(block, 1))))


@triton.jit(do_not_specialize=["rows"])
def _hadamard(x, rows, scale, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = (row < rows)[:, None]
    at = x + row.to(tl.int64)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    y = hadamard_blocks(tl.load(at, mask=here), ROWS, BLOCK, LOG)
    tl.debug_barrier()  # other threads may have read it
    tl.store(at, y * scale, mask=here)


@triton.jit
def hadamard_heads(
    x, there, first, end, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
    SCALE: tl.constexpr,
):  # fmt: skip
    """Do as :func:`hadamard` to channels of heads at pointers [ROWS, 1]; between barriers."""
    tl.debug_barrier()
    for begin in range(first, end, BLOCK):
        at = x + begin + tl.arange(0, BLOCK)[None, :]
        y = hadamard_blocks(tl.load(at, mask=there), ROWS, BLOCK, LOG)
        tl.debug_barrier()  # other threads may have read it
        tl.store(at, y * SCALE, mask=there)
    tl.debug_barrier()


@triton.jit
def hadamard_blocks(y, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr):
    """Sums and differences of rows [ROWS, BLOCK] over distances 1, 2, 4, ..., not scaled."""
    for k in tl.static_range(LOG):
        y = _butterflies(y, ROWS, BLOCK, 1 << k)
    return y


@triton.jit
def _butterflies(y, ROWS: tl.constexpr, BLOCK: tl.constexpr, HALF: tl.constexpr):
    y = tl.reshape(y, (ROWS, BLOCK // (2 * HALF), 2, HALF))
    a, b = tl.split(tl.permute(y, (0, 1, 3, 2)))
    y = tl.permute(tl.join(a + b, a - b), (0, 1, 3, 2))
    return tl.reshape(y, (ROWS, BLOCK))
