"""Products with matrices in their stored types, and rows of them: docs/numerics.md, part 2, bit for bit.

Sums of a block are integers, in any order.  Blocks are added in order, each by one fused multiply-add, whatever
the number of rows.  For up to :data:`FEW` rows weights and activations are multiplied four bytes at a time; for
more they are unpacked for the tensor cores' integers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton

from aleator.models.kernels import product_kernels as kernels
from aleator.models.kernels.floats import EXACT, Constants, sized
from aleator.models.kernels.planes import CHUNK, FORMS, Form, Planes, in_order

FEW = 16
"""Up to this many rows of activations, weights are multiplied without tensor cores."""
TILE = 4
"""The most rows of activations per program."""
_WIDE = 8192  # from this many rows of a matrix on, there are enough programs
_SIDE = 8  # of a program with many rows of floats: rows of x, rows of the matrix per thread, threads beside
_AHEAD = 8  # chunks of a matrix of floats that are read before they are added, for one row
SUMS = 1 << 24
"""The most floats for sums of blocks, unless a single row needs more."""


class Rounded(NamedTuple):
    """Rows of activations in int8, about ``d * q``."""

    # int8 [T, n_in]; or with ``in_words`` [T, 8, n_in / 32, 4], words at the same place of each run of 32
    # elements side by side
    q: torch.Tensor
    d: torch.Tensor  # float32 [T, n_in / block]
    # int32 [T, 2, n_in / 32], sums of the first and of the last 16 elements of each run of ``q``
    sums: torch.Tensor
    block: int  # 32 or 256
    in_words: bool  # see ``q``; for products that take a few rows at a time


def round_rows(x: torch.Tensor, block: int, in_words: bool | None = None) -> Rounded:
    """Round activations float32 [T, n_in] to int8, on their device.

    A block with an element that is not finite has ``d`` NaN and ``q`` 0; one whose largest magnitude is below
    2^-100 counts as zeros.

    Args:
        x: float32 [T, n_in].
        block: 32 or 256.
        in_words: the order of elements, see :class:`Rounded`; None: as :func:`product` needs it for this
            number of rows.  Rows with their own experts need words.
    """
    x = x.contiguous()
    n, n_in = x.shape
    words = n <= FEW if in_words is None else in_words
    q = torch.empty(
        (n, 8, n_in // 32, 4) if words else (n, n_in), dtype=torch.int8, device=x.device
    )
    d = torch.empty((n, n_in // block), dtype=torch.float32, device=x.device)
    sums = torch.empty((n, 2, n_in // 32), dtype=torch.int32, device=x.device)
    if d.numel():
        at_once = min(triton.next_power_of_2(d.numel()), sized(4096, 1024) // block)
        kernels.rounded_rows[(triton.cdiv(d.numel(), at_once),)](
            x, q, d, sums, d.numel(), d.shape[1],
            BLOCK=block, AT_ONCE=at_once, WORDS=words, **EXACT,
        )  # fmt: skip
    return Rounded(q, d, sums, block, words)


def paired(x: torch.Tensor, chunks: int) -> torch.Tensor:
    """Activations float32 [T, n_in] as a matrix in BF16 takes them, int32 [T, 64 chunks]; two to a word."""
    x = x.contiguous()
    out = torch.empty((len(x), CHUNK // 2 * chunks), dtype=torch.int32, device=x.device)
    words = min(triton.next_power_of_2(out.shape[1]), sized(4096, 512))
    kernels.paired_rows[(len(x), triton.cdiv(out.shape[1], words))](
        x, out, x.shape[1], out.shape[1], W=words, **EXACT
    )
    return out


def product(
    weights: Planes,
    x: torch.Tensor | Rounded,
    out: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    scale: float = 1.0,
    expert: torch.Tensor | None = None,
) -> torch.Tensor:
    """``x`` W^T, plus the bias if there is one.

    Args:
        weights: W [n_out, n_in].
        x: float32 [T, n_in], or its result from :func:`round_rows` in blocks of ``weights.block``.
        out: float32 [T, n_out], whose rows are contiguous, or None for a new tensor; it may be ``residual``.
        residual: float32 [T, n_out], whose rows are contiguous: the result is ``residual + scale * y``.
        scale: see there.
        expert: int32 [T], 0 to E - 1: each row's matrix in a
            :func:`~aleator.models.kernels.planes.stack`, [E, n_out, n_in]; None: there is one matrix.

    Returns:
        float32 [T, n_out].
    """
    w = weights
    if isinstance(x, torch.Tensor) and w.block > 1:
        x = round_rows(x, w.block, True if expert is not None else None)
    rows = x if isinstance(x, torch.Tensor) else x.q
    n = len(rows)
    if out is None:
        out = torch.empty((n, w.n_out), dtype=torch.float32, device=rows.device)
    if n == 0:
        return out
    strides = out.stride(0), 0 if residual is None else residual.stride(0)
    if isinstance(x, torch.Tensor):
        x = paired(x, w.low.shape[-2]) if w.type == "BF16" else x.contiguous()
        shape = n, w.n_out, w.n_in, w.low.shape[-2], x.stride(0), *strides, scale
        if n > FEW and expert is None:
            side, wide = sized(2, _SIDE), sized(64, _SIDE)
            tiles = triton.cdiv(n, side) * triton.cdiv(w.n_out, side * wide)
            programs = min(tiles, sized(1, 2 * processors(rows.device)))
            room = torch.empty(
                (programs, side * side * wide * 16), dtype=torch.float32, device=rows.device
            )
            kernels.float_tiles[(programs,)](
                w.low, w.bias, x, residual, out, room, *shape, AHEAD=min(chunks_ahead(w, 1), 1),
                ROWS=side, T=side, R=wide, **EXACT,
            )  # fmt: skip
            return out
        at_once = 1 if expert is not None else min(triton.next_power_of_2(n), TILE)
        width = min(triton.next_power_of_2(w.n_out), sized(256, 8))
        kernels.float_rows[(triton.cdiv(n, at_once), triton.cdiv(w.n_out, width))](
            w.low, w.bias, x, expert, residual, out, *shape,
            AHEAD=chunks_ahead(w, at_once), T=at_once, R=width, **EXACT,
        )  # fmt: skip
        return out
    if x.block != w.block or (expert is not None and not x.in_words):
        raise ValueError(f"activations were not rounded for {w.type}")
    runs = w.n_in // 32
    scales = w.d, w.m, w.scale, w.least, w.bias
    if not x.in_words:
        at_once, width = sized(32, 64), sized(min(triton.next_power_of_2(w.n_out), 1024), 64)
        kernels.many_rows[(triton.cdiv(n, at_once), triton.cdiv(w.n_out, width))](
            w.low, w.high, *scales, x.q, x.d, x.sums, residual, out,
            n, w.n_out, runs, *strides, scale, WIDE=max(n, w.n_out) * w.n_in >= 1 << 31, T=at_once, R=width,
            num_warps=8, **form_of(w), **EXACT,
        )  # fmt: skip
        return out
    at_once = 1 if expert is not None else min(triton.next_power_of_2(n), sized(FEW, TILE))
    # Tiles of 512 runs, four per thread.
    width = min(triton.next_power_of_2(w.n_out), 16 if w.n_out > _WIDE else 8)
    length = max(min(triton.next_power_of_2(runs), 512 // width), 8)
    width = min(triton.next_power_of_2(w.n_out), sized(512, width))
    sums = (2 if FORMS[w.type].least else 1, w.n_in // w.block, w.n_out)
    most = max(SUMS // math.prod(sums) // at_once, 1) * at_once
    if n > most:
        for i in range(0, n, most):
            part = slice(i, i + most)
            few = Rounded(x.q[part], x.d[part], x.sums[part], x.block, True)
            own = None if expert is None else expert[part]
            rest = None if residual is None else residual[part]
            product(w, few, out[part], rest, scale, own)
        return out
    room = torch.empty((n, *sums), dtype=torch.float32, device=rows.device)
    kernels.few_rows[(triton.cdiv(n, at_once), triton.cdiv(w.n_out, width))](
        words(w.low), words(w.high), *scales, words(x.q), x.d, x.sums, expert, residual, out, room,
        n, w.n_out, runs, *strides, scale,
        NATIVE=has_dp4a(rows), T=at_once, R=width, G=length, **form_of(w), **EXACT,
    )  # fmt: skip
    return out


def read_rows(weights: Planes, ids: torch.Tensor) -> torch.Tensor:
    """Rows ``ids`` int64 [T] of a matrix, widened to float32 [T, n_in]; the ids have been checked."""
    if weights.block == 1:
        return in_order(weights.low[ids])[:, : weights.n_in].float().contiguous()
    runs = weights.n_in // 32
    out = torch.empty((len(ids), weights.n_in), dtype=torch.float32, device=ids.device)
    if len(ids):
        at_once = min(triton.next_power_of_2(runs), 32)
        kernels.widened_rows[(len(ids), triton.cdiv(runs, at_once))](
            weights.low, weights.high, weights.d, weights.m, weights.scale, weights.least,
            ids, out, weights.n_out, runs, G=at_once, **form_of(weights), **EXACT,
        )  # fmt: skip
    return out


def form_of(weights: Planes) -> dict[str, Any]:
    """The constants of a type's kernels."""
    form = FORMS.get(weights.type, Form(0))
    return {
        "LOW": form.low, "HIGH": form.high, "OFFSET": form.offset, "TABLE": form.table,
        "GROUP": form.group, "LEAST": form.least, "D_FACTOR": form.d_factor, "BLOCK": weights.block,
    }  # fmt: skip


def forms_of(matrices: Sequence[Planes], tokens: int = 1) -> Constants:
    """Nine constants of each matrix: those of :func:`form_of`, and :func:`chunks_ahead`."""
    return Constants(tuple((*form_of(m).values(), chunks_ahead(m, tokens)) for m in matrices))


def chunks_ahead(weights: Planes, tokens: int) -> int:
    """AHEAD of :func:`~aleator.models.kernels.product_sums.float_sums`; 0 also of matrices in blocks."""
    if weights.block > 1 or (weights.n_in % CHUNK and weights.type != "BF16"):
        return 0
    chunks = weights.low.shape[-2]
    return next(k for k in range(max(_AHEAD // tokens, 1), 0, -1) if chunks % k == 0)


def words(part: torch.Tensor | None) -> torch.Tensor | None:
    return None if part is None else part.view(torch.int32)


def planes_of(m: Planes) -> tuple[Any, ...]:
    """A kernel's arguments for a matrix: its planes, low and high as int32, bias, n_out and chunks."""
    planes = (words(m.low), words(m.high)) if m.block > 1 else (m.low, None)
    return (*planes, m.d, m.m, m.scale, m.least, m.bias, m.n_out, m.low.shape[-2])


def pair_words(matrices: Sequence[Planes]) -> int:
    """Words of a row as matrices in BF16 take it, see :func:`paired`."""
    return max((CHUNK // 2 * m.low.shape[-2] for m in matrices if m.type == "BF16"), default=0)


def row_words(m: Planes, width: int) -> tuple[int, int]:
    """Words of a program's memory: integers of a rounded row, or pairs; then scales and sums of blocks.

    ``width``: rows of the matrix at a time.
    """
    if m.block == 1:
        return 0, pair_words([m])
    sums = 2 if FORMS[m.type].least else 1
    return m.n_in // 32 * 10, m.n_in // m.block * (1 + sums * width)


@functools.cache
def processors(device: torch.device) -> int:
    """How many multiprocessors a device has; 1 for a CPU."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def has_dp4a(x: torch.Tensor) -> bool:
    """Whether the device has NVIDIA's instruction that multiplies four bytes at once."""
    return x.is_cuda and torch.version.hip is None
