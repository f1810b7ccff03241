"""Kernels of attention over the cells of a cache; :mod:`aleator.models.kernels.attention` launches them."""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.models.kernels.cells import meant, taken, widened
from aleator.models.kernels.floats import exponential, softened, tree
from aleator.models.kernels.rotation import hadamard_heads

_SIZES = ["from_", "begin", "n_tokens", "all", "longest"]
"""Arguments that change from step to step; kernels are not compiled anew for them."""


@triton.jit
def _seen_places(tokens, t, all, alive):
    """For tokens: where their lists begin, and the numbers of sinks, of skipped cells, and of seen cells."""
    start = tl.load(tokens + t, mask=alive)
    sinks = tl.load(tokens + all + t, mask=alive)
    first = tl.load(tokens + 2 * all + t, mask=alive)
    n = tl.load(tokens + 3 * all + t, mask=alive, other=0)
    return start, sinks, first, n


@triton.jit
def _place(i, start, sinks, first):
    """Where in the lists a token's cell number i is."""
    return start + tl.where(i < sinks, i, i - sinks + first)


@triton.jit(do_not_specialize=_SIZES)
def score(
    q, q_stride, data, halves, scores, tokens, cells, index, positions, slopes, from_,
    begin, n_tokens, all, longest, cell_stride, head_stride, stride, scale, softcap,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    DIM: tl.constexpr, KIND: tl.constexpr, BYTES: tl.constexpr, VARIANTS: tl.constexpr,
    CAPPED: tl.constexpr, PAIRS: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """Scores [pairs, longest, PADDED] of CELLS cells, counted from ``from_``: q . key * scale, and so on."""
    from_ += tl.program_id(1) * CELLS
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    alive = pair < HEADS * n_tokens
    head = pair // n_tokens
    t = begin + pair - head * n_tokens
    start, sinks, first, n = _seen_places(tokens, t, all, alive)
    if from_ < tl.max(n, 0):
        i = from_ + tl.arange(0, CELLS)[None, :]
        seen = i < n[:, None]
        place = _place(i, start[:, None], sinks[:, None], first[:, None])
        cell = tl.load(cells + place, mask=seen).to(tl.int64)
        row = (cell * cell_stride + (head * head_stride)[:, None])[:, :, None]
        member = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
        query = head[:, None] * GROUP + member[None, :]
        real = alive[:, None] & (member < GROUP)[None, :]
        at = t[:, None].to(tl.int64) * q_stride + query * DIM
        at, asked = at[:, :, None, None], real[:, :, None, None]
        if VARIANTS:
            form = tl.load(index + place, mask=seen, other=0).to(tl.int64)
            at += (form * (all * (HEADS * GROUP * DIM)))[:, None, :, None]
        lanes = tl.zeros((PAIRS, QUERIES, CELLS, 16), tl.float32)
        for k in tl.static_range((DIM + 15) // 16):
            channel = k * 16 + tl.arange(0, 16)
            if k * 16 + 16 <= DIM:
                key = widened(
                    data, halves, row, channel[None, None, :], seen[:, :, None], stride, KIND, BYTES
                )
                x = tl.load(q + (at + channel[None, None, None, :]), mask=asked)
            else:
                inside = channel < DIM
                read = seen[:, :, None] & inside[None, None, :]
                key = widened(data, halves, row, channel[None, None, :], read, stride, KIND, BYTES)
                x = tl.load(
                    q + (at + channel[None, None, None, :]),
                    mask=asked & inside[None, None, None, :],
                    other=0.0,
                )
            lanes = tl.fma(key[:, None, :, :], x, lanes)
        rows: tl.constexpr = PAIRS * QUERIES * CELLS
        score = tree(tl.reshape(lanes, (rows, 16)), rows) * scale
        score = tl.reshape(score, (PAIRS, QUERIES, CELLS))
        if CAPPED:
            score = softened(score, softcap)
        if slopes is not None:
            slope = tl.load(slopes + query, mask=real)
            own = tl.load(tokens + 4 * all + t, mask=alive)
            far = -tl.abs(tl.load(positions + place, mask=seen) - own[:, None])
            score += slope[:, :, None] * far.to(tl.float32)[:, None, :]
        to = (pair[:, None].to(tl.int64) * longest + i) * PADDED
        to = to[:, None, :] + member[None, :, None]
        tl.store(scores + to, score, mask=seen[:, None, :])


@triton.jit(do_not_specialize=_SIZES)
def weigh(
    scores, factors, tokens, sink_scores, begin, n_tokens, all, longest,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """Scores become e^(score - highest); factors [pairs, PADDED] = 1 / their sum, 0 where nothing is seen."""
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    alive = pair < HEADS * n_tokens
    head = pair // n_tokens
    t = begin + pair - head * n_tokens
    n = tl.load(tokens + 3 * all + t, mask=alive, other=0)
    most = tl.max(n, 0)
    member = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
    cell = tl.arange(0, 128)
    at = scores + (pair[:, None, None].to(tl.int64) * longest + cell[None, :, None]) * PADDED
    at += member[None, None, :]
    tops = tl.full((PAIRS, 128, QUERIES), float("-inf"), tl.float32)
    for j in tl.range(0, most, 128, num_stages=3):
        seen = (j + cell)[None, :, None] < n[:, None, None]
        score = tl.load(at + j * PADDED, mask=seen, other=float("-inf"))
        tops = tl.where(score > tops, score, tops)
    blind = (n <= 0)[:, None]
    highest = tl.where(blind, 0.0, tl.max(tops, 1))
    if sink_scores is not None:
        real = alive[:, None] & (member < GROUP)[None, :]
        query = head[:, None] * GROUP + member[None, :]
        sink = tl.load(sink_scores + query, mask=real)
        highest = tl.where(sink > highest, sink, highest)
    lanes: tl.constexpr = 16 * QUERIES
    total = tl.zeros((PAIRS, lanes), tl.float32)
    for j in tl.range(0, most, 128, num_stages=3):
        seen = (j + cell)[None, :, None] < n[:, None, None]
        score = tl.load(at + j * PADDED, mask=seen)
        weight = exponential(score - highest[:, None, :])
        tl.store(at + j * PADDED, weight, mask=seen)
        groups = tl.reshape(tl.where(seen, weight, 0.0), (PAIRS, 8, lanes))
        total = _add_eight(total, groups, PAIRS, lanes)
    total = tl.permute(tl.reshape(total, (PAIRS, 16, QUERIES)), (0, 2, 1))
    total = tl.reshape(total, (PAIRS * QUERIES, 16))
    total = tl.reshape(tree(total, PAIRS * QUERIES), (PAIRS, QUERIES))
    if sink_scores is not None:
        total += exponential(sink - highest)
    factor = tl.where(blind, 0.0, tl.div_rn(1.0, tl.where(blind, 1.0, total)))
    tl.store(factors + pair[:, None] * PADDED + member[None, :], factor, mask=alive[:, None])


@triton.jit
def _rows_at(j, start, sinks, first, n, head, cells, cell_stride, head_stride):
    """Where the values of 16 cells from number j on begin, int64 [pairs, 1, 16], and which are seen."""
    i = (j + tl.arange(0, 16))[None, :]
    seen = i < n[:, None]
    place = _place(i, start[:, None], sinks[:, None], first[:, None])
    cell = tl.load(cells + place, mask=seen).to(tl.int64)
    row = cell * cell_stride + (head * head_stride)[:, None]
    return row[:, None, :], seen[:, None, :]


@triton.jit(do_not_specialize=_SIZES)
def mix(
    weights, factors, data, halves, out, tokens, cells,
    begin, n_tokens, all, longest, cell_stride, head_stride, stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    DIM: tl.constexpr, KIND: tl.constexpr, BYTES: tl.constexpr, PAIRS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """CHANNELS channels, see ``_mix_channels``."""
    _mix_channels(
        weights, factors, data, halves, out, tokens, cells, tl.program_id(1) * CHANNELS,
        begin, n_tokens, all, longest, cell_stride, head_stride, stride,
        HEADS, GROUP, PADDED, QUERIES, DIM, KIND, BYTES, PAIRS, CHANNELS,
    )  # fmt: skip


@triton.jit
def _mix_channels(
    weights, factors, data, halves, out, tokens, cells, from_,
    begin, n_tokens, all, longest, cell_stride, head_stride, stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    DIM: tl.constexpr, KIND: tl.constexpr, BYTES: tl.constexpr, PAIRS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Outputs [T, H, DIM]: the sum of weight * value over the cells in order, times the factor."""
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    alive = pair < HEADS * n_tokens
    head = pair // n_tokens
    t = begin + pair - head * n_tokens
    start, sinks, first, n = _seen_places(tokens, t, all, alive)
    member = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
    channel = from_ + tl.arange(0, CHANNELS)
    at = weights + (pair.to(tl.int64) * longest * PADDED)[:, None, None] + member[None, :, None]
    total = tl.zeros((PAIRS, QUERIES, CHANNELS), tl.float32)
    here = channel[None, :, None]
    # Data that are not whole words are not prefetched automatically
    ahead: tl.constexpr = 16 if BYTES > 4 else 0
    if ahead:
        row, read = _rows_at(0, start, sinks, first, n, head, cells, cell_stride, head_stride)
        read = read & (here < DIM)
        q, d, fifth, least = taken(data, halves, row, here, read, stride, KIND, BYTES)
    for j in tl.range(0, tl.max(n, 0), 16, num_stages=6):
        i = (j + tl.arange(0, 16))[None, :]
        seen = i < n[:, None]
        if ahead:
            value = meant(q, d, fifth, least, here, KIND)
        row, read = _rows_at(
            j + ahead, start, sinks, first, n, head, cells, cell_stride, head_stride
        )
        read = read & (here < DIM)
        q, d, fifth, least = taken(data, halves, row, here, read, stride, KIND, BYTES)
        if not ahead:
            value = meant(q, d, fifth, least, here, KIND)
        # 1 * -0 leaves every sum as it is, whatever its sign.
        value = tl.where(seen[:, None, :], value, -0.0)
        weight = tl.load(at + i[:, None, :] * PADDED, mask=seen[:, None, :], other=1.0)
        total = _sixteen(total, weight, value, PAIRS, QUERIES, CHANNELS)
    factor = tl.load(factors + pair[:, None] * PADDED + member[None, :], mask=alive[:, None])
    query = (t * HEADS + head)[:, None].to(tl.int64) * GROUP + member[None, :]
    to = out + query[:, :, None] * DIM + channel[None, None, :]
    real = alive[:, None] & (member < GROUP)[None, :]
    tl.store(to, total * factor[:, :, None], mask=real[:, :, None] & (channel < DIM)[None, None, :])


@triton.jit(do_not_specialize=_SIZES)
def attend(
    q, q_stride, keys, key_halves, values, value_halves, out, scores, factors, tokens, cells, key_cells, index,
    positions, slopes, sink_scores, begin, n_tokens, all, longest, key_cell, key_head, key_channel,
    value_cell, value_head, value_channel, scale, softcap,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    DIM: tl.constexpr, KIND: tl.constexpr, BYTES: tl.constexpr, VARIANTS: tl.constexpr,
    CAPPED: tl.constexpr, PAIRS: tl.constexpr, CELLS: tl.constexpr, VALUES: tl.constexpr,
    VALUE_KIND: tl.constexpr, VALUE_BYTES: tl.constexpr, CHANNELS: tl.constexpr, HADAMARD_Q: tl.constexpr,
    HADAMARD_OUT: tl.constexpr,
):  # fmt: skip
    """Scores, weights and values of some pairs, one after the other; the grid's second axis has length 1.

    ``HADAMARD_Q`` and ``HADAMARD_OUT`` rotate queries and outputs: block, its logarithm and factor; block 0:
    they do not rotate.
    """
    if HADAMARD_Q[0] > 0 or HADAMARD_OUT[0] > 0:
        pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
        head = pair // n_tokens
        t = (begin + pair - head * n_tokens).to(tl.int64)
        member = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
        real = (pair < HEADS * n_tokens)[:, None] & (member < GROUP)[None, :]
        real = tl.reshape(real, (PAIRS * QUERIES, 1))
        query = head[:, None] * GROUP + member[None, :]
    if HADAMARD_Q[0] > 0:
        at = tl.reshape(t[:, None] * q_stride + query * DIM, (PAIRS * QUERIES, 1))
        hadamard_heads(
            q + at, real, DIM, PAIRS * QUERIES, HADAMARD_Q[0], HADAMARD_Q[1], HADAMARD_Q[2]
        )
    for from_ in range(0, longest, CELLS):
        score(
            q, q_stride, keys, key_halves, scores, tokens, key_cells, index, positions, slopes, from_,
            begin, n_tokens, all, longest, key_cell, key_head, key_channel, scale, softcap,
            HEADS, GROUP, PADDED, QUERIES, DIM, KIND, BYTES, VARIANTS, CAPPED, PAIRS, CELLS,
        )  # fmt: skip
    tl.debug_barrier()
    weigh(
        scores, factors, tokens, sink_scores, begin, n_tokens, all, longest,
        HEADS, GROUP, PADDED, QUERIES, PAIRS,
    )  # fmt: skip
    tl.debug_barrier()
    for from_ in range(0, VALUES, CHANNELS):
        _mix_channels(
            scores, factors, values, value_halves, out, tokens, cells, from_,
            begin, n_tokens, all, longest, value_cell, value_head, value_channel,
            HEADS, GROUP, PADDED, QUERIES, VALUES, VALUE_KIND, VALUE_BYTES, PAIRS, CHANNELS,
        )  # fmt: skip
    if HADAMARD_OUT[0] > 0:
        at = tl.reshape((t[:, None] * (HEADS * GROUP) + query) * VALUES, (PAIRS * QUERIES, 1))
        hadamard_heads(
            out + at,
            real,
            VALUES,
            PAIRS * QUERIES,
            HADAMARD_OUT[0],
            HADAMARD_OUT[1],
            HADAMARD_OUT[2],
        )


# With cells as axes of 2, the highest bit of their number last, tl.split gives the halves in order.  Function
# calls are slow in the interpreter, so there are few.
@triton.jit
def _add_eight(total, x, P: tl.constexpr, R: tl.constexpr):
    """Add x [P, 8, R] to total [P, R], one group after the other."""
    x = tl.permute(tl.reshape(x, (P, 2, 2, 2, R)), (0, 4, 3, 2, 1))
    a, b = tl.split(x)
    a0, a1 = tl.split(a)
    b0, b1 = tl.split(b)
    x0, x1 = tl.split(a0)
    x2, x3 = tl.split(a1)
    x4, x5 = tl.split(b0)
    x6, x7 = tl.split(b1)
    return (((((((total + x0) + x1) + x2) + x3) + x4) + x5) + x6) + x7


@triton.jit
def _four(total, weight, value):
    w, x = tl.split(weight)
    v, y = tl.split(value)
    w0, w1 = tl.split(w)
    v0, v1 = tl.split(v)
    w2, w3 = tl.split(x)
    v2, v3 = tl.split(y)
    total = tl.fma(w0[:, :, None], v0[:, None, :], total)
    total = tl.fma(w1[:, :, None], v1[:, None, :], total)
    total = tl.fma(w2[:, :, None], v2[:, None, :], total)
    return tl.fma(w3[:, :, None], v3[:, None, :], total)


@triton.jit
def _sixteen(total, weight, value, P: tl.constexpr, Q: tl.constexpr, C: tl.constexpr):
    """Add weight [P, Q, 16] * value [P, C, 16] to total [P, Q, C], one cell after the other."""
    weight = tl.permute(tl.reshape(weight, (P, Q, 2, 2, 2, 2)), (0, 1, 5, 4, 3, 2))
    value = tl.permute(tl.reshape(value, (P, C, 2, 2, 2, 2)), (0, 1, 5, 4, 3, 2))
    w, x = tl.split(weight)
    v, y = tl.split(value)
    w0, w1 = tl.split(w)
    v0, v1 = tl.split(v)
    w2, w3 = tl.split(x)
    v2, v3 = tl.split(y)
    total = _four(_four(total, w0, v0), w1, v1)
    return _four(_four(total, w2, v2), w3, v3)
