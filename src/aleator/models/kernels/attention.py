"""Attention over the cells of a cache with the bits of native decoders: docs/numerics.md, part 2.

Scores of every seen cell, their exponentials and sum, and the sum of values, whose order is the list's: of few
tokens and cells in one launch, else in three.  What comes out for a token depends on itself and on the cells
that it sees, on nothing else.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton

from aleator.cache.rows.batch import MicroBatch, WindowBatch
from aleator.models.kernels import attention_kernels as kernels
from aleator.models.kernels.cells import Side, gathered
from aleator.models.kernels.floats import EXACT
from aleator.models.kernels.rotation import (
    INTERPRETED,
    Turn,
    hadamard,
    hadamard_scale,
    rotate,
)

Ints = npt.NDArray[np.int32]


class Sight(NamedTuple):
    """What T tokens see of one pool's cells, on the host; a token's cells are numbered from 0.

    Attributes:
        tokens: int32 [5, T]: where the token's list begins in ``cells``, how many of its first cells are
            sinks, how many it passes over before the others, how many it sees, and its position.
        cells: int32 [n], the lists one after the other.
        rows: int32 [n], of shifted keys the number of each cell's delta, of raw keys their positions.
        deltas: int32, the distinct deltas, 0 first; None: keys are raw.
        positions: int32 [n], of the listed cells.
    """

    tokens: Ints
    cells: Ints
    rows: Ints | None
    deltas: Ints | None
    positions: Ints | None


def sight(batch: MicroBatch, raw: bool = False, distances: bool = False) -> Sight:
    """What a micro-batch's tokens see; with ``distances`` the positions too, for ALiBi."""
    first, sunk = (batch.first, batch.sunk) if isinstance(batch, WindowBatch) else (None, None)
    return listed(
        *batch.seen,
        first,
        sunk,
        batch.positions,
        batch.seen_positions() if distances else None,
        raw,
    )


def listed(
    cells: Ints,
    start: npt.NDArray[np.int64],
    which: Ints,
    counts: npt.NDArray[np.int64],
    deltas: Ints | None,
    first: npt.NDArray[np.int64] | None = None,
    sinks: npt.NDArray[np.int64] | None = None,
    positions: Ints | None = None,
    cell_positions: Ints | None = None,
    raw: bool = False,
) -> Sight:
    """What tokens see, of the arrays of :class:`~aleator.cache.rows.rows.Seen` and those of windows."""
    none = np.zeros_like(counts)
    low = none if first is None else first
    sunk = none if sinks is None else np.where(low > sinks, sinks, 0)
    low = low if sinks is None else np.where(low > sinks, low, 0)
    n = sunk + np.maximum(counts - low, 0)
    at = none if positions is None else positions
    tokens = np.stack([start[which], sunk, low, n, at]).astype(np.int32)
    rows, distinct = deltas, None
    if raw:
        rows = np.zeros_like(cells) if deltas is None else deltas
        if rows.min(initial=0) < 0:
            raise ValueError("a key's position is negative")
    else:
        distinct = np.zeros(1, np.int32)
        if deltas is not None:
            others = np.unique(deltas)
            distinct = np.concatenate((distinct, others[others != 0])).astype(np.int32)
            order = np.argsort(distinct)
            rows = order[np.searchsorted(distinct[order], deltas)].astype(np.int32)
    return Sight(tokens, cells, rows, distinct, cell_positions)


class SeenTensors:
    """What the tokens of a micro-batch see, on a device.

    Attributes:
        tokens: see :class:`Sight`, int32, and so the others.
        longest: no token sees more cells.
        raw: keys are stored as at position 0.
        deltas: the distinct deltas, int32, on the host; None: keys are raw.
        n_turns: so many rows of angles are needed where positions rotate; 1: none, keys have not moved.
    """

    def __init__(
        self,
        seen: Sight,
        device: torch.device | str,
        into: torch.Tensor | None = None,
        longest: int | None = None,
    ) -> None:
        """Copy to the device without waiting for it.

        Args:
            seen: what they see.
            device: where the layers are.
            into: int32, contiguous, takes the numbers, at places that follow from T alone, so that a recorded
                graph finds them: first those of the tokens, then the lists, each in a third of what is left.
            longest: for how many cells kernels are launched; None: as many as a token sees now.
        """
        tokens, cells, rows, deltas, positions = seen
        device = torch.device(device)
        parts = {0: tokens, 1: cells, 2: rows, 3: positions}
        given = {i: part for i, part in parts.items() if part is not None}
        sizes = [part.size for part in given.values()]
        pinned = device.type == "cuda"
        flat = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=pinned)
        np.concatenate([part.reshape(-1) for part in given.values()], out=flat.numpy())
        if into is None:
            taken = torch.split(flat.to(device, non_blocking=pinned), sizes)
        else:
            room = (into.numel() - tokens.size) // 3
            if room < len(cells):
                raise ValueError(f"{len(cells)} listed cells, where there is room for {room}")
            begins = [0, *(tokens.size + i * room for i in range(3))]
            taken = tuple(into[begins[i] : begins[i] + part.size] for i, part in given.items())
            for to, part in zip(taken, torch.split(flat, sizes), strict=True):
                to.copy_(part, non_blocking=pinned)
        found = dict(zip(given, taken, strict=True))
        self.tokens, self.cells = found[0].view(tokens.shape), found[1]
        self.rows, self.positions = found.get(2), found.get(3)
        self.deltas, self.raw, self.n_tokens = deltas, deltas is None, tokens.shape[1]
        self.n_turns = 1 if deltas is None else len(deltas)
        if deltas is None and rows is not None:
            self.n_turns = 1 + int(rows.max(initial=0))
        most = int(tokens[3].max(initial=0))
        self.longest = most if longest is None else longest
        if self.longest < most:
            raise ValueError(f"a token sees {most} cells, more than {longest}")

    @cached_property
    def places(self) -> torch.Tensor:
        """The numbers of the listed cells, int32 [n]."""
        return torch.arange(len(self.cells), dtype=torch.int32, device=self.cells.device)


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
    spare: bool = False,
) -> torch.Tensor:
    """Attention of a micro-batch's queries over the cells that they see.

    Args:
        q: queries, rotated, float32 [T, H, D].
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
        spare: ``q`` may be changed.

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
    if turned and not spare:
        q = q.clone(memory_format=torch.contiguous_format)
    if turned and not once:
        q = hadamard(q.contiguous(), turned)
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
            kernels.attend[pairs, 1, groups](
                q, q.stride(0), keys.data, keys.halves, values.data, values.halves, out, room, factors,
                seen.tokens, seen.cells, cells, index, positions, leans, sunk, *shared,
                *keys.strides, *values.strides, scale, softcap, **scored, SINKS=sinks is not None,
                VALUES=values.dim, VALUE_KIND=values.kind, VALUE_BYTES=values.block_bytes, CHANNELS=channels,
                TURN=_turning(turned), TURN_BACK=_turning(values.rotation), num_warps=b.warps,
                maxnreg=255, **EXACT,
            )  # fmt: skip
            return out.view(t, -1)
        kernels.score[pairs, triton.cdiv(seen.longest, b.cells), groups](
            q, q.stride(0), keys.data, keys.halves, room, seen.tokens, cells, index, positions, leans,
            *shared, *keys.strides, scale, softcap, **scored, num_warps=b.warps, **EXACT,
        )  # fmt: skip
        kernels.weigh[pairs, groups](
            room, factors, seen.tokens, sunk, *shared, **shape,
            SINKS=sinks is not None, PAIRS=b.pairs, num_warps=4, **EXACT,
        )  # fmt: skip
        kernels.mix[pairs, triton.cdiv(values.dim, b.channels), groups](
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
