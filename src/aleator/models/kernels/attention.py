"""Attention over the cells of a cache with the bits of native decoders: docs/numerics.md, part 2.

Three kernels: scores of every seen cell, their exponentials and sum, and the sum of values, whose order is the
list's.  What comes out for a token depends on itself and on the cells that it sees, on nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from aleator.models.kernels.cells import Side, gathered, meant, taken, widened
from aleator.models.kernels.floats import EXACT, exponential, softened, tree
from aleator.models.kernels.rotation import (
    INTERPRETED,
    Turn,
    hadamard,
    hadamard_scale,
    rotate,
    turn_heads,
)
from aleator.models.kernels.seen import SeenTensors

_SIZES = ["begin", "n_tokens", "all", "longest"]
"""These change from step to step, and no kernel is compiled anew for them."""

FEW, SHORT = 16, 1024
"""Up to so many tokens, and cells that one sees, attention is one launch: each program's share is small."""

ROOM = 1 << 26
"""Floats of scores that are held at a time, where a single token does not need more."""


def attend(
    q: torch.Tensor,
    keys: Side,
    values: Side,
    seen: SeenTensors,
    scale: float,
    softcap: float = 0.0,
    slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    turn: Turn | None = None,
    room: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of a micro-batch's queries over the cells that they see.

    Args:
        q: queries, rotated, float32 [T, H, D]; a Hadamard matrix may rotate them in place.
        keys: the layer's keys; H is a multiple of their heads.
        values: its values, or the first channels of its keys, see :func:`~aleator.models.kernels.cells.side`.
        seen: which cells the tokens see.
        scale: what scores are multiplied by.
        softcap: scores s become softcap * tanh(s / softcap); 0: as they are.
        slopes: of ALiBi, float32 [H]; ``seen`` has the positions.
        sinks: a score of each head that no value goes with, float32 [H].
        turn: how positions rotate; None: not at all.  Its rows are for ``-seen.deltas``, of raw keys for all
            positions from 0, with magnitude 1.
        room: working memory, float32; more than a token needs takes more tokens at once.

    Returns:
        float32 [T, H * Dv]; 0 for a token that sees no cell.

    """
    t, heads, dim = q.shape
    group = heads // keys.heads
    out = torch.empty(t, heads, values.dim, device=q.device)
    if t == 0:
        return out.view(t, -1)
    if q.stride()[1:] != (dim, 1):
        q = q.contiguous()
    variants = 1
    cells, rotation = seen.cells, keys.rotation
    if turn is not None and len(turn.angles) < seen.n_turns:
        found = f"{len(turn.angles)} rows of angles"
        raise ValueError(f"{found}, and {seen.n_turns} are needed")
    if seen.raw and turn is not None:
        unrotated = hadamard(gathered(keys, cells), rotation)
        stored = rotate(unrotated, turn, seen.rows)
        rows = keys.heads * dim
        keys = Side(stored, stored, "f32", keys.heads, dim, (rows, dim, 1), 0, 4)
        cells, rotation = seen.places, 0
    elif turn is not None and seen.n_turns > 1:
        variants = seen.n_turns
        forms = q.repeat(variants, 1, 1)
        back = Turn(turn.angles[1:], turn.offset, turn.interleaved)
        rotate(forms[t:], back, every=t)
        q = hadamard(forms, rotation)
    padded = triton.next_power_of_2(group)
    size = keys.heads * padded * seen.longest
    once = t <= FEW and seen.longest <= SHORT and room is None
    turned = rotation if variants == 1 else 0
    if turned and not once:
        q = hadamard(q.clone(memory_format=torch.contiguous_format), turned)
    if room is None:
        room = torch.empty(min(t * size, max(ROOM, size)), device=q.device)
    at_once = t if not size else min(t, room.numel() // size)
    if not at_once:
        raise ValueError(f"room for scores must hold {size} floats")
    factors = torch.empty(at_once * keys.heads * padded, device=q.device)
    for begin in range(0, t, at_once):
        n = min(at_once, t - begin)
        b = _blocks(n * keys.heads, padded, values.dim, seen.longest, variants)
        pairs, groups = triton.cdiv(n * keys.heads, b.pairs), padded // b.group
        shared = (begin, n, t, seen.longest)
        shape = {"HEADS": keys.heads, "GROUP": group, "PADDED": padded, "QUERIES": b.group}
        scored = {
            **shape, "DIM": dim, "KIND": keys.kind, "BYTES": keys.block_bytes, "VARIANTS": variants > 1,
            "CAPPED": softcap != 0, "LEANS": slopes is not None, "PAIRS": b.pairs, "CELLS": b.cells,
        }  # fmt: skip
        index = seen.rows if variants > 1 else cells
        positions = seen.positions if slopes is not None else cells
        leans, sunk = slopes if slopes is not None else q, sinks if sinks is not None else q
        if once:
            channels = min(128, triton.next_power_of_2(values.dim))
            _attend[pairs, 1, groups](
                q, q.stride(0), keys.data, keys.halves, values.data, values.halves, out, room, factors,
                seen.tokens, seen.cells, cells, index, positions, leans, sunk, *shared,
                *keys.strides, *values.strides, scale, softcap, **scored, SINKS=sinks is not None,
                VALUES=values.dim, VALUE_KIND=values.kind, VALUE_BYTES=values.block_bytes, CHANNELS=channels,
                TURN=_turning(turned), TURN_BACK=_turning(values.rotation), num_warps=b.warps, **EXACT,
            )  # fmt: skip
            return out.view(t, -1)
        _score[pairs, triton.cdiv(seen.longest, b.cells), groups](
            q, q.stride(0), keys.data, keys.halves, room, seen.tokens, cells, index, positions, leans,
            *shared, *keys.strides, scale, softcap, **scored, num_warps=b.warps, **EXACT,
        )  # fmt: skip
        _weigh[pairs, groups](
            room, factors, seen.tokens, sunk, *shared, **shape,
            SINKS=sinks is not None, PAIRS=b.pairs, num_warps=4, **EXACT,
        )  # fmt: skip
        _mix[pairs, triton.cdiv(values.dim, b.channels), groups](
            room, factors, values.data, values.halves, out, seen.tokens, seen.cells,
            *shared, *values.strides, **shape, DIM=values.dim, KIND=values.kind, BYTES=values.block_bytes,
            PAIRS=b.pairs, CHANNELS=b.channels, num_warps=1, **EXACT,
        )  # fmt: skip
    return hadamard(out, values.rotation).view(t, -1)


def _turning(block: int) -> tuple[int, int, float]:
    """A Hadamard matrix as ``_attend`` takes it."""
    block = block if block > 1 else 0
    return block, max(block, 1).bit_length() - 1, hadamard_scale(block)


class _Blocks(NamedTuple):
    """How much one program takes: pairs of a token and a key-value head, queries of each, cells, channels."""

    pairs: int
    group: int
    cells: int
    channels: int
    warps: int


def _blocks(pairs: int, group: int, dim_v: int, longest: int, variants: int) -> _Blocks:
    """Sizes that follow no result's bits: every sum has its order, however many a program computes."""
    if not INTERPRETED:
        together = min(group, 8)
        cells = 64 if together < 8 and variants == 1 else 32
        return _Blocks(1, together, cells, min(32, triton.next_power_of_2(dim_v)), 4)
    together = min(triton.next_power_of_2(pairs), 32)
    cells = max(
        16, min(triton.next_power_of_2(max(1, longest)), (1 << 18) // (together * group * 16))
    )
    return _Blocks(together, group, cells, triton.next_power_of_2(dim_v), 4)


@triton.jit
def _seen_places(tokens, t, all, alive):
    """Of tokens: the begin of their lists, how many sinks, how many cells passed over, and how many seen."""
    start = tl.load(tokens + t, mask=alive, other=0)
    sinks = tl.load(tokens + all + t, mask=alive, other=0)
    first = tl.load(tokens + 2 * all + t, mask=alive, other=0)
    n = tl.load(tokens + 3 * all + t, mask=alive, other=0)
    return start, sinks, first, n


@triton.jit
def _place(i, start, sinks, first):
    """Where in the lists a token's cell number i is."""
    return start + tl.where(i < sinks, i, i - sinks + first)


@triton.jit(do_not_specialize=_SIZES)
def _score(
    q, q_stride, data, halves, scores, tokens, cells, index, positions, slopes,
    begin, n_tokens, all, longest, cell_stride, head_stride, stride, scale, softcap,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    DIM: tl.constexpr, KIND: tl.constexpr, BYTES: tl.constexpr, VARIANTS: tl.constexpr,
    CAPPED: tl.constexpr, LEANS: tl.constexpr, PAIRS: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """Scores of CELLS cells, see ``_score_cells``."""
    _score_cells(
        q, q_stride, data, halves, scores, tokens, cells, index, positions, slopes, tl.program_id(1) * CELLS,
        begin, n_tokens, all, longest, cell_stride, head_stride, stride, scale, softcap,
        HEADS, GROUP, PADDED, QUERIES, DIM, KIND, BYTES, VARIANTS, CAPPED, LEANS, PAIRS, CELLS,
    )  # fmt: skip


@triton.jit
def _score_cells(
    q, q_stride, data, halves, scores, tokens, cells, index, positions, slopes, from_,
    begin, n_tokens, all, longest, cell_stride, head_stride, stride, scale, softcap,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    DIM: tl.constexpr, KIND: tl.constexpr, BYTES: tl.constexpr, VARIANTS: tl.constexpr,
    CAPPED: tl.constexpr, LEANS: tl.constexpr, PAIRS: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """Scores [pairs, longest, PADDED] of the cells from number ``from_`` on: q . key * scale, and so on."""
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    alive = pair < HEADS * n_tokens
    head = pair // n_tokens
    t = begin + pair - head * n_tokens
    start, sinks, first, n = _seen_places(tokens, t, all, alive)
    if from_ < tl.max(n, 0):
        i = from_ + tl.arange(0, CELLS)[None, :]
        seen = i < n[:, None]
        place = _place(i, start[:, None], sinks[:, None], first[:, None])
        cell = tl.load(cells + place, mask=seen, other=0).to(tl.int64)
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
                x = tl.load(q + (at + channel[None, None, None, :]), mask=asked, other=0.0)
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
        if LEANS:
            slope = tl.load(slopes + query, mask=real, other=0.0)
            own = tl.load(tokens + 4 * all + t, mask=alive, other=0)
            far = tl.load(positions + place, mask=seen, other=0) - own[:, None]
            score += slope[:, :, None] * far.to(tl.float32)[:, None, :]
        to = (pair[:, None].to(tl.int64) * longest + i) * PADDED
        to = to[:, None, :] + member[None, :, None]
        tl.store(scores + to, score, mask=seen[:, None, :])


@triton.jit(do_not_specialize=_SIZES)
def _weigh(
    scores, factors, tokens, sink_scores, begin, n_tokens, all, longest,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    SINKS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """See ``_weigh_cells``."""
    _weigh_cells(
        scores, factors, tokens, sink_scores, begin, n_tokens, all, longest,
        HEADS, GROUP, PADDED, QUERIES, SINKS, PAIRS,
    )  # fmt: skip


@triton.jit
def _weigh_cells(
    scores, factors, tokens, sink_scores, begin, n_tokens, all, longest,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    SINKS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Scores become e^(score - highest); factors [pairs, PADDED] = 1 / their sum, 0 where nothing is seen."""
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    alive = pair < HEADS * n_tokens
    head = pair // n_tokens
    t = begin + pair - head * n_tokens
    n = tl.load(tokens + 3 * all + t, mask=alive, other=0)
    most = tl.max(n, 0)
    member = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
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
    if SINKS:
        real = alive[:, None] & (member < GROUP)[None, :]
        query = head[:, None] * GROUP + member[None, :]
        sink = tl.load(sink_scores + query, mask=real, other=0.0)
        highest = tl.where(sink > highest, sink, highest)
    lanes: tl.constexpr = 16 * QUERIES
    total = tl.zeros((PAIRS, lanes), tl.float32)
    for j in tl.range(0, most, 128, num_stages=3):
        seen = (j + cell)[None, :, None] < n[:, None, None]
        score = tl.load(at + j * PADDED, mask=seen, other=0.0)
        weight = exponential(score - highest[:, None, :])
        tl.store(at + j * PADDED, weight, mask=seen)
        groups = tl.reshape(tl.where(seen, weight, 0.0), (PAIRS, 8, lanes))
        total = _add_eight(total, groups, PAIRS, lanes)
    total = tl.permute(tl.reshape(total, (PAIRS, 16, QUERIES)), (0, 2, 1))
    total = tl.reshape(total, (PAIRS * QUERIES, 16))
    total = tl.reshape(tree(total, PAIRS * QUERIES), (PAIRS, QUERIES))
    if SINKS:
        total += exponential(sink - highest)
    factor = tl.where(blind, 0.0, tl.div_rn(1.0, tl.where(blind, 1.0, total)))
    tl.store(factors + pair[:, None] * PADDED + member[None, :], factor, mask=alive[:, None])


@triton.jit
def _rows_at(j, start, sinks, first, n, head, cells, cell_stride, head_stride):
    """Where the values of 16 cells from number j on begin, int64 [pairs, 1, 16], and which are seen."""
    i = (j + tl.arange(0, 16))[None, :]
    seen = i < n[:, None]
    place = _place(i, start[:, None], sinks[:, None], first[:, None])
    cell = tl.load(cells + place, mask=seen, other=0).to(tl.int64)
    row = cell * cell_stride + (head * head_stride)[:, None]
    return row[:, None, :], seen[:, None, :]


@triton.jit(do_not_specialize=_SIZES)
def _mix(
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
    ahead: tl.constexpr = (
        16 if BYTES > 4 else 0
    )  # what is no whole words is not prefetched by itself
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
    factor = tl.load(
        factors + pair[:, None] * PADDED + member[None, :], mask=alive[:, None], other=0.0
    )
    query = (t * HEADS + head)[:, None].to(tl.int64) * GROUP + member[None, :]
    to = out + query[:, :, None] * DIM + channel[None, None, :]
    real = alive[:, None] & (member < GROUP)[None, :]
    tl.store(to, total * factor[:, :, None], mask=real[:, :, None] & (channel < DIM)[None, None, :])


@triton.jit(do_not_specialize=_SIZES)
def _attend(
    q, q_stride, keys, key_halves, values, value_halves, out, scores, factors, tokens, cells, key_cells, index,
    positions, slopes, sink_scores, begin, n_tokens, all, longest, key_cell, key_head, key_channel,
    value_cell, value_head, value_channel, scale, softcap,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    DIM: tl.constexpr, KIND: tl.constexpr, BYTES: tl.constexpr, VARIANTS: tl.constexpr,
    CAPPED: tl.constexpr, LEANS: tl.constexpr, PAIRS: tl.constexpr, CELLS: tl.constexpr,
    SINKS: tl.constexpr, VALUES: tl.constexpr, VALUE_KIND: tl.constexpr, VALUE_BYTES: tl.constexpr,
    CHANNELS: tl.constexpr, TURN: tl.constexpr, TURN_BACK: tl.constexpr,
):  # fmt: skip
    """Scores, weights and values of some pairs, one after the other.

    ``TURN`` and ``TURN_BACK`` rotate queries and outputs: block, its logarithm and factor; block 0: not at all.
    """
    if TURN[0] > 0 or TURN_BACK[0] > 0:
        pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
        head = pair // n_tokens
        t = (begin + pair - head * n_tokens).to(tl.int64)
        member = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
        real = (pair < HEADS * n_tokens)[:, None] & (member < GROUP)[None, :]
        real = tl.reshape(real, (PAIRS * QUERIES, 1))
        query = head[:, None] * GROUP + member[None, :]
    if TURN[0] > 0:
        at = tl.reshape(t[:, None] * q_stride + query * DIM, (PAIRS * QUERIES, 1))
        turn_heads(q + at, real, DIM, PAIRS * QUERIES, TURN[0], TURN[1], TURN[2])
    for from_ in range(0, longest, CELLS):
        _score_cells(
            q, q_stride, keys, key_halves, scores, tokens, key_cells, index, positions, slopes, from_,
            begin, n_tokens, all, longest, key_cell, key_head, key_channel, scale, softcap,
            HEADS, GROUP, PADDED, QUERIES, DIM, KIND, BYTES, VARIANTS, CAPPED, LEANS, PAIRS, CELLS,
        )  # fmt: skip
    tl.debug_barrier()
    _weigh_cells(
        scores, factors, tokens, sink_scores, begin, n_tokens, all, longest,
        HEADS, GROUP, PADDED, QUERIES, SINKS, PAIRS,
    )  # fmt: skip
    tl.debug_barrier()
    for from_ in range(0, VALUES, CHANNELS):
        _mix_channels(
            scores, factors, values, value_halves, out, tokens, cells, from_,
            begin, n_tokens, all, longest, value_cell, value_head, value_channel,
            HEADS, GROUP, PADDED, QUERIES, VALUES, VALUE_KIND, VALUE_BYTES, PAIRS, CHANNELS,
        )  # fmt: skip
    if TURN_BACK[0] > 0:
        at = tl.reshape((t[:, None] * (HEADS * GROUP) + query) * VALUES, (PAIRS * QUERIES, 1))
        turn_heads(
            out + at, real, VALUES, PAIRS * QUERIES, TURN_BACK[0], TURN_BACK[1], TURN_BACK[2]
        )


# Of cells as axes of 2, the highest bit of their number last, tl.split gives the halves in order.  Every call
# of a function is slow in the interpreter, so these are few.
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
