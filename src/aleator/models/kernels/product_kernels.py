"""Kernels of products with matrices in their stored types; :mod:`aleator.models.kernels.product` launches them.

:mod:`aleator.models.kernels.planes` describes the planes of a matrix.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.models.kernels.product_sums import (
    few_sums,
    finish,
    float_sums,
    in_pairs,
    looked_up,
    places,
    power_of_2,
    rounded,
    sums_of_lanes,
)


@triton.jit
def rounded_rows(
    x, q, d, sums, n_blocks, blocks,
    BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """AT_ONCE blocks; the blocks of all rows follow each other, ``blocks`` per row."""
    RUNS: tl.constexpr = BLOCK // 32
    at = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    there = at < n_blocks
    e = tl.arange(0, BLOCK)[None, :]
    element = at.to(tl.int64)[:, None] * BLOCK + e
    value = tl.load(x + element, mask=there[:, None])
    whole, scale, sixteens = rounded(value, AT_ONCE, BLOCK)
    tl.store(d + at, scale, mask=there)
    row = (at[:, None] // blocks).to(tl.int64)
    runs, first = blocks * RUNS, at[:, None] % blocks * RUNS
    to = element
    if WORDS:
        to = ((row * 8 + e % 32 // 4) * runs + first + e // 32) * 4 + e % 4
    tl.store(q + to, whole.to(tl.int8), mask=there[:, None])
    half = tl.arange(0, 2 * RUNS)[None, :]
    tl.store(sums + (row * 2 + half % 2) * runs + first + half // 2, sixteens, mask=there[:, None])


@triton.jit
def paired_rows(x, out, n_in, words, W: tl.constexpr):
    """W words of a row of activations for a matrix in BF16, see :func:`in_pairs`."""
    row, begin = tl.program_id(0).to(tl.int64), tl.program_id(1) * W
    column, word = 2 * begin + tl.arange(0, 2 * W)[None, :], begin + tl.arange(0, W)[None, :]
    value = tl.load(x + row * n_in + column, mask=column < n_in)
    tl.store(out + row * words + word, in_pairs(value, column, n_in, 1), mask=word < words)


@triton.jit
def few_rows(
    low, high, d, m, scale, least, bias, xq, xd, xs, expert, residual, out, room,
    n_tokens, n_out, runs, out_stride, residual_stride, factor,
    LOW: tl.constexpr, HIGH: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr,
    GROUP: tl.constexpr, LEAST: tl.constexpr, D_FACTOR: tl.constexpr, BLOCK: tl.constexpr,
    NATIVE: tl.constexpr, T: tl.constexpr, R: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """T rows of x times R rows of the matrix.  ``low``, ``high``, ``xq``: as int32.

    ``room``: for :func:`few_sums`, float32 [1 or 2, n_tokens, blocks, n_out].
    """
    row_ = tl.program_id(1) * R + tl.arange(0, R)
    t_ = tl.program_id(0) * T + tl.arange(0, T)
    row, t = tl.minimum(row_, n_out - 1), tl.minimum(t_, n_tokens - 1)
    blocks = runs // (BLOCK // 32)
    wide = tl.cast(n_out, tl.int64)
    e = 0
    if expert is not None:
        e = tl.load(expert + tl.program_id(0))
        if bias is not None:
            bias += e.to(tl.int64) * n_out
    there = (t_ < n_tokens)[:, None] & (row_ < n_out)[None, :]
    at = t.to(tl.int64)[:, None] * blocks * n_out + row[None, :]
    y = few_sums(
        low, high, d, m, scale, least, xq, xd, xs, room, row, t, there, at, wide, wide * n_tokens * blocks,
        n_out, runs, e, expert is not None,
        LOW, HIGH, OFFSET, TABLE, GROUP, LEAST, D_FACTOR, BLOCK, NATIVE, T, R, G,
    )  # fmt: skip
    finish(y, out, out_stride, residual, residual_stride, factor, bias, t, row, there)


@triton.jit
def _places(at, half, BITS: tl.constexpr):
    """Where a plane of BITS bits has the elements of runs ``at`` [A]: bytes [A, 32], and bits within them."""
    e = tl.arange(0, 32)[None, :]
    k, h, j = e // 4, e // 16, e // 4 % 4
    word, shift = k, 0 * e
    if BITS == 4:
        word, shift = j, 4 * h
    elif BITS == 2:
        word, shift = j // 2, 4 * (j % 2) + 2 * h
    elif BITS == 1:
        word, shift = 0 * e, k
    return word * half * 4 + at[:, None] * 4 + e % 4, shift


@triton.jit
def _elements(
    low, high, low_shift, high_shift,
    LOW: tl.constexpr, HIGH: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Elements, int32, from pointers to bytes with their bits; see :func:`_places`."""
    v = tl.load(low).to(tl.int32)
    if LOW < 8:
        v = (v >> low_shift) & ((1 << LOW) - 1)
    if HIGH:
        v |= ((tl.load(high).to(tl.int32) >> high_shift) & ((1 << HIGH) - 1)) << LOW
    if TABLE != "":
        v = looked_up(v, TABLE)
    if LOW == 8 or TABLE == "IQ4":
        v = (v << 24) >> 24
    elif TABLE == "MXFP4":
        v = v & 255
    return v - OFFSET


@triton.jit
def many_rows(
    low, high, d, m, scale, least, bias, xq, xd, xs, residual, out,
    n_tokens, n_out, runs, out_stride, residual_stride, factor,
    LOW: tl.constexpr, HIGH: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr,
    GROUP: tl.constexpr, LEAST: tl.constexpr, D_FACTOR: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr, T: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """T rows of x times R rows of the matrix, on tensor cores.  ``low``, ``high``: uint8."""
    RUNS: tl.constexpr = BLOCK // 32
    t = tl.program_id(0) * T + tl.arange(0, T)
    row = tl.program_id(1) * R + tl.arange(0, R)
    there = (t < n_tokens)[:, None] & (row < n_out)[None, :]
    row_in, t_in = tl.minimum(row, n_out - 1), tl.minimum(t, n_tokens - 1)
    blocks, n_rows = runs // RUNS, n_out
    if WIDE:  # places beyond 2^31
        row_in, n_rows, t_in = row_in.to(tl.int64), tl.cast(n_rows, tl.int64), t_in.to(tl.int64)
    half = n_rows * runs
    first = row_in * runs
    e = tl.arange(0, 32)[None, :]
    low_at, low_shift = _places(first, half, LOW)
    high_at, high_shift = _places(first, half, HIGH)
    x_at = (t_in * runs * 32)[:, None] + e
    y = tl.full((T, R), 0.0, tl.float32)
    for b in range(0, blocks):
        total = tl.full((T, R), 0, tl.int32)
        lower = tl.full((T, R), 0, tl.int32)
        for r in range(0, RUNS):
            run = b * RUNS + r
            at = first + run
            x = tl.load(xq + x_at + run * 32)
            low_run = low + low_at + run * 4
            high_run = high + high_at + run * 4 if HIGH else low_run
            w = _elements(low_run, high_run, low_shift, high_shift, LOW, HIGH, OFFSET, TABLE).to(
                tl.int8
            )
            if GROUP == 16:
                both = tl.load(scale + e // 16 * half + at[:, None])
                if LEAST == 4:
                    lower = tl.dot(x, tl.trans((both >> 4) & 15), lower, out_dtype=tl.int32)
                for h in tl.static_range(2):
                    part = tl.where(e // 16 == h, w, 0).to(tl.int8)
                    by = tl.load(scale + h * half + at).to(tl.int32)[None, :]
                    if LEAST == 4:
                        by = by & 15
                    total += by * tl.dot(x, tl.trans(part), out_dtype=tl.int32)
            elif GROUP == 32:
                by = tl.load(scale + at).to(tl.int32)[None, :]
                total += by * tl.dot(x, tl.trans(w), out_dtype=tl.int32)
                if LEAST == 8:  # for every element: the product is the least value times the sum
                    of = tl.load(least + at[:, None] + 0 * e)
                    lower = tl.dot(x, tl.trans(of), lower, out_dtype=tl.int32)
            else:
                total += tl.dot(x, tl.trans(w), out_dtype=tl.int32)
        dx = tl.load(xd + t_in * blocks + b)[:, None]
        w_at = n_rows * b + row_in
        dw = tl.load(d + w_at)[None, :]
        dw = power_of_2(dw) if TABLE == "MXFP4" else dw.to(tl.float32) * D_FACTOR
        y = tl.fma(dw * dx, total.to(tl.float32), y)
        if m is not None:
            mw = tl.load(m + w_at).to(tl.float32)[None, :]
            if LEAST != 0:
                y = tl.fma(-(mw * dx), lower.to(tl.float32), y)
            else:
                sum_at = xs + t_in * 2 * runs + b
                ones = (tl.load(sum_at) + tl.load(sum_at + runs)).to(tl.float32)
                y = tl.fma(mw, dx * ones[:, None], y)
    finish(y, out, out_stride, residual, residual_stride, factor, bias, t_in, row_in, there)


@triton.jit
def float_rows(
    w, bias, x, expert, residual, out,
    n_tokens, n_out, n_in, chunks, x_stride, out_stride, residual_stride, factor,
    AHEAD: tl.constexpr, T: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """T rows of x times R rows of a matrix of floats, see :func:`sums_of_lanes`."""
    row = tl.program_id(1) * R + tl.arange(0, R)
    t = tl.program_id(0) * T + tl.arange(0, T)
    there = (t < n_tokens)[:, None] & (row < n_out)[None, :]
    row_in = tl.minimum(row, n_out - 1).to(tl.int64)
    t_in = tl.minimum(t, n_tokens - 1).to(tl.int64)
    if expert is not None:
        e = tl.load(expert + tl.program_id(0)).to(tl.int64)
        w += e * n_out * chunks * 128
        if bias is not None:
            bias += e * n_out
    own = places(tl.program_id(0) * T, x_stride, n_tokens - 1, T)
    y = float_sums(w, x, row_in, own, n_in, chunks, AHEAD, T, R)
    finish(y, out, out_stride, residual, residual_stride, factor, bias, t_in, row_in, there)


@triton.jit
def float_tiles(
    w, bias, x, residual, out, room,
    n_tokens, n_out, n_in, chunks, x_stride, out_stride, residual_stride, factor,
    AHEAD: tl.constexpr, ROWS: tl.constexpr, T: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Every nth tile of T rows of x and ROWS * R rows of a matrix of floats; each thread adds many.

    Sums of lanes go through ``room``, float32 [programs, ROWS * T * R * 16].
    """
    WIDE: tl.constexpr = ROWS * R
    room += tl.program_id(0).to(tl.int64) * (WIDE * T * 16)
    lane = tl.arange(0, R)[:, None] * 16 + tl.arange(0, 16)[None, :]
    t_, c = tl.arange(0, T), tl.arange(0, WIDE)
    at = room + (c // R * T)[None, :] * (R * 16) + t_[:, None] * (R * 16) + (c % R * 16)[None, :]
    across = tl.cdiv(n_out, WIDE)
    for tile in range(tl.program_id(0), across * tl.cdiv(n_tokens, T), tl.num_programs(0)):
        first, begin = tile // across * T, tile % across * WIDE
        rows = ()
        for r in tl.static_range(ROWS):
            rows += (tl.minimum(begin + r * R + tl.arange(0, R), n_out - 1).to(tl.int64),)
        own = places(first, x_stride, n_tokens - 1, T)
        lanes = sums_of_lanes(w, x, rows, own, n_in, chunks, AHEAD, R)
        for i in tl.static_range(ROWS * T):
            tl.store(room + i * (R * 16) + lane, lanes[i])
        tl.debug_barrier()
        y = (_four(at, 0) + _four(at, 2)) + (_four(at, 1) + _four(at, 3))
        there = (first + t_ < n_tokens)[:, None] & (begin + c < n_out)[None, :]
        row, t = tl.minimum(begin + c, n_out - 1), tl.minimum(first + t_, n_tokens - 1)
        finish(y, out, out_stride, residual, residual_stride, factor, bias, t, row, there)
        tl.debug_barrier()


@triton.jit
def _four(at, lane: tl.constexpr):
    """The sum of a lane and those 8, 4 and 12 behind it, as in :func:`~aleator.models.kernels.floats.tree`."""
    here = tl.load(at + lane) + tl.load(at + lane + 8)
    return here + (tl.load(at + lane + 4) + tl.load(at + lane + 12))


@triton.jit
def widened_rows(
    low, high, d, m, scale, least, ids, out, n_out, runs,
    LOW: tl.constexpr, HIGH: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr,
    GROUP: tl.constexpr, LEAST: tl.constexpr, D_FACTOR: tl.constexpr, BLOCK: tl.constexpr,
    G: tl.constexpr,
):  # fmt: skip
    """G runs of a row of the matrix, widened."""
    RUNS: tl.constexpr = BLOCK // 32
    row = tl.load(ids + tl.program_id(0))
    runs_ = tl.program_id(1) * G + tl.arange(0, G)
    run = tl.minimum(runs_, runs - 1)
    half = tl.cast(n_out, tl.int64) * runs
    at = row * runs + run
    block = (run // RUNS).to(tl.int64) * n_out + row
    e = tl.arange(0, 32)[None, :]
    low_at, low_shift = _places(at, half, LOW)
    high_at, high_shift = _places(at, half, HIGH)
    bits = high + high_at if HIGH else low
    v = _elements(low + low_at, bits, low_shift, high_shift, LOW, HIGH, OFFSET, TABLE)
    v = v.to(tl.float32)
    d_of = tl.load(d + block)[:, None]
    d_of = power_of_2(d_of) if TABLE == "MXFP4" else d_of.to(tl.float32) * D_FACTOR
    if GROUP < 256:
        place = (e // 16) * half + at[:, None] if GROUP == 16 else at[:, None]
        by = tl.load(scale + place).to(tl.int32)
        d_of = d_of * (by & 15 if LEAST == 4 else by).to(tl.float32)
    v = d_of * v
    if m is not None:
        m_of = tl.load(m + block).to(tl.float32)[:, None]
        if LEAST == 4:
            v = v - m_of * ((by >> 4) & 15).to(tl.float32)
        elif LEAST == 8:
            v = v - m_of * tl.load(least + at).to(tl.float32)[:, None]
        else:
            v = v + m_of
    to = out + tl.program_id(0).to(tl.int64) * runs * 32 + runs_[:, None] * 32 + e
    tl.store(to, v, mask=(runs_ < runs)[:, None])
