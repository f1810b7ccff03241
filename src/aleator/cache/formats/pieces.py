"""Pieces of a sequence's state, for a prompt cache in tiers: cells of some positions, and whole states.

A piece of positions [p0, p1) holds what every layer stores in their cells, layer by layer, keys first.  What
cannot be cut (windows, recurrent states) is stored as llama.cpp's state of a sequence, without the first pool
if its cells can be cut.
"""

from __future__ import annotations

import numpy as np

from aleator.cache.formats import llama
from aleator.cache.formats.state_file import Buffer
from aleator.cache.options import END
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.pools.hybrid import HybridPool
from aleator.cache.pools.pool import Pool
from aleator.cache.pools.window import WindowPool
from aleator.core.arrays import Int32s
from aleator.core.errors import Corrupt

FORMAT = 2
"""The version of the bytes that this file writes."""


def cells_of(pool: Pool) -> AttentionPool | None:
    """The pool whose cells can be cut at any position, or None."""
    first = pool.leaves[0]
    return first if isinstance(first, AttentionPool) and not isinstance(first, WindowPool) else None


def has_states(pool: Pool) -> bool:
    """Whether something in a pool cannot be cut."""
    return cells_of(pool) is None or len(pool.leaves) > 1


def write_cells(pool: AttentionPool, seq: int, p0: int, p1: int) -> Buffer | None:
    """The cells of a sequence at positions [p0, p1), or None.

    None means that the sequence does not hold each position once, or that keys are not as the model stored
    them: a shift is pending, or a state that was read has rotated and rounded raw keys.
    """
    cells = pool.cells.seq_cell_list(seq, p0, p1)
    positions = pool.cells.positions[cells]
    order = np.argsort(positions)
    cells, positions = cells[order], positions[order]
    if not np.array_equal(positions, np.arange(p0, p1)):
        return None
    if (pool.rows.key_positions[cells] != _rotated_to(pool, positions)).any():
        return None
    return pool.rows.taken(cells).data if len(cells) else b""


def _rotated_to(pool: AttentionPool, positions: Int32s) -> Int32s:
    """The positions that the stored keys of cells at some positions are rotated to."""
    return np.zeros_like(positions) if pool.rows.k_storage == "raw" else positions


def read_cells(whole: Pool, seq: int, places: range, piece: Buffer, of: range) -> None:
    """Within a frame, add to a sequence the cells of some positions of a piece.

    ``piece`` is what :func:`write_cells` returned for the positions ``of``.  If another part of the pool cannot
    be cut, the sequence is not usable before :func:`read_state` or :func:`take_back`.

    Raises:
        Corrupt: ``piece`` is something else.
        CacheFull: there is no room.
    """
    pool = cells_of(whole)
    if pool is None or len(memoryview(piece)) != len(of) * pool.rows.row_bytes:
        raise Corrupt(0, f"the piece is not of {len(of)} cells")
    if not places:
        return
    if isinstance(whole, HybridPool):
        whole.begin(seq)
    positions = np.arange(places.start, places.stop, dtype=np.int32)
    owners = np.zeros((len(places), pool.cells.words), np.uint64)
    owners[:, seq // 64] = np.uint64(1 << seq % 64)
    pool.make_room(len(places))
    cells = pool.find(positions, owners)
    pool.keep_rows(cells)
    pool.rows.key_positions[cells] = _rotated_to(pool, positions)
    pool.rows.put(cells, np.frombuffer(piece, np.uint8), places.start - of.start)


def write_state(pool: Pool, seq: int) -> bytes:
    """The part of a sequence that cannot be cut, as it is after the last token."""
    return llama.write(pool, seq, partial=cells_of(pool) is not None)


def read_state(pool: Pool, seq: int, length: int, state: Buffer) -> None:
    """Within a frame, restore what :func:`write_state` returned after ``length`` tokens.

    The sequence already has its cells that can be cut.

    Raises:
        Corrupt, Incompatible: ``state`` is something else.
        CacheFull: there is no room.
    """
    llama.read(pool, memoryview(state), seq, partial=cells_of(pool) is not None)
    if not pool.has_exactly(seq, length):
        raise Corrupt(0, f"the pieces are not positions 0 to {length - 1}")


def take_back(pool: Pool, seq: int, length: int) -> None:
    """Within a frame, remove the cells after ``length`` tokens that no :func:`read_state` followed."""
    if isinstance(pool, HybridPool):
        pool.first.cells.seq_rm(seq, length, END)
        pool.complete(seq)
