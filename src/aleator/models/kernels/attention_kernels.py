"""Kernels of attention over the cells of a cache; :mod:`aleator.models.kernels.attention` launches them."""

from __future__ import annotations

import triton
import triton.language as tl

from aleator.models.kernels.cells import meant, taken, widened
from aleator.models.kernels.floats import exponential, softened, tree
from aleator.models.kernels.heads import finish_group
from aleator.models.kernels.own_heads import own_queries, own_values
from aleator.models.kernels.recurrent import scanned
from aleator.models.kernels.rotation import hadamard_heads

_LOWEST = tl.constexpr(float("-inf"))
_SIZES = ["begin", "n_tokens", "all", "longest", "shares"]
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


@triton.jit
def _score_cells(
    q, q_stride, data, halves, scores, tops, tokens, cells, index, positions, slopes, number, from_,
    begin, n_tokens, all, longest, cell_stride, head_stride, stride, scale, softcap,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    DIM: tl.constexpr, KIND: tl.constexpr, BYTES: tl.constexpr, VARIANTS: tl.constexpr,
    CAPPED: tl.constexpr, PAIRS: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """Scores [pairs, longest, PADDED] of CELLS cells, counted from ``from_``: q . key * scale, and so on.

    The highest of them go to ``tops`` [pairs, longest / CELLS rounded up, PADDED].
    """
    pair = number * PAIRS + tl.arange(0, PAIRS)
    alive = pair < HEADS * n_tokens
    head = pair // n_tokens
    t = begin + pair - head * n_tokens
    start, sinks, first, n = _seen_places(tokens, t, all, alive)
    if from_ < tl.max(n, 0):
        i = from_ + tl.arange(0, CELLS)[None, :]
        seen = i < n[:, None]
        place = _place(i, start[:, None], sinks[:, None], first[:, None])
        cell = tl.load(cells + place, mask=seen).to(tl.int64)
        row = (cell * cell_stride + (head.to(tl.int64) * head_stride)[:, None])[:, :, None]
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
        # NaN is not above -inf
        score = tl.where(seen[:, None, :] & (score > _LOWEST), score, _LOWEST)
        to = (pair * tl.cdiv(longest, CELLS) + from_ // CELLS)[:, None] * PADDED + member[None, :]
        tl.store(tops + to, tl.max(score, 2), mask=alive[:, None])


@triton.jit
def _highest(
    tops, pair, member, n, longest,
    PADDED: tl.constexpr, QUERIES: tl.constexpr, PAIRS: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """The highest of a token's scores, [PAIRS, QUERIES]; 0 where nothing is seen."""
    block = tl.arange(0, 128)
    blocks = tl.cdiv(longest, CELLS)
    at = tops + (pair.to(tl.int64)[:, None, None] * blocks + block[None, :, None]) * PADDED
    at += member[None, None, :]
    highest = tl.full((PAIRS, QUERIES), _LOWEST, tl.float32)
    for j in range(0, tl.cdiv(tl.max(n, 0), CELLS), 128):
        there = ((j + block) * CELLS)[None, :, None] < n[:, None, None]
        top = tl.max(tl.load(at + j * PADDED, mask=there, other=_LOWEST), 1)
        highest = tl.where(top > highest, top, highest)
    return tl.where((n <= 0)[:, None], 0.0, highest)


@triton.jit
def _rows_at(j, start, sinks, first, n, head, cells, cell_stride, head_stride):
    """Where the values of 16 cells from number j on begin, int64 [pairs, 1, 16], and which are seen."""
    i = (j + tl.arange(0, 16))[None, :]
    seen = i < n[:, None]
    place = _place(i, start[:, None], sinks[:, None], first[:, None])
    cell = tl.load(cells + place, mask=seen).to(tl.int64)
    row = cell * cell_stride + (head.to(tl.int64) * head_stride)[:, None]
    return row[:, None, :], seen[:, None, :]


@triton.jit
def _mix_channels(
    scores, tops, data, halves, out, tokens, cells, sink_scores, number, from_,
    begin, n_tokens, all, longest, cell_stride, head_stride, stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    DIM: tl.constexpr, KIND: tl.constexpr, BYTES: tl.constexpr, PAIRS: tl.constexpr,
    CELLS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Outputs [T, H, DIM]: the sum of weight * value over the cells in order, by that of the weights.

    Weights are e^(score - highest); their own sum, in 16 lanes, is the same for all channels.
    """
    pair = number * PAIRS + tl.arange(0, PAIRS)
    alive = pair < HEADS * n_tokens
    head = pair // n_tokens
    t = begin + pair - head * n_tokens
    start, sinks, first, n = _seen_places(tokens, t, all, alive)
    member = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
    highest = _highest(tops, pair, member, n, longest, PADDED, QUERIES, PAIRS, CELLS)
    real = alive[:, None] & (member < GROUP)[None, :]
    if sink_scores is not None:
        sink = tl.load(sink_scores + head[:, None] * GROUP + member[None, :], mask=real)
        highest = tl.where(sink > highest, sink, highest)
    lanes = tl.zeros((PAIRS, QUERIES, 16), tl.float32)
    channel = from_ + tl.arange(0, CHANNELS)
    at = scores + (pair.to(tl.int64) * longest * PADDED)[:, None, None] + member[None, :, None]
    total = tl.zeros((PAIRS, QUERIES, CHANNELS), tl.float32)
    here, cell = channel[None, :, None], tl.arange(0, 16)[None, None, :]
    # What the next cells have is read before these are added
    row, read = _rows_at(0, start, sinks, first, n, head, cells, cell_stride, head_stride)
    q, d, fifth, least = taken(data, halves, row, here, read & (here < DIM), stride, KIND, BYTES)
    score = tl.load(at + cell * PADDED, mask=read)
    for j in tl.range(0, tl.max(n, 0), 16, num_stages=6):
        seen = read
        # 1 * -0 leaves every sum as it is, whatever its sign.
        value = tl.where(seen, meant(q, d, fifth, least, here, KIND), -0.0)
        weight = exponential(score - highest[:, :, None])
        row, read = _rows_at(j + 16, start, sinks, first, n, head, cells, cell_stride, head_stride)
        q, d, fifth, least = taken(
            data, halves, row, here, read & (here < DIM), stride, KIND, BYTES
        )
        score = tl.load(at + (j + 16 + cell) * PADDED, mask=read)
        lanes += tl.where(seen, weight, 0.0)
        total = _sixteen(total, tl.where(seen, weight, 1.0), value, PAIRS, QUERIES, CHANNELS)
    summed = tree(tl.reshape(lanes, (PAIRS * QUERIES, 16)), PAIRS * QUERIES)
    summed = tl.reshape(summed, (PAIRS, QUERIES))
    if sink_scores is not None:
        summed += exponential(sink - highest)
    blind = (n <= 0)[:, None]
    factor = tl.where(blind, 0.0, tl.div_rn(1.0, tl.where(blind, 1.0, summed)))
    query = (t * HEADS + head)[:, None].to(tl.int64) * GROUP + member[None, :]
    to = out + query[:, :, None] * DIM + channel[None, None, :]
    tl.store(to, total * factor[:, :, None], mask=real[:, :, None] & (channel < DIM)[None, None, :])


@triton.jit(do_not_specialize=_SIZES)
def attend(
    q, q_stride, keys, key_halves, values, value_halves, out, scores, tops, tokens, cells, key_cells, index,
    positions, slopes, sink_scores, begin, n_tokens, all, longest, shares, key_cell, key_head, key_channel,
    value_cell, value_head, value_channel, scale, softcap,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    DIM: tl.constexpr, KIND: tl.constexpr, BYTES: tl.constexpr, VARIANTS: tl.constexpr,
    CAPPED: tl.constexpr, PAIRS: tl.constexpr, CELLS: tl.constexpr, VALUES: tl.constexpr,
    VALUE_KIND: tl.constexpr, VALUE_BYTES: tl.constexpr, CHANNELS: tl.constexpr, HADAMARD: tl.constexpr,
    SCORES: tl.constexpr, MIXES: tl.constexpr, own=None, MATRICES: tl.constexpr = None,
    TILES: tl.constexpr = None, NATIVE: tl.constexpr = False, finish=None, FORMS: tl.constexpr = None,
    SHAPE: tl.constexpr = None, beside=None, SCAN: tl.constexpr = None,
):  # fmt: skip
    """Scores of some pairs, their weights and values, or both.

    SCORES: the first axis of the grid has all pairs for each of the ``shares`` of cells: all on one axis, as
    CUDA allows others 65,535.  MIXES: without scores, the second axis has channels.
    ``HADAMARD`` rotates outputs: block, its logarithm and factor; block 0: it does not.  ``own`` to NATIVE: see
    :class:`~aleator.models.kernels.own_heads.OwnHeads`.  ``finish``, FORMS and SHAPE: each program finishes its
    queries first, at a place of its own, and the one with the last cell that a token sees the new key and
    value in it.  ``beside`` and SCAN are of a scan, by programs with scores whose second number is not 0.
    """
    if beside is not None:
        if tl.program_id(1) > 0:
            further = (tl.program_id(1) - 1) * tl.num_programs(0) + tl.program_id(0)
            further = further * tl.num_programs(2) + tl.program_id(2)
            scanned(beside[0], beside[1], further, None, SCAN)
            return
    number, share, cells_apart = tl.program_id(0), 0, CELLS
    if not MIXES:
        programs = tl.cdiv(HEADS * n_tokens, PAIRS)
        number, share = number % programs, number // programs
        cells_apart = shares * CELLS
    if own is not None:
        head_, token = tl.program_id(2), number.to(tl.int64) * GROUP + tl.program_id(2)
        own_queries(own, q + token * DIM, head_, token, MATRICES, TILES, NATIVE)
    if finish is not None:
        t = number % n_tokens
        kept = t * HEADS + number // n_tokens + tl.arange(0, 1)
        member = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
        if not MIXES:
            q += n_tokens.to(tl.int64) * share * q_stride
        finish_group(
            finish, kept * GROUP + member, member < GROUP, share, n_tokens, FORMS, 0, SHAPE, QUERIES
        )
        mine = True
        if not MIXES:
            last = tl.maximum(tl.load(tokens + 3 * all + t) - 1, 0)
            mine = last // CELLS % shares == share
        if mine:
            for g in tl.static_range(1, len(FORMS)):
                finish_group(finish, kept, kept >= 0, 0, n_tokens, FORMS, g, SHAPE, 1)
        tl.debug_barrier()
    if HADAMARD[0] > 0:
        pair = number * PAIRS + tl.arange(0, PAIRS)
        head = pair // n_tokens
        t = (begin + pair - head * n_tokens).to(tl.int64)
        member = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
        real = (pair < HEADS * n_tokens)[:, None] & (member < GROUP)[None, :]
        real = tl.reshape(real, (PAIRS * QUERIES, 1))
        query = head[:, None] * GROUP + member[None, :]
    if SCORES:
        for from_ in range(share * CELLS, longest, cells_apart):
            _score_cells(
                q, q_stride, keys, key_halves, scores, tops, tokens, key_cells, index, positions, slopes,
                number, from_,
                begin, n_tokens, all, longest, key_cell, key_head, key_channel, scale, softcap,
                HEADS, GROUP, PADDED, QUERIES, DIM, KIND, BYTES, VARIANTS, CAPPED, PAIRS, CELLS,
            )  # fmt: skip
    if SCORES and MIXES:
        tl.debug_barrier()
    if MIXES:
        first, end = 0, VALUES
        if not SCORES:
            first = tl.program_id(1) * CHANNELS
            end = tl.minimum(first + CHANNELS, VALUES)
        for from_ in range(first, end, CHANNELS):
            _mix_channels(
                scores, tops, values, value_halves, out, tokens, cells, sink_scores, number, from_,
                begin, n_tokens, all, longest, value_cell, value_head, value_channel,
                HEADS, GROUP, PADDED, QUERIES, VALUES, VALUE_KIND, VALUE_BYTES, PAIRS, CELLS, CHANNELS,
            )  # fmt: skip
        if HADAMARD[0] > 0:
            at = tl.reshape((t[:, None] * (HEADS * GROUP) + query) * VALUES, (PAIRS * QUERIES, 1))
            hadamard_heads(
                out + at, real, first, end, PAIRS * QUERIES, HADAMARD[0], HADAMARD[1], HADAMARD[2]
            )
    if own is not None:
        own_values(own, out + token * VALUES, head_, token, MATRICES, TILES, NATIVE)


# With cells as axes of 2, the highest bit of their number last, tl.split gives the halves in order.  Function
# calls are slow in the interpreter, so there are few.
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
