"""Rows of a product's input made ready by the product's own program, in its own memory, and tiles of it."""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.models.kernels.floats import exponential
from aleator.models.kernels.norms import activated, moments, scaled
from aleator.models.kernels.product_sums import few_sums, float_sums, in_pairs, places, rounded


@triton.jit
def prepared(
    x, weight, shift, mean, factor, times, q, d, sums, t, x_stride, runs,
    NORM: tl.constexpr, BLOCK: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Rows ``t`` [T] of x in int8: words ``q`` [T, 8, runs], ``d`` [T, blocks] and ``sums`` [T, 2, runs]."""
    RUNS: tl.constexpr = BLOCK // 32
    N: tl.constexpr = 1024 // BLOCK  # blocks at a time
    blocks = runs // RUNS
    i = tl.arange(0, T).to(tl.int64)[:, None]
    for begin in range(0, blocks, N):
        b = begin + tl.arange(0, N)
        inside = (b < blocks)[None, :]
        e = tl.arange(0, N * BLOCK)[None, :]
        column = begin * BLOCK + e
        there = column < runs * 32
        value = _ready(x, weight, shift, mean, factor, times, t, x_stride, column, there, NORM)
        whole, by, sixteens = rounded(tl.reshape(value, (T * N, BLOCK)), T * N, BLOCK)
        tl.store(d + i * blocks + b[None, :], tl.reshape(by, (T, N)), mask=inside)
        place = tl.arange(0, 4)[None, None, :] * 8
        word = tl.sum((tl.reshape(whole, (T, N * BLOCK // 4, 4)) & 255) << place, axis=2)
        at = tl.arange(0, N * BLOCK // 4)[None, :]
        run = begin * RUNS + at // 8
        tl.store(q + (i * 8 + at % 8) * runs + run, word, mask=run < runs)
        at = tl.arange(0, N * RUNS * 2)[None, :]
        run = begin * RUNS + at // 2
        two = tl.reshape(sixteens, (T, N * RUNS * 2))
        tl.store(sums + (i * 2 + at % 2) * runs + run, two, mask=run < runs)


@triton.jit
def made_ready(
    x, weight, shift, mean, factor, times, out, t, x_stride, n_in, NORM: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Rows ``t`` [T] of x, normalised and multiplied by ``times``: ``out`` float32 [T, n_in]."""
    i = tl.arange(0, T).to(tl.int64)[:, None]
    for begin in range(0, n_in, 1024):
        column = begin + tl.arange(0, 1024)[None, :]
        there = column < n_in
        value = _ready(x, weight, shift, mean, factor, times, t, x_stride, column, there, NORM)
        tl.store(out + i * n_in + column, value, mask=there)


@triton.jit
def made_pairs(
    x, weight, shift, mean, factor, times, out, t, x_stride, n_in, chunks, NORM: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """As :func:`made_ready`, for a matrix in BF16: ``out`` int32 [T, 64 chunks], see :func:`in_pairs`."""
    i = tl.arange(0, T).to(tl.int64)[:, None]
    words = chunks * 64
    for begin in range(0, words, 512):
        column = 2 * begin + tl.arange(0, 1024)[None, :]
        there = column < n_in
        value = _ready(x, weight, shift, mean, factor, times, t, x_stride, column, there, NORM)
        word = begin + tl.arange(0, 512)[None, :]
        tl.store(out + i * words + word, in_pairs(value, column, n_in, T), mask=word < words)


@triton.jit
def _ready(
    x, weight, shift, mean, factor, times, t, x_stride, column, there, NORM: tl.constexpr,
):  # fmt: skip
    """Elements ``column`` of rows ``t``, normalised and multiplied by ``times``."""
    value = tl.load(x + t[:, None] * x_stride + column, mask=there)
    if NORM != "":
        value = scaled(value, weight, shift, mean, factor, column, there, NORM)
    if times is not None:
        value = value * times
    return value


@triton.jit
def parts_ready(
    x, made, step, table, out, first, last, x_stride, n_in,
    GIVEN: tl.constexpr, AT: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """T rows of x in parts, from row ``first`` on: ``out`` float32 [T, n_in]; the last row repeats.

    ``step`` and GIVEN, from AT on, are of a :class:`~aleator.models.kernels.recurrent_parts.PartNorm`.  The
    first program of a row writes to ``kept``.  ``made``, the same as ``out``, is what was made before: the
    residual, or without ``x`` what is taken.
    """
    weight, gate, residual, whole, kept, eps, gate_row, gate_part, residual_row, factor, _, _ = step
    SIZE: tl.constexpr = GIVEN[AT]
    WHOLE: tl.constexpr = GIVEN[AT + 1]
    KIND: tl.constexpr = GIVEN[AT + 2]
    WIDE: tl.constexpr = GIVEN[AT + 3]
    AHEAD: tl.constexpr = GIVEN[AT + 4]
    ROWS: tl.constexpr = 1024 // WIDE
    parts = n_in // SIZE
    for begin in range(0, T * parts, ROWS):
        number = begin + tl.arange(0, ROWS)[:, None]
        there = number < T * parts
        i, part = number // parts, number % parts
        token = tl.minimum(first + i, last).to(tl.int64)
        mine, by = i * n_in + part * SIZE, 1.0
        if x is None:
            rows = made + mine
        else:
            rows = x + token * x_stride + part * SIZE
        if weight is not None:
            by = moments(rows, there, eps, SIZE, ROWS, AHEAD, False)[1]
            if x is None:
                tl.debug_barrier()  # what was made is read by other threads, and then written over
        for start in range(0, SIZE, WIDE):
            column = start + tl.arange(0, WIDE)[None, :]
            inside = there & (column < SIZE)
            value = tl.load(rows + column, mask=inside)
            if weight is not None:
                own = part * SIZE + column if WHOLE else part * 0 + column
                value = scaled(value, weight, None, 0.0, by, own, inside, "rms")
            if gate is not None:
                z = tl.load(gate + token * gate_row + part * gate_part + column, mask=inside)
                if KIND == "sigmoid":
                    value = tl.div_rn(value, 1.0 + exponential(-z))
                else:
                    value = activated(z, value, table, inside, KIND)
            if residual is not None or (made is not None and x is not None):
                if residual is not None:
                    added = residual + (token * residual_row + part * SIZE + column)
                else:
                    added = made + (mine + column)
                value = tl.load(added, mask=inside) + value * factor
                if whole is not None:
                    value = value * tl.load(whole)
                if kept is not None:
                    if tl.program_id(1) == 0:
                        to = kept + token * n_in + part * SIZE + column
                        tl.store(to, value, mask=inside & (first + i <= last))
            tl.store(out + mine + column, value, mask=inside)


@triton.jit
def rows_ready(
    low, x, weight, shift, mean, by, times, room, float_room, ints, first, taken, last, x_stride, n_in, chunks,
    NORM: tl.constexpr, BLOCK: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Rows ``taken`` [T] of x, from ``first`` to ``last``, as :func:`tile_sums` takes them for ``low``."""
    if BLOCK > 1:
        runs = n_in // 32
        q, xs, xd = room, room + T * 8 * runs, float_room + ints
        prepared(
            x, weight, shift, mean, by, times, q, xd, xs, taken, x_stride, runs, NORM, BLOCK, T
        )
        made = q, xd, xs, xd + T * (n_in // BLOCK)
    elif low.dtype.element_ty.is_bf16():
        made_pairs(x, weight, shift, mean, by, times, room, taken, x_stride, n_in, chunks, NORM, T)
        made = room, places(0, chunks * 64, T, T)
        tl.debug_barrier()
    elif NORM != "" or times is not None:
        made_ready(x, weight, shift, mean, by, times, float_room, taken, x_stride, n_in, NORM, T)
        made = float_room, places(0, n_in, T, T)
        tl.debug_barrier()
    else:
        made = x, places(first, x_stride, last, T)
    return made


@triton.jit
def tile_sums(
    part, made, row, e, n_in, STACKED: tl.constexpr, FORMS: tl.constexpr, AT: tl.constexpr,
    NATIVE: tl.constexpr, T: tl.constexpr, R: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """What :func:`rows_ready` has made times rows ``row`` [R] of a matrix, float32 [T, R].

    ``part`` begins with what :func:`planes_of` gives of a matrix, number ``e`` of a stack, or the only one if
    not STACKED.  FORMS has its form from AT on.
    """
    low, n_out = part[0], part[7]
    BLOCK: tl.constexpr = FORMS[AT + 7]
    if BLOCK > 1:
        q, xd, xs, block_sums = made
        blocks = n_in // BLOCK
        i = tl.arange(0, T)
        room_at = i.to(tl.int64)[:, None] * blocks * R + tl.arange(0, R)[None, :]
        own = (i[:, None] + tl.arange(0, R)[None, :]) >= 0
        tl.debug_barrier()
        y = few_sums(
            low, part[1], part[2], part[3], part[4], part[5], q, xd, xs, block_sums, row, i, own, room_at, R,
            T * blocks * R, n_out, n_in // 32, e, STACKED, FORMS[AT], FORMS[AT + 1], FORMS[AT + 2],
            FORMS[AT + 3], FORMS[AT + 4], FORMS[AT + 5], FORMS[AT + 6], BLOCK, NATIVE, T, R, G,
        )  # fmt: skip
    else:
        if STACKED:
            low += e.to(tl.int64) * n_out * part[8] * 128
        x, tokens = made
        y = float_sums(low, x, row.to(tl.int64), tokens, n_in, part[8], FORMS[AT + 8], T, R)
    return y
