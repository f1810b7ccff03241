"""Cells by the thousand: runs of free cells, sequences that are scattered or take turns."""

from __future__ import annotations

import numpy as np
import pytest

from aleator.cache import Cells
from tests.cache.test_cells import span


@pytest.mark.parametrize("size", [64, 65, 1000, 9000])
def test_runs_of_free_cells(size: int) -> None:
    rng = np.random.default_rng(size)
    cells = Cells(size, 2)
    free = np.ones(size, dtype=np.bool_)
    for _ in range(60):
        start = int(rng.integers(0, size))
        n = int(rng.integers(1, max(2, size // 8)))
        stop = min(size, start + n)
        if rng.integers(0, 3):
            taken = np.flatnonzero(free[start:stop]) + start
            rows = np.full((len(taken), 1), 1 + int(rng.integers(0, 2)), dtype=np.uint64)
            cells.put(taken, taken.astype(np.int32), rows)
        else:
            cells.seq_rm(-1, start, stop)
        free = cells.positions < 0
        for want in (1, 2, 63, 64, 65, int(rng.integers(1, size))):
            head = 0 if cells.head > cells.used + 2 * want else cells.head
            sums = np.concatenate([[0], np.cumsum(free)])
            starts = np.flatnonzero(sums[want:] - sums[: size + 1 - want] == want)
            after = starts[starts >= head]
            expected = after[0] if len(after) else starts[0] if len(starts) else None
            found = cells.find(want, contiguous=True).tolist()
            assert found == ([] if expected is None else list(range(expected, expected + want)))
    cells.check()


def test_a_sequence_scattered_over_many_chunks() -> None:
    # 3,000 runs of one cell, changed in the middle.
    cells = Cells(6000, 2)
    order = np.random.default_rng(1).permutation(6000)[:3000]
    cells.put(order, np.arange(3000, dtype=np.int32), np.ones((3000, 1), dtype=np.uint64))
    cells.check()
    assert cells.seq_cell_list(0).tolist() == order.tolist()
    cells.seq_rm(0, 100, 110)
    cells.seq_rm(0, 1000, 2000)
    cells.check()
    assert (
        cells.seq_cell_list(0, 90, 2001).tolist()
        == order[[*range(90, 100), *range(110, 1000), 2000]].tolist()
    )
    cells.seq_cp(0, 1, 50, 2500)
    cells.seq_add(1, 2000, -1, -1000)
    cells.check()
    assert (span(cells, 0), span(cells, 1)) == ((0, 2999), (50, 1499))
    back = np.flatnonzero(cells.positions < 0)[:1000]
    cells.put(back, np.arange(200, 1200, dtype=np.int32), np.ones((1000, 1), dtype=np.uint64))
    cells.check()
    cells.seq_rm(0, 300, 1100)
    cells.check()


def test_many_sequences() -> None:
    cells = Cells(5000, 4096)
    rows = np.zeros((1, 64), dtype=np.uint64)
    rows[0, 0] = 1
    cells.place(np.arange(1, dtype=np.int32), rows)
    for s in range(1, 4096):
        cells.seq_cp(s - 1, s)
    assert len(cells.owners_of(0)) == 4096
    assert cells.shared_cells == 1
    for s in range(4096):
        rows[:] = 0
        rows[0, s // 64] = np.uint64(1 << (s % 64))
        cells.place(np.array([1], dtype=np.int32), rows)
    cells.check()
    for s in range(0, 4096, 2):
        cells.seq_rm(s)
    cells.check()
    assert (cells.used, len(cells.owners_of(0))) == (2049, 2048)
    cells.seq_keep(4095)
    assert (cells.used, cells.owners_of(0), cells.shared_cells) == (2, [4095], 0)
