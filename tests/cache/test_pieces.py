"""Pieces of sequences, in sequences of any number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.cache.formats import pieces
from aleator.cache.journal import Transaction
from aleator.cache.pools.recurrent_rows import RecurrentShape
from aleator.cache.recurrent import RecurrentCache
from aleator.core.errors import Corrupt
from tests.cache.caches import fill, small


@pytest.mark.parametrize("seq", [1, 63, 64, 100, 129])
def test_a_piece_becomes_a_sequence_of_any_number(seq: int) -> None:
    cache = small(16, n_seq_max=130)
    fill(cache, "000000")
    pool: Any = cache.pool
    piece = pieces.write_cells(pool, 0, 1, 5)
    assert piece is not None
    with Transaction(cache.journal):
        pieces.read_cells(pool, seq, range(2, 4), piece, range(1, 5))
    cells = [i for i in range(cache.size) if cache.cells.owners_of(i) == [seq]]
    assert cache.cells.positions[cells].tolist() == [2, 3]
    for layer in cache.keys.layers + cache.values.layers:
        assert np.array_equal(layer[cells], layer[[2, 3]])
    cache.check()


@pytest.mark.parametrize("change", [-1, 1, None])
def test_a_piece_of_another_length_is_refused(change: int | None) -> None:
    cache = small(16)
    fill(cache, "000000")
    pool: Any = cache.pool
    piece = pieces.write_cells(pool, 0, 0, 4)
    assert piece is not None
    assert [pieces.write_cells(pool, 0, p, p) for p in (0, 3)] == [b"", b""]
    other = bytes(piece) + b"1" if change == 1 else bytes(piece)[:change]
    with pytest.raises(Corrupt, match=r"not of [45] cells \(offset 0\)"):
        pieces.read_cells(pool, 1, range(2), other, range(4 if change else 5))
    assert cache.seq_pos_max(1) == -1


def test_a_state_of_another_length_is_refused() -> None:
    pool = RecurrentCache([RecurrentShape(1, 1, 1)], n_seq_max=2).pool
    pool.place(np.arange(3, dtype=np.int32), np.zeros(3, np.int32), np.ones((3, 1), np.uint64))
    state = pieces.write_state(pool, 0)
    with pytest.raises(Corrupt, match=r"not positions 0 to 3 \(offset 0\)"):
        pieces.read_state(pool, 1, 4, state)
    pieces.read_state(pool, 1, 3, state)
    assert (pieces.cells_of(pool), pieces.has_states(pool)) == (None, True)
    assert pieces.has_states(small(8).pool) is False
