"""The end of a mixture of experts for a few tokens in one launch: the last products, weighed and added.

The steps before are in :mod:`aleator.models.kernels.fused` (norm, gate, up and activation of the chosen
experts) and in :mod:`aleator.models.kernels.routing`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from aleator.models.kernels.floats import EXACT, sized
from aleator.models.kernels.fused import PROGRAMS
from aleator.models.kernels.norms import REGISTERS
from aleator.models.kernels.planes import FORMS, Planes
from aleator.models.kernels.product import forms_of, has_dp4a, pair_words, planes_of
from aleator.models.kernels.product_sums import finish, places
from aleator.models.kernels.ready import made_pairs, prepared, tile_sums


def mixed_products(
    matrices: Sequence[Planes],
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor | None,
    shared_weight: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    scale: float = 1.0,
) -> torch.Tensor:
    """The products of the chosen experts, best first, then the shared one's, added by fused multiply-adds.

    Args:
        matrices: a stack of one for each expert, and the shared expert's if there is one.
        x: their inputs side by side, float32 [T, n_used * n_in], or [T, n_used * n_in + n_shared].
        chosen: int32 [T, n_used], contiguous.
        weights: float32 [T, n_used], contiguous; None: 1.
        shared_weight: float32 [T], the shared expert's; None: 1.
        residual: float32 [T, n_out], whose rows are contiguous: the result is ``residual + scale * y``.
        scale: see there.

    Returns:
        float32 [T, n_out].
    """
    n, n_out, used = len(x), matrices[0].n_out, chosen.shape[1]
    out = torch.empty((n, n_out), dtype=torch.float32, device=x.device)
    if not out.numel():
        return out
    floats = all(m.block == 1 for m in matrices)
    width = sized(min(triton.next_power_of_2(n_out), 512), 16 if floats else 8)
    runs = max(m.n_in // 32 for m in matrices)
    length = max(min(triton.next_power_of_2(runs), 512 // width), 8)
    tiles = triton.cdiv(n_out, width)
    programs = triton.cdiv(tiles, triton.cdiv(tiles * n, PROGRAMS))
    # A program's own memory: rounded rows, and sums of blocks.
    listed, column, ints, sums = [], 0, 0, 0
    for m, rows in zip(matrices, (used, 1), strict=False):
        blocks = m.n_in // m.block if m.block > 1 else 0
        listed.append((*planes_of(m), m.n_in, column, ints))
        column += rows * m.n_in
        ints += rows * (m.n_in // 32 * 10 + blocks if blocks else pair_words([m]))
        sums = max(sums, blocks * width * (2 if blocks and FORMS[m.type].least else 1))
    room = torch.empty((n * programs, ints + sums), dtype=torch.int32, device=x.device)
    _mixed_products[(n, programs)](
        tuple(listed), x, chosen, weights, shared_weight, residual, out, room, room.view(torch.float32),
        used, x.stride(0), out.stride(0), 0 if residual is None else residual.stride(0), scale,
        ints + sums, ints,
        FORMS=forms_of(matrices),
        NATIVE=has_dp4a(x), R=width, G=length, maxnreg=REGISTERS, **EXACT,
    )  # fmt: skip
    return out


@triton.jit
def _rounded(part, x, room, float_room, t, rows, BLOCK: tl.constexpr):
    """The inputs of a part, ``rows`` of them, as its matrices in blocks or in BF16 take them."""
    chunks, n_in, column, begin = part[8], part[9], part[10], part[11]
    if BLOCK > 1:
        runs, blocks = n_in // 32, n_in // BLOCK
        for k in range(0, rows):
            at = begin + k * (runs * 10 + blocks)
            prepared(
                x + column + k * n_in, None, None, 0.0, 1.0, None, room + at, float_room + at + runs * 10,
                room + at + runs * 8, t, 0, runs, "", BLOCK, 1,
            )  # fmt: skip
    elif part[0].dtype.element_ty.is_bf16():
        for k in range(0, rows):
            made_pairs(
                x + column + k * n_in, None, None, 0.0, 1.0, None, room + begin + k * chunks * 64, t, 0, n_in,
                chunks, "", 1,
            )  # fmt: skip
        tl.debug_barrier()


@triton.jit
def _product(
    part, x, room, float_room, sums, e, k, row,
    STACKED: tl.constexpr, FORMS: tl.constexpr, P: tl.constexpr, NATIVE: tl.constexpr, R: tl.constexpr,
    G: tl.constexpr,
):  # fmt: skip
    """Input ``k`` of a part times rows ``row`` [R] of its matrix ``e``; float32 [1, R]."""
    low, _, _, _, _, _, bias, n_out, chunks, n_in, column, begin = part
    if FORMS[9 * P + 7] > 1:
        runs = n_in // 32
        at = begin + k * (runs * 10 + n_in // FORMS[9 * P + 7])
        made = room + at, float_room + at + runs * 10, room + at + runs * 8, sums
    elif low.dtype.element_ty.is_bf16():
        made = room + begin + k * chunks * 64, places(0, 0, 0, 1)
    else:
        made = x + column + k * n_in, places(0, 0, 0, 1)
    y = tile_sums(part, made, row, e, n_in, STACKED, FORMS, 9 * P, NATIVE, 1, R, G)
    if bias is not None:
        if STACKED:
            bias += e.to(tl.int64) * n_out
        y += tl.load(bias + row)[None, :]
    return y


@triton.jit(do_not_specialize=["factor"])
def _mixed_products(
    parts, x, chosen, weights, shared_weight, residual, out, room, float_room,
    used, x_stride, out_stride, residual_stride, factor, size, ints,
    FORMS: tl.constexpr, NATIVE: tl.constexpr, R: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Every nth tile of R columns of one token.

    ``parts``: for each the result of :func:`planes_of`, n_in, its column of the input, and where in a program's
    memory its rounded inputs are.  ``room`` and ``float_room`` are the same memory, ``size`` words per program.
    """
    number, programs = tl.program_id(1), tl.num_programs(1)
    token = tl.program_id(0).to(tl.int64)
    mine = (token * programs + number) * size
    room += mine
    float_room += mine
    sums = float_room + ints
    x += token * x_stride
    one = tl.arange(0, 1)
    _rounded(parts[0], x, room, float_room, one, used, FORMS[7])
    if len(FORMS) == 2:
        _rounded(parts[1], x, room, float_room, one, 1, FORMS[9 + 7])
    n_out = parts[0][7]
    c = tl.arange(0, R)
    for tile in range(number, tl.cdiv(n_out, R), programs):
        row = tl.minimum(tile * R + c, n_out - 1)
        total = tl.zeros([1, R], tl.float32)
        weight = tl.full([1, 1], 1.0, tl.float32)
        for k in range(0, used):
            e = tl.load(chosen + token * used + k)
            y = _product(
                parts[0], x, room, float_room, sums, e, k, row, True, FORMS, 0, NATIVE, R, G
            )
            if weights is not None:
                weight = tl.load(weights + token * used + k + one)[:, None]
            total = tl.fma(weight, y, total)
        if len(FORMS) == 2:
            y = _product(
                parts[1], x, room, float_room, sums, 0, 0, row, False, FORMS, 1, NATIVE, R, G
            )
            weight = tl.full([1, 1], 1.0, tl.float32)
            if shared_weight is not None:
                weight = tl.load(shared_weight + token + one)[:, None]
            total = tl.fma(weight, y, total)
        there = (tile * R + c < n_out)[None, :]
        finish(
            total, out, out_stride, residual, residual_stride, factor, None, token + one, row, there
        )
