"""Pieces of sequences, in sequences of any number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.cache.formats import pieces
from aleator.cache.journal import Transaction
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
