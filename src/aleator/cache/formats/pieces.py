"""Pieces of a sequence's state, for a prompt cache in tiers: cells of some positions, and whole states.

Cells of positions [p0, p1) are u32 number of cells, then the cells as in :mod:`aleator.cache.formats.llama`,
by ascending position, each with one owner.  What cannot be cut (windows, recurrent states) is llama.cpp's state
of a sequence, of the pools beside the first one only where that one's cells can be cut.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from aleator.cache.formats import llama
from aleator.cache.formats.source import Source
from aleator.cache.formats.state_file import Buffer
from aleator.cache.options import END
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.pools.pool import Pool
from aleator.cache.pools.window import WindowPool
from aleator.core.errors import Corrupt

FORMAT = 1
"""Of the bytes that this file writes."""


def cells_of(pool: Pool) -> AttentionPool | None:
    """The pool whose cells can be cut at any position; None: there is none."""
    first = pool.leaves[0]
    return first if isinstance(first, AttentionPool) and not isinstance(first, WindowPool) else None


def has_states(pool: Pool) -> bool:
    """Whether something in a pool cannot be cut."""
    return cells_of(pool) is None or len(pool.leaves) > 1


def write_cells(pool: AttentionPool, seq: int, p0: int, p1: int) -> bytes | None:
    """The cells of a sequence at positions [p0, p1).

    None: it does not hold each of them once, or their keys are not as the model stored them: a shift is
    pending, or they are stored raw, which a state holds rotated and rounded.
    """
    cells = pool.cells.seq_cell_list(seq, p0, p1) if p0 < p1 else np.empty(0, np.int64)
    positions = pool.cells.positions[cells]
    order = np.argsort(positions)
    cells, positions = cells[order], positions[order]
    if not np.array_equal(positions, np.arange(p0, p1)):
        return None
    if len(cells) == 0:
        return struct.pack("<I", 0)
    if (pool.rows.key_positions[cells] != positions).any() or pool.rows.k_storage == "raw":
        return None
    owners = np.ones((len(cells), 1), np.uint8)
    parts = [struct.pack("<I", len(cells)), llama.cells_as_bytes(pool, cells, owners)]
    return b"".join([*parts, *llama.rows_as_bytes(pool, cells)])


def write_state(pool: Pool, seq: int) -> bytes:
    """What cannot be cut of a sequence, as it is after its last token."""
    return llama.write(pool, seq, partial=cells_of(pool) is not None)


def read(
    pool: Pool,
    seq: int,
    length: int,
    cells: Sequence[Buffer],
    state: Buffer,
) -> None:
    """Within a frame, replace a sequence by the first ``length`` tokens of pieces.

    ``cells`` are what :func:`write_cells` gave, of consecutive positions from 0 on, and may go beyond
    ``length`` where everything in the pool can be cut.  ``state`` is what :func:`write_state` gave after
    ``length`` tokens, b"" if the pool has nothing of that kind.

    Raises:
        Corrupt, Incompatible: they are not what they should be.
        CacheFull: there is no room.
    """
    whole = cells_of(pool)
    pool.seq_rm(seq, 0, END)
    if whole is not None:
        llama.restore_sections(whole, [_joined(whole, seq, length, cells)], seq)
    if state:
        llama.read(pool, memoryview(state), seq, partial=whole is not None)
    if not pool.stands_for(seq, length):
        raise Corrupt(0, f"the pieces are not positions 0 to {length - 1}")


def _joined(pool: AttentionPool, seq: int, length: int, pieces: Sequence[Buffer]) -> llama.Section:
    """The first ``length`` cells of pieces as one section."""
    sections = []
    for each in pieces:
        source = Source(memoryview(each))
        n = source.u32("cell_count")
        if n:
            sections.append(llama.section_of(pool, source, n, seq))
        if source.left:
            raise Corrupt(source.offset, f"{source.left} bytes follow the end of a piece")
    if not sections:
        raise Corrupt(0, "the pieces have no cells")
    positions = np.concatenate([each.positions for each in sections])[:length]
    if not np.array_equal(positions, np.arange(length)):
        raise Corrupt(0, f"the pieces are not positions 0 to {length - 1}")
    extras = [each.extras for each in sections if each.extras is not None]
    by_channel, size = pool.rows.values.by_channel, pool.rows.values.type.block_bytes
    keys, values = ([list(side) for side in zip(*rows, strict=True)] for rows in (
        [each.keys for each in sections], [each.values for each in sections],
    ))  # fmt: skip
    return llama.Section(
        positions,
        np.concatenate([each.owners for each in sections])[:length],
        np.concatenate(extras)[:length] if extras else None,
        [np.concatenate(rows)[:length] for rows in keys],
        [
            np.concatenate(rows, axis=1)[:, : length * size]
            if by_channel and rows[0].shape[1]
            else np.concatenate(rows)[:length]
            for rows in values
        ],
    )
