"""Keys and values in the cells of a cache, read and written in place, with native decoders' bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from aleator.cache.storage.layer import LayerStorage
from aleator.cache.storage.tensors import IQ4_NL_VALUES, TensorLayer, quantised
from aleator.models.kernels.floats import EXACT, bfloat16_bits, sized
from aleator.models.kernels.rotation import hadamard

_LOW, _HIGH = (
    tl.constexpr(int.from_bytes(np.array(half, np.int8).tobytes(), "little", signed=True))
    for half in (IQ4_NL_VALUES[:8], IQ4_NL_VALUES[8:])
)


class Side(NamedTuple):
    """The keys or values of one layer, as kernels find them."""

    data: torch.Tensor  # float32, float16, bf16's bits as int16, or blocks as uint8; flat
    halves: torch.Tensor  # blocks: the same memory as float16; else ``data``
    kind: str  # the name of the type
    heads: int  # heads of each cell
    dim: int  # channels of a head that are read
    # Elements (blocks: bytes) from a cell to the next, from a head, and from a channel
    strides: tuple[int, int, int]
    # Block size of the Hadamard matrix that rotates stored heads; 0: they are not rotated
    rotation: int
    block_bytes: int  # bytes of a block


def side(layer: LayerStorage[Any], within: int = 0) -> Side:
    """A layer's keys or values; the first ``within`` channels of each head, 0: all."""
    tensors = TensorLayer.of(layer)
    data, kind, dim = tensors.data, layer.type.name, layer.dim
    halves = data = data.view(torch.int16) if kind == "bf16" else data
    if layer.type.block > 1:
        strides = layer.row_bytes, layer.type.bytes(dim), 0
        halves = data.view(torch.float16)
    elif layer.by_channel:
        strides = 1, dim * layer.n_cells, layer.n_cells
    else:
        strides = layer.heads * dim, dim, 1
    block = max(layer.rotation, layer.type.block)
    if within % block:
        raise ValueError(f"{within} channels are no whole blocks of {block}")
    size = layer.type.block_bytes
    return Side(data, halves, kind, layer.heads, within or dim, strides, layer.rotation, size)


@triton.jit
def widened(data, halves, at, channel, mask, stride, KIND: tl.constexpr, BYTES: tl.constexpr):
    """Channels of heads that begin at ``at``, int64, as float32; undefined where ``mask`` is not set.

    The three are broadcast with each other; channels are int32.
    """
    q, d, fifth, least = taken(data, halves, at, channel, mask, stride, KIND, BYTES)
    return meant(q, d, fifth, least, channel, KIND)


@triton.jit
def taken(data, halves, at, channel, mask, stride, KIND: tl.constexpr, BYTES: tl.constexpr):
    """The stored numbers for :func:`meant`; for blocks also the scale, fifth bits and least element."""
    if KIND == "f32" or KIND == "f16":
        x = tl.load(data + (at + channel.to(tl.int64) * stride), mask=mask, other=0.0)
        return x, x, x, x
    elif KIND == "bf16":
        x = tl.load(data + (at + channel.to(tl.int64) * stride), mask=mask, other=0)
        return x, x, x, x
    else:
        begin = at + channel // 32 * BYTES
        i = channel % 32
        d = tl.load(halves + begin // 2, mask=mask)
        fifth, least = d, d
        if KIND == "q8_0":
            q = tl.load(data + (begin + 2 + i), mask=mask)
        else:  # nibbles are last; before them come the fifth bits
            q = tl.load(data + (begin + (BYTES - 16) + i % 16), mask=mask)
        if KIND == "q5_0" or KIND == "q5_1":
            fifth = tl.load(data + (begin + (BYTES - 20) + i // 8), mask=mask)
        if KIND == "q4_1" or KIND == "q5_1":
            least = tl.load(halves + begin // 2 + 1, mask=mask)
        return q, d, fifth, least


@triton.jit
def meant(q, d, fifth, least, channel, KIND: tl.constexpr):
    """The value of stored numbers, float32, rounded once."""
    if KIND == "f32" or KIND == "f16":
        return q.to(tl.float32)
    elif KIND == "bf16":
        return (q.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        d = d.to(tl.float32)
        if KIND == "q8_0":
            return q.to(tl.int8, bitcast=True).to(tl.float32) * d
        i = channel % 32
        q = (q.to(tl.int32) >> (i // 16 * 4)) & 15
        if KIND == "iq4_nl":
            levels = tl.where(q < 8, tl.full([], _LOW, tl.int64), tl.full([], _HIGH, tl.int64))
            level = (levels >> (q % 8 * 8).to(tl.int64)).to(tl.int8)
            return level.to(tl.float32) * d
        if KIND == "q5_0" or KIND == "q5_1":
            q = q | ((fifth.to(tl.int32) >> (i % 8)) & 1) << 4
        if KIND == "q4_1" or KIND == "q5_1":
            return q.to(tl.float32) * d + least.to(tl.float32)
        elif KIND == "q4_0":
            return (q - 8).to(tl.float32) * d
        else:
            return (q - 16).to(tl.float32) * d


def gathered(of: Side, cells: torch.Tensor) -> torch.Tensor:
    """The contents of cells, int [n], as float32 [n, heads, dim], not rotated back."""
    out = torch.empty(len(cells), of.heads, of.dim, dtype=torch.float32, device=cells.device)
    if len(cells):
        rows, wide = len(cells) * of.heads, triton.next_power_of_2(of.dim)
        _launch(_gather, out, of, cells, rows, wide)
    return out


def _launch(
    kernel: Any, x: torch.Tensor, of: Side, cells: torch.Tensor, rows: int, wide: int
) -> None:
    """Have ``_gather`` or ``_store`` take that many rows of x, of at most ``wide`` channels."""
    block = max(1, sized(1 << 14, 1024) // wide)
    kernel[(triton.cdiv(rows, block),)](
        x, of.data, of.halves, cells, rows, *of.strides, HEADS=of.heads, DIM=of.dim, KIND=of.kind,
        BYTES=of.block_bytes, WIDE=wide, BLOCK=block, **EXACT,
    )  # fmt: skip


@triton.jit(do_not_specialize=["n"])
def _gather(
    out, data, halves, cells, n, cell_stride, head_stride, stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr, BYTES: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, WIDE)[None, :]
    here = (row < n)[:, None] & (channel < DIM)
    cell = tl.load(cells + row // HEADS, mask=row < n).to(tl.int64)
    at = cell * cell_stride + (row % HEADS).to(tl.int64) * head_stride
    x = widened(data, halves, at[:, None], channel, here, stride, KIND, BYTES)
    tl.store(out + row.to(tl.int64)[:, None] * DIM + channel, x, mask=here)


def store(layer: LayerStorage[Any], cells: torch.Tensor, x: torch.Tensor) -> None:
    """Store heads in cells, rounded to the layer's type.

    Args:
        layer: the keys or values of one layer.
        cells: the tokens' cells, int64 [T], on the layer's device; -1 (not for type iq4_nl): it is not stored.
        x: float32 [T, heads, dim]; a Hadamard matrix rotates it first if the layer asks for it.
    """
    if not layer.dim or not len(cells):
        return
    if layer.rotation:
        x = hadamard(x.contiguous().clone(), layer.rotation)
    to, x = side(layer), x.contiguous()
    if to.kind == "iq4_nl":
        to.data.index_copy_(0, cells, quantised(layer.type, x.view(len(x), -1)))
        return
    rows, wide = x.shape[0] * to.heads, 32
    if layer.type.block > 1:
        rows = rows * to.dim // 32
    else:
        wide = triton.next_power_of_2(to.dim)
    _launch(_store, x, to, cells, rows, wide)


@triton.jit(do_not_specialize=["n"])
def _store(
    x, data, halves, cells, n, cell_stride, head_stride, stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr, BYTES: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``BLOCK`` heads, or blocks of 32 channels."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stored(
        x, HEADS * DIM, data, halves, cells, row, n, cell_stride, head_stride, stride,
        HEADS, DIM, KIND, BYTES, WIDE, BLOCK,
    )  # fmt: skip


@triton.jit
def stored(
    x, x_stride, data, halves, cells, row, n, cell_stride, head_stride, stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr, BYTES: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store heads number ``row`` [BLOCK] of n, or blocks of 32 channels; tokens lie ``x_stride`` apart."""
    channel = tl.arange(0, WIDE)[None, :]
    if KIND == "f32" or KIND == "f16" or KIND == "bf16":
        here = (row < n)[:, None] & (channel < DIM)
        token = row // HEADS
        from_ = token.to(tl.int64) * x_stride + (row - token * HEADS) * DIM
        v = tl.load(x + from_[:, None] + channel, mask=here)
        cell = tl.load(cells + row // HEADS, mask=row < n)
        here = here & (cell >= 0)[:, None]
        at = cell * cell_stride + (row % HEADS).to(tl.int64) * head_stride
        to = data + at[:, None] + channel.to(tl.int64) * stride
        if KIND == "f16":
            tl.store(to, v.to(tl.float16), mask=here)
        elif KIND == "bf16":
            tl.store(to, bfloat16_bits(v).to(tl.int16), mask=here)
        else:
            tl.store(to, v, mask=here)
    else:
        alive = row < n
        each: tl.constexpr = DIM // 32
        token = row // (HEADS * each)
        from_ = token.to(tl.int64) * x_stride + (row - token * (HEADS * each)) * 32
        v = tl.load(x + from_[:, None] + channel, mask=alive[:, None])
        cell = tl.load(cells + token, mask=alive)
        alive = alive & (cell >= 0)
        begin = cell * cell_stride + (row - token * (HEADS * each)) * BYTES
        zeros = v * 0.0
        poison = tl.max(tl.where(zeros == 0.0, 0, 1), 1) != 0
        if KIND == "q8_0":
            d = tl.div_rn(tl.max(tl.abs(v), 1), 127.0)
            scaled = _clamped(v * _inverse(d)[:, None], -127.0, 127.0)
            half = tl.where(scaled.to(tl.int32, bitcast=True) < 0, -0.49999997, 0.49999997)
            q = (scaled + half).to(tl.int32)
            tl.store(data + (begin + 2)[:, None] + channel, q.to(tl.uint8), mask=alive[:, None])
            tl.store(
                halves + begin // 2, tl.where(poison, float("nan"), d).to(tl.float16), mask=alive
            )
        else:
            five: tl.constexpr = KIND == "q5_0" or KIND == "q5_1"
            levels: tl.constexpr = 32 if five else 16
            if KIND == "q4_0" or KIND == "q5_0":
                middle: tl.constexpr = levels // 2
                extreme = _first(v, tl.abs(v) == tl.max(tl.abs(v), 1)[:, None]) + 0.0  # not -0
                d = tl.div_rn(extreme, -1.0 * middle)
                scaled = v * _inverse(d)[:, None] + (middle + 0.5)
            else:
                least, most = tl.min(v, 1), tl.max(v, 1)
                # Among zeros the first one counts; its sign is stored.
                least = tl.where(least == 0.0, _first(v, v == 0.0), least)
                span = tl.div_rn(most - least, levels - 1.0)
                d = tl.where(most == least, 0.0, span)
                scaled = (v - least[:, None]) * _inverse(d)[:, None] + 0.5
                stored = tl.where(poison, float("nan"), least).to(tl.float16)
                tl.store(halves + begin // 2 + 1, stored, mask=alive)
            tl.store(
                halves + begin // 2, tl.where(poison, float("nan"), d).to(tl.float16), mask=alive
            )
            q = _clamped(scaled, 0.0, levels - 1.0).to(tl.int32)
            low = tl.reshape(q & 15, (BLOCK, 2, 16))
            # Parts of a byte share no bits, so their sum is their union.
            place = tl.arange(0, 2)[None, :, None] * 4
            nibbles = tl.sum(low << place, 1).to(tl.uint8)
            to = data + (begin + (BYTES - 16))[:, None] + tl.arange(0, 16)[None, :]
            tl.store(to, nibbles, mask=alive[:, None])
            if five:
                high = tl.reshape(q >> 4, (BLOCK, 4, 8))
                fifth = tl.sum(high << tl.arange(0, 8)[None, None, :], 2).to(tl.uint8)
                to = data + (begin + (BYTES - 20))[:, None] + tl.arange(0, 4)[None, :]
                tl.store(to, fifth, mask=alive[:, None])


@triton.jit
def _inverse(d):
    return tl.where(d == 0.0, 0.0, tl.div_rn(1.0, d))


@triton.jit
def _clamped(x, low, high):
    """Within the bounds; a NaN becomes the lower one."""
    x = tl.where(x > low, x, low)
    return tl.where(x < high, x, high)


@triton.jit
def _first(v, condition):
    """The first of each row's elements where the condition holds, float32 [rows]; +0: none."""
    i = tl.arange(0, 32)[None, :]
    first = tl.min(tl.where(condition, i, 32), 1)
    bits = tl.where(i == first[:, None], v.to(tl.int32, bitcast=True), 0)
    return tl.sum(bits, 1).to(tl.float32, bitcast=True)
