"""Shared parts of kernels of products: rounded activations, sums over a matrix, bias and residual."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from aleator.models.kernels.floats import bfloat16_bits, tree

# The sum of four products of signed bytes and one more number.
_DP4A = tl.constexpr("dp4a.s32.s32 $0, $1, $2, $3;")
_ROUNDER = tl.constexpr(1.5 * 2.0**23)
_LEAST = tl.constexpr(2.0**-100)
_SMALL = tl.constexpr(2.0**-52)


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
    """N blocks of floats as integers, int32 [N, BLOCK], their scales [N], and sums of every 16 integers."""
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
def in_pairs(value, column, n_in, N: tl.constexpr):
    """Elements ``column`` of rows of ``n_in`` as bfloat16, two to a word: [N, W] -> int32 [N, W / 2].

    Magnitudes below 2^-52 become +0.  Zeros fill the last group of 32 elements.  Elements behind it are -0:
    their products with zeros leave every sum unchanged.
    """
    bits = bfloat16_bits(value)
    bits = tl.where(tl.abs(value) < _SMALL, 0, bits & 0xFFFF)
    bits = tl.where(column < n_in, bits, tl.where(column < (n_in + 31) // 32 * 32, 0, 0x8000))
    pairs = tl.reshape(bits, (N, bits.shape[1] // 2, 2))
    return tl.sum(pairs << (tl.arange(0, 2) * 16)[None, None, :], axis=2)


@triton.jit
def _pick(mask, a, b):
    """Bits of b where the mask is set, else of a."""
    return (a & ~mask) | (b & mask)


@triton.jit
def looked_up(v, TABLE: tl.constexpr):
    """Look up bytes below 16 in a table, byte by byte of int32."""
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
def power_of_2(exponent):
    """The value of MXFP4's exponent byte, halved, as its table holds doubled values."""
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
        y = tl.load(residual + at, mask=there) + factor * y
    tl.store(out + t.to(tl.int64)[:, None] * out_stride + row[None, :], y, mask=there)


@triton.jit
def few_sums(
    low, high, d, m, scale, least, xq, xd, xs, room, row, t, there, room_at, room_block, room_half,
    n_out, runs, e, STACKED: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr,
    GROUP: tl.constexpr, LEAST: tl.constexpr, D_FACTOR: tl.constexpr, BLOCK: tl.constexpr,
    NATIVE: tl.constexpr, T: tl.constexpr, R: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Rows ``t`` [T] of rounded activations times rows ``row`` [R] of a matrix, float32 [T, R].

    The matrix is number ``e`` of a stack, or the only one if not STACKED.

    First come the sums of blocks, G runs at a time, each thread with its own runs.  They go to ``room``, at
    ``room_at`` [T, R] and ``room_block`` further for each block; least values' are ``room_half`` further.
    Then the blocks are added in order, each thread with its own rows.
    """
    RUNS: tl.constexpr = BLOCK // 32  # runs of a block
    U: tl.constexpr = G // RUNS
    blocks = runs // RUNS
    wide = tl.cast(n_out, tl.int64)
    half = wide * runs
    if STACKED:
        e = e.to(tl.int64)
        low += e * half * LOW
        d += e * wide * blocks
        if HIGH:
            high += e * half * HIGH
        if m is not None:
            m += e * wide * blocks
        if GROUP < 256:
            scale += e * half * (32 // GROUP)
        if LEAST == 8:
            least += e * half
    # Every load has the shape [T or 1, R, G], so that the same threads load the same runs.
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
                words = tl.load(low + j * half + at, inside)
            if LOW == 2 and j % 2 == 0:
                words = tl.load(low + (j // 2) * half + at, inside)
            if HIGH == 2 and j % 2 == 0:
                bits = tl.load(high + (j // 2) * half + at, inside)
            if HIGH == 1 and j == 0:
                bits = tl.load(high + at, inside)
            for h in tl.static_range(2):
                if LOW == 8:
                    w = tl.load(low + (4 * h + j) * half + at, inside)
                elif LOW == 4:
                    w = (words >> (4 * h)) & 0x0F0F0F0F
                else:
                    w = (words >> (4 * (j % 2) + 2 * h)) & 0x03030303
                if HIGH == 2:
                    w |= ((bits >> (4 * (j % 2) + 2 * h)) & 0x03030303) << LOW
                elif HIGH == 1:
                    w |= ((bits >> (4 * h + j)) & 0x01010101) << LOW
                if TABLE != "":
                    w = looked_up(w, TABLE)
                x = tl.load(xq + x_at + (4 * h + j) * runs, inside)
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
            first_x = tl.load(xs + s_at, inside)
            second_x = tl.load(xs + s_at + runs, inside)
            first -= OFFSET * first_x
            second -= OFFSET * second_x
        if GROUP == 16:
            first_by = tl.load(scale + at, inside).to(tl.int32)
            second_by = tl.load(scale + half + at, inside).to(tl.int32)
            if LEAST == 4:
                lower = ((first_by >> 4) & 15) * first_x + ((second_by >> 4) & 15) * second_x
                first_by, second_by = first_by & 15, second_by & 15
            total = first * first_by + second * second_by
        else:
            total = first + second
            if GROUP == 32:
                total *= tl.load(scale + at, inside).to(tl.int32)
            if LEAST == 8:
                lower = (first_x + second_x) * tl.load(least + at, inside).to(tl.int32)
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
    # Unrolled, so that loads of many blocks overlap.
    for b in tl.range(0, blocks, loop_unroll_factor=16):
        at_b = wide * b
        dx, dw = tl.load(xd + b), tl.load(d + at_b)
        dw = power_of_2(dw) if TABLE == "MXFP4" else dw.to(tl.float32) * D_FACTOR
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
def _element(word, half: tl.constexpr, TYPE: tl.constexpr):
    """An element of a word of 32 bits, widened to float32."""
    if TYPE.primitive_bitwidth == 32:
        return word.to(tl.float32, bitcast=True)
    if TYPE.is_bf16():
        return (word << 16 if half == 0 else word & -65536).to(tl.float32, bitcast=True)
    return (word >> (half * 16)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def places(first, stride, last, T: tl.constexpr):
    """Where rows ``first`` to ``first + T`` begin, a tuple of int64; the last one repeats."""
    made = ()
    for i in tl.static_range(T):
        made += (tl.minimum(first + i, last).to(tl.int64) * stride,)
    return made


@triton.jit
def sums_of_lanes(w, x, rows, t, n_in, chunks, AHEAD: tl.constexpr, R: tl.constexpr):
    """Rows of x times rows of a matrix of floats: a tuple of float32 [R, 16], the sums of lanes.

    x is float32; for a matrix in BF16 it is made by :func:`in_pairs`, and the second of two elements is added
    first.  ``rows`` is a tuple of int64 [R], rows of the matrix, and ``t`` one of int64, where rows of x begin;
    results are for each of ``rows`` with each of ``t``.  AHEAD: how many chunks are read before they are added,
    which divides their number; 0: the last chunk is not whole.
    """
    T: tl.constexpr = len(t)
    TYPE: tl.constexpr = w.dtype.element_ty
    PAIRS: tl.constexpr = TYPE.is_bf16()
    PER: tl.constexpr = 32 // TYPE.primitive_bitwidth
    AT_ONCE: tl.constexpr = AHEAD if AHEAD > 0 else 1
    # Every load brings a word of each sum's lane, so that threads read what they add, and wait for no other.
    lane = tl.arange(0, 16)[None, :]
    w_at = ()
    for r in tl.static_range(len(rows)):
        first = rows[r][:, None] * chunks * (128 // PER) + lane
        w_at += (w.to(tl.pointer_type(tl.int32)) + first,)
    x_at = x + (rows[0] * 0)[:, None] + lane
    groups = (n_in + 15) // 16
    lanes = ()
    for _ in tl.static_range(len(rows) * T):
        lanes += (tl.full((R, 16), 0.0, tl.float32),)
    for c in range(0, chunks, AT_ONCE):
        words = ()
        for k in tl.static_range(AT_ONCE * 8 // PER):
            for r in tl.static_range(len(rows)):
                words += (tl.load(w_at[r] + c * (128 // PER) + k * 16),)
        for k in tl.static_range(AT_ONCE * 8):
            group = c * 8 + k
            if PAIRS and k % 2 == 0:
                both = ()
                for i in tl.static_range(T):
                    both += (tl.load(x_at + t[i] + group * 8),)
            values = ()
            for i in tl.static_range(T):
                if PAIRS:
                    values += (_element(both[i], 1 - k % 2, TYPE),)
                elif AHEAD > 0:
                    values += (tl.load(x_at + t[i] + group * 16),)
                else:
                    # After the last group, a product of -0 leaves every sum unchanged.
                    inside = group * 16 + lane < n_in
                    behind = tl.where(group < groups, 0.0, -0.0)
                    value = tl.load(x_at + t[i] + group * 16, mask=inside)
                    values += (tl.where(inside, value, behind),)
            sums = ()
            for r in tl.static_range(len(rows)):
                word = words[k // PER * len(rows) + r]
                part = _element(word, 1 - k % 2 if PAIRS else k % PER, TYPE)
                for i in tl.static_range(T):
                    sums += (tl.fma(part, values[i], lanes[r * T + i]),)
            lanes = sums
    return lanes


@triton.jit
def float_sums(w, x, row, t, n_in, chunks, AHEAD: tl.constexpr, T: tl.constexpr, R: tl.constexpr):
    """Rows of x times rows ``row`` int64 [R] of a matrix, see :func:`sums_of_lanes`; float32 [T, R]."""
    lanes = sums_of_lanes(w, x, (row,), t, n_in, chunks, AHEAD, R)
    y = tl.full((T, R), 0.0, tl.float32)
    for i in tl.static_range(T):
        y = tl.where(tl.arange(0, T)[:, None] == i, tree(lanes[i], R)[None, :], y)
    return y
