"""Products of a few rows in one launch: norm and rounding before, activation or residual after them.

One launch takes two matrices of any types, with one input or two.  Each program normalises and rounds its rows
again, into its own memory.  Programs are few; each takes several tiles of a matrix one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from aleator.models.kernels import norms
from aleator.models.kernels.floats import EXACT, Constants, Work, sized
from aleator.models.kernels.operand import Operand
from aleator.models.kernels.planes import FORMS, Planes
from aleator.models.kernels.product import FEW, TILE, forms_of, has_dp4a, pair_words, planes_of
from aleator.models.kernels.product_sums import finish
from aleator.models.kernels.ready import parts_ready, rows_ready, tile_sums
from aleator.models.kernels.recurrent_parts import Convolution, PartNorm, convolved_rows
from aleator.models.kernels.routing import routed
from aleator.models.kernels.works import worked

_TYPES = 2  # matrices per launch: more would not fit into registers
_ROWS_OF_TWO = 2  # the most rows per program of two matrices with blocks: more would not fit either
_WIDE = 8192  # from this many rows of a matrix on, there are enough programs
PROGRAMS = 512
"""The most programs per launch, roughly: each has its own memory, which the L2 cache should hold."""


def product_of_few(
    matrices: Sequence[Planes],
    x: torch.Tensor,
    norm: norms.RowNorm | None = None,
    activation: str = "",
    gated: bool = False,
    residual: torch.Tensor | None = None,
    scale: float = 1.0,
    chosen: torch.Tensor | None = None,
    times: torch.Tensor | None = None,
    parts: Sequence[PartNorm | Convolution] = (),
    out: torch.Tensor | None = None,
    beside: Work | None = None,
    second: Operand | None = None,
) -> torch.Tensor:
    """Compute :func:`~aleator.models.kernels.product.product` and more for 1 to 16 rows in one launch.

    Args:
        matrices: their outputs are side by side.  More than two take more launches.
        x: float32 [T, n_in].
        norm: x is normalised first; None: it is not.
        activation: of the outputs, see :func:`~aleator.models.kernels.norms.activate`; "": none; "clamped":
            they are from -``scale`` to ``scale``.
        gated: the single matrix computes gate and up side by side; the result is f(gate) * up.
        residual: float32 [T, n_out], whose rows are contiguous: the result is ``residual + scale * y``.
        scale: see there.
        chosen: int32 [T, n_used]: the first matrix is a stack; each row goes through these of its matrices.
        times: float32 [T, n_used], factors of the normalised row for each of them; None: 1.
        parts: what is done to x before all else, see :class:`Operand`.
        out: where the result goes, whose rows are contiguous; None: a new tensor.
        beside: what further programs do meanwhile; "route": what each program of ``chosen`` does for its row
            first, to make it; None: nothing.
        second: what the second matrix takes; None: what the first one does.

    Returns:
        float32 [T, n_out]; half as wide if gated, n_used times as wide for a stack.
    """
    n = len(x)
    own = Operand(x, norm, parts, activation, gated)
    operands = [own, second or own, *[own] * len(matrices)][: len(matrices)]
    sides = [2 if of.gated else 1 for of in operands]
    columns = [m.n_out // k for m, k in zip(matrices, sides, strict=True)]
    slots = [1] * len(matrices)
    if chosen is not None:
        slots[0] = chosen.shape[1]
    each = list(zip(columns, slots, strict=True))
    if out is None:
        wide = sum(wide * k for wide, k in each)
        out = torch.empty((n, wide), dtype=torch.float32, device=x.device)
    if not out.numel():
        return out
    if len(matrices) > _TYPES:
        how: Any = {"activation": activation, "scale": scale, "parts": parts}
        for i in range(0, len(matrices), _TYPES):
            to = out[:, sum(columns[:i]) : sum(columns[: i + _TYPES])]
            product_of_few(matrices[i : i + _TYPES], x, norm, out=to, **how)
        return out
    floats = all(m.block == 1 for m in matrices)
    rows = 1 if chosen is not None else rows_at_once(n, [m.block for m in matrices])
    widest = max(m.n_out for m in matrices)
    width = 16 if widest > _WIDE and not floats else 8
    width = sized(min(triton.next_power_of_2(widest), 512), width)
    n_in = max(m.n_in for m in matrices)
    length = max(min(triton.next_power_of_2(n_in // 32), 512 // width), 8)
    tiles = [triton.cdiv(c * k, width) for c, k in zip(columns, sides, strict=True)]
    tall = triton.cdiv(n, rows)
    at_all = sum(count * k for count, k in zip(tiles, slots, strict=True))
    repeat = triton.cdiv(at_all * tall, PROGRAMS)
    programs = [triton.cdiv(count, repeat) for count in tiles]
    listed, column, first = [], 0, 0
    for m, count, (wide, k), of in zip(matrices, programs, each, operands, strict=True):
        listed.append((*planes_of(m), column, first, count, k, of.arguments))
        column, first = column + wide * k, first + count * k
    # A program's own memory: rounded rows, sums of blocks, rows whose parts are normalised.
    blocks = [m.n_in // m.block for m in matrices if m.block > 1]
    least = any(m.block > 1 and FORMS[m.type].least for m in matrices)
    ints = 0 if floats else rows * (n_in // 32) * 10
    sums = rows * max(blocks, default=0) * (1 + (2 if least else 1) * width)
    normed = times is not None or any(of.norm is not None for of in operands)
    if any(m.block == 1 for m in matrices) and normed:
        sums = max(sums, rows * n_in)  # normalised rows
    sums = max(sums, rows * pair_words(matrices))
    kinds = [activation, *(part.kind for of in operands for part in of.parts)]
    size = ints + sums + (rows * n_in if any(of.parts for of in operands) else 0)
    room = torch.empty((first * tall, size), dtype=torch.int32, device=x.device)
    work = "" if beside is None else beside.kind
    others = 0 if beside is None or work == "route" else triton.cdiv(beside.programs, tall)
    fused_product[(tall, first + others)](
        tuple(listed), norms.gelu_table(x.device) if "gelu_rounded" in kinds else None,
        residual, chosen, times, out, room, room.view(torch.float32),
        None if beside is None else (first, beside.arguments), 0 if beside is None else beside.count,
        n, out.stride(0), 0 if residual is None else residual.stride(0), scale, size, ints, ints + sums,
        FORMS=forms_of(matrices, rows), GIVEN=Constants(tuple(of.constants for of in operands)),
        NATIVE=has_dp4a(x), T=rows, R=width, G=length, SAME=second is None, WORK=work,
        BESIDE=Constants(()) if beside is None else beside.forms,
        SHAPE=Constants(()) if beside is None else beside.shape, maxnreg=norms.REGISTERS, **EXACT,
    )  # fmt: skip
    return out


def rows_at_once(n: int, blocks: Sequence[int]) -> int:
    """How many of ``n`` rows a program takes; ``blocks``: weights per block of each of its matrices."""
    most = TILE if len(blocks) == 1 or max(blocks) == 1 else _ROWS_OF_TWO
    return min(triton.next_power_of_2(n), sized(FEW, most))


@triton.jit
def _rows_of(
    operand, table, room, n_tokens, GIVEN: tl.constexpr, OF: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """T rows of an operand after its parts, which are made in ``room``.

    Returns a pointer, stride, first row, rows [T] and last one; and the mean and factor of the norm.
    """
    x, before, _, _, eps, x_stride, n_in = operand
    t_ = tl.program_id(0) * T + tl.arange(0, T)
    begins, last = tl.program_id(0) * T, n_tokens - 1
    taken = tl.minimum(t_, last).to(tl.int64)
    if before is not None:
        made = None
        for s in tl.static_range(len(before)):
            if s > 0:
                x, x_stride = before[s][10], before[s][11]
            if GIVEN[OF + 5 * s + 7] == "convolution":
                convolved_rows(
                    x, before[s], room, begins, last, x_stride, n_in, GIVEN[OF + 5 * s + 5], T
                )
            else:
                parts_ready(
                    x, made, before[s], table, room, begins, last, x_stride, n_in, GIVEN, OF + 5 * s + 5, T,
                )  # fmt: skip
            tl.debug_barrier()
            made = room
        x, x_stride = made, n_in
        begins, taken, last = 0, tl.arange(0, T).to(tl.int64), T
    mean, by = 0.0, 1.0
    NORM: tl.constexpr = GIVEN[OF + 2]
    if NORM != "":
        rows = x + taken[:, None] * x_stride
        all = (t_ >= 0)[:, None]
        mean, by = norms.moments(rows, all, eps, GIVEN[OF + 3], T, GIVEN[OF + 4], NORM == "layer")
    return x, x_stride, begins, taken, last, mean, by


@triton.jit
def _of_matrix(
    part, rows, table, residual, chosen, times, route, n_routed, out, room, float_room, n_tokens, out_stride,
    residual_stride, factor, ints,
    FORMS: tl.constexpr, GIVEN: tl.constexpr, P: tl.constexpr, NATIVE: tl.constexpr, T: tl.constexpr,
    R: tl.constexpr, G: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """The result of :func:`_rows_of` times every nth tile of R rows of a matrix; if gated, half are gates.

    With ``chosen`` T is 1, and the matrix is one of a stack, which ``route`` chooses first, if it is given.
    """
    low, _, _, _, _, _, bias, n_out, chunks, column, first, programs, slots, operand = part
    _, _, weight, shift, _, _, n_in = operand
    x, x_stride, begins, taken, last, mean, by = rows
    OF: tl.constexpr = 20 * P
    ACTIVATION: tl.constexpr = GIVEN[OF]
    GATED: tl.constexpr = GIVEN[OF + 1]
    AT: tl.constexpr = 9 * P
    BLOCK: tl.constexpr = FORMS[AT + 7]
    SIDES: tl.constexpr = 2 if GATED else 1
    WIDE: tl.constexpr = R // SIDES
    width = n_out // SIDES
    t_ = tl.program_id(0) * T + tl.arange(0, T)
    t = tl.minimum(t_, n_tokens - 1).to(tl.int64)
    begin, e = tl.program_id(1) - first, 0
    if chosen is not None:
        slot = begin // programs
        begin %= programs
        column += slot * width
        if route is not None:
            experts, weights = routed(
                route[1], n_routed, tl.program_id(0), tl.program_id(1) == 0, SHAPE
            )
            mine = tl.arange(0, SHAPE[3])[None, :] == slot
            e = tl.sum(tl.where(mine, experts, 0))
            if times is not None:
                bits = tl.where(mine, weights.to(tl.int32, bitcast=True), 0)
                times = tl.sum(bits).to(tl.float32, bitcast=True)
        else:
            at = tl.program_id(0) * slots + slot
            e = tl.load(chosen + at)
            if times is not None:
                times = tl.load(times + at)
        if bias is not None:
            bias += e.to(tl.int64) * n_out
    made = rows_ready(
        low, x, weight, shift, mean, by, times, room, float_room, ints, begins, taken, last, x_stride, n_in,
        chunks, GIVEN[OF + 2], BLOCK, T,
    )  # fmt: skip
    r = tl.arange(0, R)
    for tile in range(begin, tl.cdiv(width, WIDE), programs):
        row = tl.minimum(tile * WIDE + r % WIDE, width - 1) + r // WIDE * width
        y = tile_sums(part, made, row, e, n_in, chosen is not None, FORMS, AT, NATIVE, T, R, G)
        c = tile * WIDE + tl.arange(0, WIDE)
        there = (t_ < n_tokens)[:, None] & (c < width)[None, :]
        if ACTIVATION == "":
            finish(
                y, out + column, out_stride, residual, residual_stride, factor, bias, t, row, there
            )
        else:
            if bias is not None:
                y += tl.load(bias + row)[None, :]
            up = 1.0
            if GATED:
                y, up = tl.split(tl.permute(tl.reshape(y, (T, 2, WIDE)), (0, 2, 1)))
            if ACTIVATION == "clamped":
                y = tl.where(y > factor, factor, tl.where(y < -factor, -factor, y))
            else:
                y = norms.activated(y, up, table, there, ACTIVATION)
            tl.store(out + t[:, None] * out_stride + (column + c)[None, :], y, mask=there)


@triton.jit(do_not_specialize=["n_beside", "n_tokens", "factor"])
def fused_product(
    parts, table, residual, chosen, times, out, room, float_room, beside, n_beside, n_tokens, out_stride,
    residual_stride, factor, size, ints, ready,
    FORMS: tl.constexpr, GIVEN: tl.constexpr, NATIVE: tl.constexpr, T: tl.constexpr, R: tl.constexpr,
    G: tl.constexpr, SAME: tl.constexpr, WORK: tl.constexpr, BESIDE: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Every program takes one of the matrices, see ``_of_matrix``; SAME: all have the first one's operand.

    ``parts``: for each the result of :func:`planes_of`; its column of the output, first program, number of
    programs, and how often they repeat: once for each chosen matrix of a stack; and what :class:`Operand` has
    for kernels.  ``room`` and ``float_room`` are the same memory, ``size`` words per program:
    first ``ints`` integers, then floats.  Rows whose parts are normalised are at ``ready``.  Programs from
    ``beside[0]`` on do :class:`~aleator.models.kernels.floats.Work`, whose count is ``n_beside``; but a row's
    choice of experts is made by each program of the stack, and written by the first.
    """
    number = tl.program_id(1)
    mine = (number.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * size
    room += mine
    float_room += mine
    if number < parts[len(FORMS) - 1][10] + parts[len(FORMS) - 1][11] * parts[len(FORMS) - 1][12]:
        if SAME:  # made in one place of the code: compiling it takes time
            rows = _rows_of(parts[0][13], table, float_room + ready, n_tokens, GIVEN, 0, T)
        for p in tl.static_range(len(FORMS)):
            if (number >= parts[p][10]) & (number < parts[p][10] + parts[p][11] * parts[p][12]):
                if not SAME:
                    rows = _rows_of(
                        parts[p][13], table, float_room + ready, n_tokens, GIVEN, 20 * p, T
                    )
                _of_matrix(
                    parts[p], rows, table, residual, chosen if p == 0 else None, times if p == 0 else None,
                    beside if WORK == "route" else None, n_beside, out, room, float_room, n_tokens,
                    out_stride, residual_stride, factor, ints, FORMS, GIVEN, p, NATIVE, T, R, G, SHAPE,
                )  # fmt: skip
    if WORK != "" and WORK != "route":
        further = number - beside[0]
        if further >= 0:
            at = further * tl.num_programs(0) + tl.program_id(0)
            worked(beside[1], n_beside, at, WORK, BESIDE, SHAPE)
