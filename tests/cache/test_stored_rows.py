"""Rows of all layers at once, and what comes before a window: against NumPy; indices are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator._native import Cells, StoredRows, before_window, seen_cells


def test_rows_are_taken_and_put_back() -> None:
    rng = np.random.default_rng(1)
    layers = [rng.integers(0, 256, (9, n), dtype=np.uint8) for n in (4, 1, 34)]
    before = [layer.copy() for layer in layers]
    rows, cells = StoredRows(layers), np.array([7, 0, 3])
    taken = rows.take(cells)
    assert taken.tobytes() == b"".join(layer[cells].tobytes() for layer in layers)
    for layer in layers:
        layer[:] = 0
    rows.put(cells, taken)
    for layer, old in zip(layers, before, strict=True):
        assert (layer[cells] == old[cells]).all()
        assert layer.sum() == old[cells].sum()


@pytest.mark.parametrize("cells", [[9], [-1], [0, 2**40]])
def test_cells_are_checked(cells: list[int]) -> None:
    rows = StoredRows([np.zeros((9, 4), np.uint8)])
    with pytest.raises(ValueError, match="out of range"):
        rows.take(np.array(cells))
    with pytest.raises(ValueError, match="out of range"):
        rows.put(np.array(cells), np.zeros(4 * len(cells), np.uint8))
    with pytest.raises(ValueError, match="so many"):
        rows.put(np.array([1]), np.zeros(5, np.uint8))
    with pytest.raises(ValueError, match="equally many"):
        StoredRows([np.zeros((9, 4), np.uint8), np.zeros((8, 4), np.uint8)])
    with pytest.raises(ValueError, match="out of range"):
        StoredRows([]).take(np.array([0]))


def test_cells_before_the_window() -> None:
    cells = Cells(64, 2)
    order = np.random.default_rng(2).permutation(40).astype(np.int64)
    owners = np.array([[1 + i % 2] for i in range(40)], np.uint64)
    positions = np.arange(40, dtype=np.int32) // 2
    cells.put(order, positions, owners)
    asked = np.array([0, 3, 19, 12, 19], np.int32)
    seqs = np.array([0, 1, 1, 0, 0], np.int32)
    seen, start, lists, *_ = seen_cells(cells, asked, seqs, True, None)
    for window in (1, 4, 19, 20, 2**31 - 1):
        first = before_window(cells, seen, start, lists, asked, window)
        assert first.tolist() == [max(0, p - window + 1) for p in asked.tolist()]
        first = before_window(cells, seen, start, lists, asked, window, chunked=True)
        assert first.tolist() == [p // window * window for p in asked.tolist()]
    with pytest.raises(ValueError, match="window"):
        before_window(cells, seen, start, lists, asked, 0)
    bad: list[Any] = [
        (seen, start, lists + 5, asked),
        (seen, start[::-1].copy(), lists, asked),
        (seen[:3], start, lists, asked),
        (seen + 64, start, lists, asked),
        (seen, start, lists[:2], asked),
    ]
    for wrong in bad:
        with pytest.raises(ValueError, match=r"sizes|ascend|range|list"):
            before_window(cells, wrong[0], wrong[1], wrong[2], wrong[3], 4)


def test_ring_by_hand() -> None:
    cells = Cells(8, 2)
    one, two = np.array([[1]], np.uint64), np.array([[2]], np.uint64)

    def put(cell_ids: Any, first: int, owner: Any) -> None:
        n = len(cell_ids)
        cells.put(cell_ids, np.arange(first, first + n, dtype=np.int32), np.repeat(owner, n, 0))

    put(np.arange(5), 0, one)
    put(np.arange(5, 7), 0, two)
    cell_ids = cells.take_in_ring(3, 3)  # a token at 5 sees 3 and 4
    assert (cell_ids.tolist(), cells.used) == ([7, 0, 1], 5)
    assert cells.seq_pos_min(0) == 2
    put(cell_ids, 5, one)
    assert (cells.head, cells.seq_pos_max(0)) == (2, 7)
    cell_ids = cells.take_in_ring(4, 3)
    assert (cell_ids.tolist(), cells.used) == ([2, 3, 4, 7], 4)
    assert cells.seq_pos_min(0) == 6
    assert cells.map() == "00...11"
    put(np.array([2, 3, 4, 7]), 8, one)
    assert (len(cells.take_in_ring(7, 3, keep=1)), cells.used) == (0, 8)
    cells.seq_cp(0, 1, 6, 8)  # cells of two are not used again
    assert cells.take_in_ring(5, 3).tolist() == []
    assert cells.take_in_ring(4, 3).tolist() == [2, 3, 5, 6]
    for wrong in ((0, 3), (1, 0), (1, 3, -1), (1, 3, 0, 1)):
        with pytest.raises(ValueError, match="out of range"):
            cells.take_in_ring(*wrong)
