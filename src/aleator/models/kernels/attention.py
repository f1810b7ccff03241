"""Attention over the cells of a cache with the bits of native decoders: docs/numerics.md, part 2.

Kernels compute the scores of every seen cell, then their exponentials and the sum of values in the order of the
list: in one launch for few tokens and cells, else in two.  A token's result depends only on the token and
the cells that it sees.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton

from aleator.models.kernels import attention_kernels as kernels
from aleator.models.kernels.cells import Side, gathered
from aleator.models.kernels.floats import EXACT, Work, sized
from aleator.models.kernels.fused import PROGRAMS
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

HIGHEST = 8
"""At least so many scores have one highest score that is held besides."""

_WIDE = 192  # with wider keys, and 8 queries, programs that do more take fewer cells and channels


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
    finished: bool = False,
    *,
    finish: Work | None = None,
    own: OwnHeads | None = None,
    beside: Work | None = None,
) -> torch.Tensor:
    """See :func:`aleator.models.layers.attention.attend`; ``seen`` has the cells and the positions.

    ``values`` may be the first channels of ``keys``, see :func:`~aleator.models.kernels.cells.side`.
    ``slopes``, float32 [H], are ALiBi's.  ``angles`` rotate by positions (None: nothing rotates); their rows
    are for ``-seen.deltas``, or with raw keys for all positions from 0, with magnitude 1.  ``room``, float32,
    is working memory; with more of it, more tokens are computed at once.  ``finished``: ``q`` may be changed,
    and has been rotated as keys are that have not :func:`moved`.
    ``finish``: queries that are finished first, with room for as many as :func:`shares` says, and keys and
    values that only their own token sees, as its last ones.  ``own``, of one launch: what makes ``q`` before,
    and what is made of each head's result.  ``beside``: a scan that is done too.
    """
    t, heads, dim = q.shape
    group = heads // keys.heads
    out = torch.empty(t, heads, values.dim, dtype=torch.float32, device=q.device)
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
    most = 64
    if once or finish is not None:
        most = _most_cells(max(keys.block_bytes, values.block_bytes), dim)
    if rotation > 1 and variants == 1 and not finished:
        q = hadamard(q.clone(memory_format=torch.contiguous_format), rotation)
    if room is None:
        size_of_room = min(t * size, max(ROOM, size))
        room = torch.empty(size_of_room, dtype=torch.float32, device=q.device)
    at_once = t if not size else min(t, room.numel() // size)
    if not at_once:
        raise ValueError(f"room for scores must hold {size} floats")
    b = _blocks(at_once * keys.heads, padded, values.dim, variants > 1, once, most)
    if not once:  # a program has whole blocks of Hadamard matrices
        b = b._replace(channels=max(b.channels, values.rotation))
    if finish is not None:
        b = b._replace(pairs=1)
    if own is not None:
        b = b._replace(group=1, cells=64)
    blocks, groups = triton.cdiv(seen.longest, b.cells), padded // b.group
    n_tops = at_once * keys.heads * padded * blocks
    tops = torch.empty(n_tops, dtype=torch.float32, device=q.device)
    each = 1 if once else max(blocks, 1) if finish is None else shares(t, keys.heads, group, seen)
    made, more = (out, {}) if own is None else own.given()
    if finish is not None:
        more |= {"finish": finish.arguments, "FORMS": finish.forms, "SHAPE": finish.shape}

    def step(begin: int, grid: tuple[int, int, int], warps: int, **of: Any) -> None:
        """Launch scores, weights and values, or both, of the tokens that there is room for."""
        kernels.attend[grid](
            q, q.stride(0), keys.data, keys.halves, values.data, values.halves, out, room, tops,
            seen.tokens, seen.cells, cells, seen.rows if variants > 1 else cells, seen.positions, slopes, sinks,
            begin, min(at_once, t - begin), t, seen.longest, each, *keys.strides, *values.strides, scale,
            softcap, HEADS=keys.heads, GROUP=group, PADDED=padded, DIM=dim, KIND=keys.kind,
            BYTES=keys.block_bytes, VARIANTS=variants > 1, CAPPED=softcap != 0, PAIRS=b.pairs, CELLS=b.cells,
            VALUES=values.dim, VALUE_KIND=values.kind, VALUE_BYTES=values.block_bytes, CHANNELS=b.channels,
            HADAMARD=_hadamard_of(values.rotation), **of, num_warps=warps, maxnreg=255, **EXACT,
        )  # fmt: skip

    z, channels = groups if own is None else group, triton.cdiv(values.dim, b.channels)
    for begin in range(0, t, at_once):
        pairs, further = triton.cdiv(min(at_once, t - begin) * keys.heads, b.pairs), 0
        if beside is not None and begin == 0:
            further = triton.cdiv(beside.programs, pairs * each * z)
            more |= {"beside": (beside.arguments, beside.count), "SCAN": beside.shape}
        grid = pairs * each, 1 + further, z
        warps = 4 if own is None else WARPS
        step(begin, grid, warps, QUERIES=b.group, SCORES=True, MIXES=once, **more)
        more = {}
        if not once:
            warps, queries = _of_values(b)
            grid = pairs, channels, padded // queries
            step(begin, grid, warps, QUERIES=queries, SCORES=False, MIXES=True)
    return made.view(t, -1)


def moved(seen: SeenTensors, angles: RotationAngles | None) -> bool:
    """Whether queries are rotated for each distance that keys lag behind, or raw keys are."""
    return angles is not None and (seen.raw or seen.n_rotations > 1)


def shares(tokens: int, heads: int, group: int, seen: SeenTensors) -> int:
    """How many programs share the cells of a head of keys, if each finishes the head's queries first.

    1: attention is one launch, or there are too many heads; 0: none finish queries, as there are many tokens,
    or no room for all scores.
    """
    if (
        not 0 < tokens <= FEW
        or tokens * heads * triton.next_power_of_2(group) * seen.longest > ROOM
    ):
        return 0
    if seen.longest <= SHORT:
        return 1
    programs = tokens * heads * triton.cdiv(group, QUERIES)
    return max(1, min(PROGRAMS // programs, triton.cdiv(seen.longest, 64)))


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


def _of_values(b: _Blocks) -> tuple[int, int]:
    """Warps and queries of a program that adds values, and makes no scores."""
    return max(1, min(8, b.channels // 32)), min(b.group, sized(b.group, 1024 // b.channels))


def _most_cells(block_bytes: int, dim: int) -> int:
    """How many cells fit into registers at a time, where programs do more than scores of 8 queries."""
    if dim > _WIDE:
        return 8 if block_bytes > 2 else 16
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
    if most < 64 and queries == QUERIES:
        cells, channels = most, min(channels, 64)
    return _Blocks(
        together, queries, sized(64, cells), min(triton.next_power_of_2(dim_v), channels)
    )
