"""Kernels of products with matrices in their stored types; :mod:`aleator.models.kernels.product` launches them.

What the planes of a matrix are: :mod:`aleator.models.kernels.planes`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from aleator.models.kernels.floats import tree
from aleator.models.kernels.norms import scaled

# The sum of four products of signed bytes, and one more number.
_DP4A = tl.constexpr("dp4a.s32.s32 $0, $1, $2, $3;")
_ROUNDER = tl.constexpr(1.5 * 2.0**23)
_LEAST = tl.constexpr(2.0**-100)


def _repeated(byte: int) -> Any:
    """A byte four times, as int32."""
    word = (byte & 255) * 0x01010101
    return tl.constexpr(word - (word >> 31 << 32))


_V0, _V1, _V2, _V3, _V4, _V5, _V6, _V7, _V8, _V9, _V10, _V11, _V12, _V13, _V14, _V15 = (
    _repeated(v)  # the values of IQ4_NL and IQ4_XS
    for v in (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
)


@triton.jit
def rounded(value, N: tl.constexpr, BLOCK: tl.constexpr):
    """N blocks of floats as integers, int32 [N, BLOCK], their scales [N], and sums of each 16 of them."""
    a = tl.abs(value)
    finite = a < float("inf")
    largest = tl.max(tl.where(finite, a, 0.0), axis=1)
    broken = tl.max(tl.where(finite, 0, 1), axis=1) != 0
    usable = (largest >= _LEAST) & (broken == 0)
    safe = tl.where(usable, largest, 1.0)
    factor = tl.where(usable, tl.div_rn(127.0, safe), 0.0)
    scaled = tl.where(finite, value, 0.0) * factor[:, None]
    whole = ((scaled + _ROUNDER) - _ROUNDER).to(tl.int32)
    scale = tl.where(usable, tl.div_rn(safe, 127.0), tl.where(broken, float("nan"), 0.0))
    return whole, scale, tl.sum(tl.reshape(whole, (N, BLOCK // 16, 16)), axis=2)


@triton.jit
def rounded_rows(
    x, q, d, sums, n_blocks, blocks,
    BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """AT_ONCE blocks; all rows' blocks follow each other, ``blocks`` to a row."""
    RUNS: tl.constexpr = BLOCK // 32
    at = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    there = at < n_blocks
    e = tl.arange(0, BLOCK)[None, :]
    element = at.to(tl.int64)[:, None] * BLOCK + e
    value = tl.load(x + element, mask=there[:, None], other=0.0)
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
def _pick(mask, a, b):
    """Bits of b where the mask has them, else of a."""
    return (a & ~mask) | (b & mask)


@triton.jit
def _looked_up(v, TABLE: tl.constexpr):
    """What bytes below 16 stand for, byte by byte of int32."""
    if TABLE == "MXFP4":  # plus 12
        two = (v >> 2) & 0x01010101
        size = (v & 0x07070707) + (v & (two * 3)) + ((two & (v >> 1) & v) << 1)
        minus = ((v >> 3) & 0x01010101) * 255
        v = 0x0C0C0C0C + (size & ~minus) - (size & minus)
    elif TABLE == "IQ4":
        one, two = (v & 0x01010101) * 255, ((v >> 1) & 0x01010101) * 255
        four, eight = ((v >> 2) & 0x01010101) * 255, ((v >> 3) & 0x01010101) * 255
        a = _pick(two, _pick(one, _V0, _V1), _pick(one, _V2, _V3))
        b = _pick(two, _pick(one, _V4, _V5), _pick(one, _V6, _V7))
        c = _pick(two, _pick(one, _V8, _V9), _pick(one, _V10, _V11))
        d = _pick(two, _pick(one, _V12, _V13), _pick(one, _V14, _V15))
        v = _pick(eight, _pick(four, a, b), _pick(four, c, d))
    return v


@triton.jit
def _power_of_2(exponent):
    """What MXFP4's byte stands for, halved: its values are stored doubled."""
    e = exponent.to(tl.int32)
    small = tl.where(e == 0, 0x00200000, 0x00400000)
    return tl.where(e < 2, small, (e - 1) << 23).to(tl.float32, bitcast=True)


@triton.jit
def finish(y, out, out_stride, residual, residual_stride, factor, bias, t, row, there):
    """Bias, residual, store: y is [T, R]."""
    if bias is not None:
        y += tl.load(bias + row)[None, :]
    if residual is not None:
        at = t.to(tl.int64)[:, None] * residual_stride + row[None, :]
        y = tl.load(residual + at, mask=there, other=0.0) + factor * y
    tl.store(out + t.to(tl.int64)[:, None] * out_stride + row[None, :], y, mask=there)


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
    half = wide * runs
    if expert is not None:
        e = tl.load(expert + tl.program_id(0)).to(tl.int64)
        low += e * half * LOW
        d += e * n_out * blocks
        if HIGH:
            high += e * half * HIGH
        if m is not None:
            m += e * n_out * blocks
        if GROUP < 256:
            scale += e * half * (32 // GROUP)
        if LEAST == 8:
            least += e * half
        if bias is not None:
            bias += e * n_out
    there = (t_ < n_tokens)[:, None] & (row_ < n_out)[None, :]
    at = t.to(tl.int64)[:, None] * blocks * n_out + row[None, :]
    y = few_sums(
        low, high, d, m, scale, least, xq, xd, xs, room, row, t, there, at, wide, wide * n_tokens * blocks,
        n_out, runs, LOW, HIGH, OFFSET, TABLE, GROUP, LEAST, D_FACTOR, BLOCK, NATIVE, T, R, G,
    )  # fmt: skip
    finish(y, out, out_stride, residual, residual_stride, factor, bias, t, row, there)


@triton.jit
def few_sums(
    low, high, d, m, scale, least, xq, xd, xs, room, row, t, there, room_at, room_block, room_half,
    n_out, runs,
    LOW: tl.constexpr, HIGH: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr,
    GROUP: tl.constexpr, LEAST: tl.constexpr, D_FACTOR: tl.constexpr, BLOCK: tl.constexpr,
    NATIVE: tl.constexpr, T: tl.constexpr, R: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Rows ``t`` [T] of rounded activations times rows ``row`` [R] of a matrix, float32 [T, R].

    First sums of blocks, G runs at a time, each thread those of its own runs; they go to ``room``, at
    ``room_at`` [T, R] and ``room_block`` further for each block, those of least values ``room_half`` further.
    Then blocks in their order, each thread those of its own rows.
    """
    RUNS: tl.constexpr = BLOCK // 32  # of a block
    U: tl.constexpr = G // RUNS
    blocks = runs // RUNS
    wide = tl.cast(n_out, tl.int64)
    half = wide * runs
    # Every load has the shape [T or 1, R, G] and so, compiled, the same threads for the same runs.
    at_row = row.to(tl.int64)[None, :, None] * runs
    x_row = t.to(tl.int64)[:, None, None] * runs + (row * 0)[None, :, None]
    up = (tl.arange(0, 4) * 8)[None, None, None, :]
    for start in range(0, runs, G):
        run = start + tl.arange(0, G)[None, None, :]
        inside = run < runs
        at, x_at = at_row + run, x_row * 8 + run
        # Without the instruction, a sum for each byte of a word.
        first = tl.full((T, R, G) if NATIVE else (T, R, G, 4), 0, tl.int32)
        second = first
        for j in tl.static_range(4):
            if LOW == 4:
                words = tl.load(low + j * half + at, inside, 0)
            if LOW == 2 and j % 2 == 0:
                words = tl.load(low + (j // 2) * half + at, inside, 0)
            if HIGH == 2 and j % 2 == 0:
                bits = tl.load(high + (j // 2) * half + at, inside, 0)
            if HIGH == 1 and j == 0:
                bits = tl.load(high + at, inside, 0)
            for h in tl.static_range(2):
                if LOW == 8:
                    w = tl.load(low + (4 * h + j) * half + at, inside, 0)
                elif LOW == 4:
                    w = (words >> (4 * h)) & 0x0F0F0F0F
                else:
                    w = (words >> (4 * (j % 2) + 2 * h)) & 0x03030303
                if HIGH == 2:
                    w |= ((bits >> (4 * (j % 2) + 2 * h)) & 0x03030303) << LOW
                elif HIGH == 1:
                    w |= ((bits >> (4 * h + j)) & 0x01010101) << LOW
                if TABLE != "":
                    w = _looked_up(w, TABLE)
                x = tl.load(xq + x_at + (4 * h + j) * runs, inside, 0)
                sums = first if h == 0 else second
                if NATIVE:
                    w, x = tl.broadcast(w, x)
                    sums = tl.inline_asm_elementwise(
                        _DP4A, "=r,r,r,r", [w, x, sums], tl.int32, True, 1
                    )
                else:
                    sums += ((w[:, :, :, None] << up) >> 24) * ((x[:, :, :, None] << up) >> 24)
                if h == 0:
                    first = sums
                else:
                    second = sums
        if not NATIVE:
            first, second = tl.sum(first, axis=3), tl.sum(second, axis=3)
        if OFFSET != 0 or LEAST != 0:
            s_at = x_row * 2 + run
            first_x = tl.load(xs + s_at, inside, 0)
            second_x = tl.load(xs + s_at + runs, inside, 0)
            first -= OFFSET * first_x
            second -= OFFSET * second_x
        if GROUP == 16:
            first_by = tl.load(scale + at, inside, 0).to(tl.int32)
            second_by = tl.load(scale + half + at, inside, 0).to(tl.int32)
            if LEAST == 4:
                lower = ((first_by >> 4) & 15) * first_x + ((second_by >> 4) & 15) * second_x
                first_by, second_by = first_by & 15, second_by & 15
            total = first * first_by + second * second_by
        else:
            total = first + second
            if GROUP == 32:
                total *= tl.load(scale + at, inside, 0).to(tl.int32)
            if LEAST == 8:
                lower = (first_x + second_x) * tl.load(least + at, inside, 0).to(tl.int32)
        if RUNS > 1:
            total = tl.sum(tl.reshape(total, (T, R, U, RUNS)), axis=3)
        b = start // RUNS + tl.arange(0, U)
        place = room_at[:, :, None] + b.to(tl.int64)[None, None, :] * room_block
        real = there[:, :, None] & (b < blocks)[None, None, :]
        tl.store(room + place, total.to(tl.float32), mask=real)
        if LEAST != 0:
            lower = tl.sum(tl.reshape(lower, (T, R, U, RUNS)), axis=3)
            tl.store(room + place + room_half, lower.to(tl.float32), mask=real)
    tl.debug_barrier()
    y = tl.full((T, R), 0.0, tl.float32)
    t_at, row_at = t.to(tl.int64)[:, None], row[None, :]
    xd += t_at * blocks + row_at * 0
    xs += t_at * 2 * runs + row_at * 0
    d += row_at
    room += room_at
    # Unrolled, loads of many blocks are on their way at once.
    for b in tl.range(0, blocks, loop_unroll_factor=16):
        at_b = wide * b
        dx, dw = tl.load(xd + b), tl.load(d + at_b)
        dw = _power_of_2(dw) if TABLE == "MXFP4" else dw.to(tl.float32) * D_FACTOR
        y = tl.fma(dw * dx, tl.load(room + b * room_block), y)
        if m is not None:
            mw = tl.load(m + at_b + row_at).to(tl.float32)
            if LEAST != 0:
                y = tl.fma(-(mw * dx), tl.load(room + b * room_block + room_half), y)
            else:
                ones = (tl.load(xs + b) + tl.load(xs + b + runs)).to(tl.float32)
                y = tl.fma(mw, dx * ones, y)
    return y


@triton.jit
def _places(at, half, BITS: tl.constexpr):
    """Where a plane of so many bits has the elements of runs ``at`` [A]: bytes [A, 32], and bits of them."""
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
        v = _looked_up(v, TABLE)
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
                if LEAST == 8:  # of every element: the product is the least value times the sum
                    of = tl.load(least + at[:, None] + 0 * e)
                    lower = tl.dot(x, tl.trans(of), lower, out_dtype=tl.int32)
            else:
                total += tl.dot(x, tl.trans(w), out_dtype=tl.int32)
        dx = tl.load(xd + t_in * blocks + b)[:, None]
        w_at = n_rows * b + row_in
        dw = tl.load(d + w_at)[None, :]
        dw = _power_of_2(dw) if TABLE == "MXFP4" else dw.to(tl.float32) * D_FACTOR
        y = tl.fma(dw * dx, total.to(tl.float32), y)
        if m is not None:
            mw = tl.load(m + w_at).to(tl.float32)[None, :]
            if LEAST != 0:
                y = tl.fma(-(mw * dx), lower.to(tl.float32), y)
            else:
                sum_at = xs + t_in * 2 * runs + b
                ones = (tl.load(sum_at) + tl.load(sum_at + runs)).to(tl.float32)
                y = tl.fma(mw, dx * ones[:, None], y)
    finish(y, out, out_stride, residual, residual_stride, factor, bias, t, row, there)


@triton.jit
def float_rows(
    w, bias, x, expert, residual, out,
    n_tokens, n_out, n_in, chunks, out_stride, residual_stride, factor,
    T: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """T rows of x, float32, times R rows of a matrix of floats, eight groups of 16 elements at a time."""
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
    y = float_sums(w, x, row_in, t_in, n_in, n_in, chunks, None, None, 0.0, 1.0, "", T, R)
    finish(y, out, out_stride, residual, residual_stride, factor, bias, t, row, there)


@triton.jit
def float_sums(
    w, x, row, t, x_stride, n_in, chunks, weight, shift, mean, factor,
    NORM: tl.constexpr, T: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Rows ``t`` [T] of x, normalised first (see :func:`~aleator.models.kernels.norms.scaled`), times rows
    ``row`` [R] of a matrix of floats, both int64; float32 [T, R].
    """
    lane = tl.arange(0, 16)[None, :]
    k = tl.arange(0, 8)[None, None, :]
    groups = (n_in + 15) // 16
    lanes = tl.full((T, R, 16), 0.0, tl.float32)
    for c in range(0, chunks):
        eight = tl.load(w + (row * chunks + c)[:, None, None] * 128 + lane[:, :, None] * 8 + k)
        even, odd = tl.split(tl.reshape(eight, (R, 16, 4, 2)))
        w0, w2 = tl.split(tl.reshape(even, (R, 16, 2, 2)))
        w1, w3 = tl.split(tl.reshape(odd, (R, 16, 2, 2)))
        parts = tl.split(w0) + tl.split(w1) + tl.split(w2) + tl.split(w3)  # 0 4 1 5 2 6 3 7
        for g in tl.static_range(8):
            i = (c * 8 + g) * 16 + lane
            # Behind the last group a product of -0 leaves every sum as it is.
            behind = tl.where(c * 8 + g < groups, 0.0, -0.0)
            value = tl.load(x + t[:, None] * x_stride + i, mask=i < n_in, other=0.0)
            if NORM != "":
                value = scaled(value, weight, shift, mean, factor, i, i < n_in, NORM)
            value = tl.where(i < n_in, value, behind)
            part = parts[2 * (g % 4) + g // 4].to(tl.float32)
            lanes = tl.fma(part[None, :, :], value[:, None, :], lanes)
    return tl.reshape(tree(tl.reshape(lanes, (T * R, 16)), T * R), (T, R))


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
    d_of = _power_of_2(d_of) if TABLE == "MXFP4" else d_of.to(tl.float32) * D_FACTOR
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
