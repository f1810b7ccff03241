"""Attention over the cells of a cache with the bits of native decoders: docs/numerics.md, part 2.

Kernels compute the scores of every seen cell, then their exponentials and the sum of values in the order of the
list: in one launch for few tokens and cells, else in two.  A token's result depends only on the token and
the cells that it sees.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from aleator.models.kernels import attention_kernels as kernels
from aleator.models.kernels.cells import Side, gathered
from aleator.models.kernels.floats import EXACT, Work, sized
from aleator.models.kernels.own_heads import WARPS, OwnHeads
from aleator.models.kernels.rotation import RotationAngles, hadamard, hadamard_scale, rotate
from aleator.models.kernels.seen import SeenTensors
from aleator.models.kernels.works import launch

FEW, SHORT = 16, 1024
"""Up to this many tokens, and cells that one sees, attention is one launch: each program has little work."""

QUERIES = 8
"""The most queries of a program on a device."""

ALONE = 256
"""Up to this many heads of tokens with compressed keys have a program each, which also reads their matrices.

GPUs of today run about so many at a time.  More would wait, and read keys that 8 heads share otherwise.
"""

ROOM = 1 << 23
"""Floats of scores that are held at a time, unless a single token needs more."""

HIGHEST = 16
"""At least so many scores have one highest score that is held besides; fewer only where scores take little."""

_WIDE = 192  # with wider keys, and 8 queries a program, one launch takes fewer cells and channels


def attend(
    q: torch.Tensor,
    keys: Side,
    values: Side,
    seen: SeenTensors,
    scale: float,
    softcap: float = 0.0,
    slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    angles: RotationAngles | None = None,
    room: torch.Tensor | None = None,
    spare: bool = False,
    *,
    finish: Work | None = None,
    own: OwnHeads | None = None,
    beside: Work | None = None,
) -> torch.Tensor:
    """See :func:`aleator.models.layers.attention.attend`; ``seen`` has the cells and the positions.

    ``values`` may be the first channels of ``keys``, see :func:`~aleator.models.kernels.cells.side`.
    ``slopes``, float32 [H], are ALiBi's.  ``angles`` rotate by positions (None: nothing rotates); their rows
    are for ``-seen.deltas``, or with raw keys for all positions from 0, with magnitude 1.  ``room``, float32,
    is working memory; with more of it, more tokens are computed at once.  ``spare``: ``q`` may be changed.
    ``finish``: queries that are finished first, ``apart``, and keys and values that only their own token
    sees; ``own``: what makes ``q`` before, and what is made of each head's result; where :func:`joins`.
    ``beside``: a scan that is done too.
    """
    t, heads, dim = q.shape
    group = heads // keys.heads
    out = torch.empty(t, heads, values.dim, device=q.device)
    if t == 0:
        launch(beside)
        return out.flatten(1)
    if q.stride()[1:] != (dim, 1):
        q = q.contiguous()
    variants = 1
    cells, rotation = seen.cells, keys.rotation
    if angles is not None and len(angles.cos_sin) < seen.n_rotations:
        found = f"{len(angles.cos_sin)} rows of angles"
        raise ValueError(f"{found}, and {seen.n_rotations} are needed")
    if seen.raw and angles is not None:
        unrotated = hadamard(gathered(keys, cells), rotation)
        stored = rotate(unrotated, angles, seen.rows)
        rows = keys.heads * dim
        keys = Side(stored, stored, "f32", keys.heads, dim, (rows, dim, 1), 0, 4)
        cells, rotation = seen.places, 0
    elif angles is not None and seen.n_rotations > 1:
        variants = seen.n_rotations
        forms = q.repeat(variants, 1, 1)
        back = RotationAngles(angles.cos_sin[1:], angles.offset, angles.interleaved)
        rotate(forms[t:], back, every=t)
        q = hadamard(forms, rotation)
    padded = triton.next_power_of_2(group)
    size = keys.heads * padded * seen.longest
    few = t <= FEW and seen.longest <= SHORT
    once = few and room is None and t * size <= max(ROOM, size)
    block = rotation if variants == 1 else 0
    most = _most_cells(keys.kind, max(keys.block_bytes, values.block_bytes), dim)
    if block and not spare:
        q = q.clone(memory_format=torch.contiguous_format)
    if block and not once:
        q = hadamard(q.contiguous(), block)
    if room is None:
        room = torch.empty(min(t * size, max(ROOM, size)), device=q.device)
    at_once = t if not size else min(t, room.numel() // size)
    if not at_once:
        raise ValueError(f"room for scores must hold {size} floats")
    b = _blocks(at_once * keys.heads, padded, values.dim, variants > 1, once, most)
    if finish is not None:
        b = b._replace(pairs=1)
    if own is not None:
        b = b._replace(group=1, cells=64)
    blocks, groups = triton.cdiv(seen.longest, b.cells), padded // b.group
    tops = torch.empty(at_once * keys.heads * padded * blocks, device=q.device)
    for begin in range(0, t, at_once):
        n = min(at_once, t - begin)
        pairs = triton.cdiv(n * keys.heads, b.pairs)
        shared = (begin, n, t, seen.longest)
        shape = {"HEADS": keys.heads, "GROUP": group, "PADDED": padded, "QUERIES": b.group}
        scored = {
            **shape, "DIM": dim, "KIND": keys.kind, "BYTES": keys.block_bytes, "VARIANTS": variants > 1,
            "CAPPED": softcap != 0, "PAIRS": b.pairs, "CELLS": b.cells,
        }  # fmt: skip
        index = seen.rows if variants > 1 else cells
        if once:
            made, more = (out, {}) if own is None else own.given()
            z, further = groups if own is None else group, 0
            if finish is not None:
                more |= {"finish": finish.arguments, "FORMS": finish.forms, "SHAPE": finish.shape}
            if beside is not None:
                further = triton.cdiv(beside.programs, pairs * z)
                more |= {"beside": (beside.arguments, beside.count), "SCAN": beside.shape}
            kernels.attend[pairs, 1 + further, z](
                q, q.stride(0), keys.data, keys.halves, values.data, values.halves, out, room, tops,
                seen.tokens, seen.cells, cells, index, seen.positions, slopes, sinks, *shared,
                *keys.strides, *values.strides, scale, softcap, **scored, VALUES=values.dim,
                VALUE_KIND=values.kind, VALUE_BYTES=values.block_bytes, CHANNELS=b.channels,
                HADAMARD_Q=_hadamard_of(block), HADAMARD_OUT=_hadamard_of(values.rotation), **more,
                num_warps=4 if own is None else WARPS, maxnreg=255, **EXACT,
            )  # fmt: skip
            return made.view(t, -1)
        launch(beside if begin == 0 else None)
        kernels.score[pairs * blocks, 1, groups](
            q, q.stride(0), keys.data, keys.halves, room, tops, seen.tokens, cells, index, seen.positions,
            slopes, *shared, *keys.strides, scale, softcap, **scored, num_warps=4, **EXACT,
        )  # fmt: skip
        kernels.mix[pairs, triton.cdiv(values.dim, b.channels), groups](
            room, tops, values.data, values.halves, out, seen.tokens, seen.cells, sinks,
            *shared, *values.strides, **shape, DIM=values.dim, KIND=values.kind, BYTES=values.block_bytes,
            PAIRS=b.pairs, CELLS=b.cells, CHANNELS=b.channels, num_warps=1, **EXACT,
        )  # fmt: skip
    return hadamard(out, values.rotation).view(t, -1)


def joins(tokens: int, heads: int, seen: SeenTensors, angles: RotationAngles | None) -> bool:
    """Whether attention is one launch, so that programs can finish their heads first."""
    moved = angles is not None and (seen.raw or seen.n_rotations > 1)
    few = 0 < tokens <= FEW and seen.longest <= SHORT
    return few and not moved and tokens * heads * seen.longest <= ROOM


def _hadamard_of(block: int) -> tuple[int, int, float]:
    """A Hadamard matrix as ``attend`` takes it."""
    block = block if block > 1 else 0
    return block, max(block, 1).bit_length() - 1, hadamard_scale(block)


class _Blocks(NamedTuple):
    """Work of one program: pairs of a token and a key-value head, queries of each, cells, channels."""

    pairs: int
    group: int
    cells: int
    channels: int


def _most_cells(kind: str, block_bytes: int, dim: int) -> int:
    """How many cells fit into registers at a time, of one launch with 8 queries a program."""
    if dim > _WIDE:
        return 8 if kind == "f32" else 16
    return 16 if block_bytes > 4 else 64


def _blocks(pairs: int, group: int, dim_v: int, variants: bool, once: bool, most: int) -> _Blocks:
    """Sizes of blocks, which do not affect the bits of results: every sum has its own fixed order.

    ``variants``: queries differ from cell to cell; ``once``: all is one launch; ``most``: see
    :func:`_most_cells`.
    """
    together = min(triton.next_power_of_2(pairs), sized(32, 1))
    queries = min(group, sized(group, QUERIES))
    cells, channels = 64 if queries < QUERIES and not variants else 32, sized(1024, 32)
    if once:
        channels = 128
    if once and most < 64 and queries == QUERIES:
        cells, channels = most, 64
    return _Blocks(
        together, queries, sized(64, cells), min(triton.next_power_of_2(dim_v), channels)
    )
