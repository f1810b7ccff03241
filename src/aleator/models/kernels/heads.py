"""Prepares heads in one launch: norms, rotation, and storing keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from aleator.models.kernels.cells import Side, stored
from aleator.models.kernels.floats import Constants, Work, sized
from aleator.models.kernels.norms import RowNorm, groups_at_once, moments, scaled
from aleator.models.kernels.rotation import (
    RotationAngles,
    hadamard_heads,
    hadamard_scale,
    rotate_pairs,
)


class Heads(NamedTuple):
    """Queries, keys or values of T tokens, and what is done to them."""

    # float32 [T, heads, dim], a token's heads side by side; changed in place
    x: torch.Tensor
    norm: RowNorm | None  # norm of each head, with weights [dim] or [heads, dim], or None
    rotates: bool  # whether positions rotate it
    to: Side | None  # where it is stored, not in type iq4_nl; None: nowhere
    # One or two float32 [T, heads, n] whose channels, side by side, ``x`` gets first; (): it has its numbers.
    # Only the channels of a head must lie together.
    sources: tuple[torch.Tensor, ...] = ()
    normed: int = 0  # how many first channels are normalised; 0: all
    # The norm is of a token's heads together, with weights [heads, dim]; they are read from ``sources``.
    together: bool = False
    # How many first channels something else writes meanwhile; ``sources`` come after them
    skipped: int = 0
    turn: int = 0  # block of the Hadamard matrix that rotates them last, if they are not stored


def heads_of(
    parts: Sequence[torch.Tensor],
    norm: RowNorm | None,
    rotates: bool,
    to: Side | None,
    normed: int = 0,
    keep: bool = False,
    together: bool = False,
    copies: int = 1,
) -> Heads:
    """Heads whose channels are those of ``parts`` [T, heads, n], side by side.

    A single part whose heads lie together is changed in place, unless ``keep``; others are read.
    ``together``: a norm of all heads of the single part, with weights [heads * n].  ``copies``: as often there
    is room for them, [copies * T, heads, n].
    """
    first = parts[0]
    t, heads, dim = first.shape
    if together and norm is not None and first.numel():
        weight, bias = (
            None if of is None else of.view(heads, dim) for of in (norm.weight, norm.bias)
        )
        norm = RowNorm(norm.kind, weight, bias, norm.eps)
        first = first.flatten(1).view(t, heads, dim)
        x = torch.empty((copies * t, heads, dim), dtype=torch.float32, device=first.device)
        return Heads(x, norm, rotates, to, (first,), normed, True)
    if len(parts) == 1 and copies == 1 and not keep and first.stride()[1:] == (dim, 1):
        return Heads(first, norm, rotates, to, (), normed)
    sources = tuple(each if each.stride(2) == 1 else each.contiguous() for each in parts)
    wide = sum(each.shape[2] for each in parts)
    x = torch.empty((copies * t, heads, wide), dtype=torch.float32, device=first.device)
    return Heads(x, norm, rotates, to, sources, normed)


def finishing(
    groups: list[Heads],
    angles: RotationAngles | None,
    cells: torch.Tensor,
    norm_last: bool = False,
    scales: torch.Tensor | None = None,
) -> Work:
    """What is to be launched to normalise heads, rotate and store them.

    Args:
        groups: heads of the same tokens.
        angles: those of the tokens' positions; None: nothing rotates.
        cells: the tokens' cells, int64 [T]; -1: a token is not stored.
        norm_last: heads are normalised after their rotation.
        scales: float32 [T], the last factors of the first group, which is not stored; None: 1.
    """
    groups = [each for each in groups if each.x.numel()]
    if not groups:
        return Work("heads", 0, 0, (), Constants(()), Constants(()))
    widest = triton.next_power_of_2(max(each.x.shape[2] for each in groups))
    block = max(1, sized(1 << 14, 1) // widest)
    listed, forms, first = [], [], 0
    pairs = 0 if angles is None else angles.cos_sin.shape[1]
    for g, (x, norm, rotates, to, sources, normed, together, skipped, turn) in enumerate(groups):
        t, heads, dim = x.shape
        programs = triton.cdiv(t * heads, block)
        weight, bias, eps = (
            (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
        )
        side = (None, None, 0, 0, 0) if to is None else (to.data, to.halves, *to.strides)
        taken: list[tuple[torch.Tensor | None, int, int]] = [(None, 0, 0)] * 2
        taken[: len(sources)] = [(each, each.stride(0), each.stride(1)) for each in sources]
        wide = [0, 0]
        wide[: len(sources)] = [each.shape[2] for each in sources]
        normed = normed or dim
        summed = heads * dim if together else normed
        listed.append(
            (x, weight, bias, eps, *side, x.stride(0), first, programs, *taken[0], *taken[1])
        )
        rotated = turn if to is None else to.rotation
        rotated = 0 if rotated < 2 else rotated
        forms.append((
            heads, dim, "" if norm is None else norm.kind, weight is not None and weight.dim() == 2,
            rotates and pairs > 0, rotated, hadamard_scale(rotated), "" if to is None else to.kind,
            0 if to is None else to.block_bytes, groups_at_once(summed), triton.next_power_of_2(dim),
            max(rotated, 1).bit_length() - 1, normed, scales is not None and g == 0, *wide, summed,
            skipped, block,
        ))  # fmt: skip
        first += programs
    arguments = (
        tuple(listed), None if angles is None else angles.cos_sin, cells, scales,
        0 if angles is None else angles.offset,
    )  # fmt: skip
    wide = triton.next_power_of_2(max(pairs, 1))
    shape = pairs, wide, angles is not None and angles.interleaved, norm_last
    given = arguments, Constants(tuple(forms)), Constants((shape,))
    return Work("heads", first, len(groups[0].x), *given, warps=1)


@triton.jit
def finish_heads(arguments, n_tokens, number, FORMS: tl.constexpr, SHAPE: tl.constexpr):
    """Program ``number`` of :func:`finishing`: as many heads of one of the groups as its form says last."""
    groups = arguments[0]
    for g in tl.static_range(len(FORMS)):
        first, programs = groups[g][10], groups[g][11]
        if (number >= first) & (number < first + programs):
            BLOCK: tl.constexpr = FORMS[19 * g + 18]
            row = (number - first) * BLOCK + tl.arange(0, BLOCK)
            there = row < n_tokens * FORMS[19 * g]
            finish_group(arguments, row, there, 0, n_tokens, FORMS, g, SHAPE, BLOCK)


@triton.jit
def finish_group(
    arguments, row, there, copy, n_tokens,
    FORMS: tl.constexpr, G: tl.constexpr, SHAPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Heads number ``row`` [BLOCK] of group G, in its room number ``copy``, see :func:`heads_of`."""
    groups, angles, cells, scales, offset = arguments
    (
        x, weight, bias, eps, data, halves, cell_stride, head_stride, stride, t_stride, _, _,
        a, a_t, a_h, b, b_t, b_h,
    ) = groups[G]  # fmt: skip
    PAIRS: tl.constexpr = SHAPE[0]
    WIDE: tl.constexpr = SHAPE[1]
    INTERLEAVED: tl.constexpr = SHAPE[2]
    LAST: tl.constexpr = SHAPE[3]
    AT: tl.constexpr = 19 * G
    HEADS: tl.constexpr = FORMS[AT]
    DIM: tl.constexpr = FORMS[AT + 1]
    NORM: tl.constexpr = FORMS[AT + 2]
    AT_ONCE: tl.constexpr = FORMS[AT + 9]
    SIZE: tl.constexpr = FORMS[AT + 10]
    FIRST: tl.constexpr = FORMS[AT + 14]
    there = there[:, None]
    t = row // HEADS
    head = row - t * HEADS
    x += n_tokens.to(tl.int64) * t_stride * copy
    rows = x + (t.to(tl.int64) * t_stride + head * DIM)[:, None]
    if FIRST > 0:
        _take(a, a_t, a_h, rows + FORMS[AT + 17], t, head, there, FIRST, SIZE)
        if FORMS[AT + 15] > 0:
            _take(b, b_t, b_h, rows + FIRST, t, head, there, FORMS[AT + 15], SIZE)
        tl.debug_barrier()
    at = head[:, None] * DIM if FORMS[AT + 3] else head[:, None] * 0
    SUMMED: tl.constexpr = FORMS[AT + 16]
    if NORM != "" and not LAST:
        summed = rows
        if SUMMED > DIM:
            summed = a + (t.to(tl.int64) * a_t)[:, None]
        _norm_heads(
            rows, summed, weight, bias, at, eps, there, FORMS[AT + 12], SUMMED, NORM, BLOCK, AT_ONCE, SIZE,
        )  # fmt: skip
    if FORMS[AT + 4]:
        here = there & (tl.arange(0, WIDE) < PAIRS)[None, :]
        own = angles + t.to(tl.int64)[:, None] * (2 * PAIRS)
        rotate_pairs(rows + offset, own, here, PAIRS, WIDE, INTERLEAVED)
        tl.debug_barrier()
    if NORM != "" and LAST:
        _norm_heads(
            rows, rows, weight, bias, at, eps, there, FORMS[AT + 12], SUMMED, NORM, BLOCK, AT_ONCE, SIZE,
        )  # fmt: skip
    if FORMS[AT + 13]:
        cols = tl.arange(0, SIZE)[None, :]
        inside = there & (cols < DIM)
        v = tl.load(rows + cols, mask=inside) * tl.load(scales + t[:, None], mask=there)
        tl.store(rows + cols, v, mask=inside)
    if FORMS[AT + 5] > 0:
        hadamard_heads(rows, there, 0, DIM, BLOCK, FORMS[AT + 5], FORMS[AT + 11], FORMS[AT + 6])
    KIND: tl.constexpr = FORMS[AT + 7]
    if KIND == "f32" or KIND == "f16" or KIND == "bf16":
        stored(
            x, t_stride, data, halves, cells, row, n_tokens * HEADS, cell_stride, head_stride, stride,
            HEADS, DIM, KIND, FORMS[AT + 8], SIZE, BLOCK,
        )  # fmt: skip
    elif KIND != "":
        for j in range(0, DIM // 32):
            stored(
                x, t_stride, data, halves, cells, row * (DIM // 32) + j, n_tokens * (HEADS * DIM // 32),
                cell_stride, head_stride, stride, HEADS, DIM, KIND, FORMS[AT + 8], 32, BLOCK,
            )  # fmt: skip


@triton.jit
def _take(
    source, t_stride, head_stride, rows, t, head, there, WIDE: tl.constexpr, SIZE: tl.constexpr
):
    """Copy WIDE channels of heads to pointers ``rows`` [BLOCK, 1]."""
    cols = tl.arange(0, SIZE)[None, :]
    inside = there & (cols < WIDE)
    at = source + (t.to(tl.int64) * t_stride + head * head_stride)[:, None]
    tl.store(rows + cols, tl.load(at + cols, mask=inside), mask=inside)


@triton.jit
def _norm_heads(
    rows, summed, weight, bias, at, eps, there,
    DIM: tl.constexpr, SUMMED: tl.constexpr, NORM: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """Heads at ``rows`` [BLOCK, 1] normalised in place, by the SUMMED numbers at ``summed``.

    Their weights begin at ``at``.
    """
    mean, factor = moments(summed, there, eps, SUMMED, BLOCK, AHEAD, NORM == "layer")
    cols = tl.arange(0, SIZE)[None, :]
    inside = there & (cols < DIM)
    v = tl.load(rows + cols, mask=inside)
    v = scaled(v, weight, bias, mean, factor, at + cols, inside, NORM)
    tl.debug_barrier()
    tl.store(rows + cols, v, mask=inside)
    tl.debug_barrier()
