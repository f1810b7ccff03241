"""Which cells tokens get, what cells refuse, and what is seen of them; [L] was observed in llama.cpp 0.5.0.

What their verbs do: test_cells_state_machine.py, and test_llama_scripts.py with llama.cpp's own answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from aleator.cache import Cells


def bits(cells: Cells, owners: Iterable[int]) -> list[int]:
    words = [0] * cells.owners.shape[1]
    for s in owners:
        words[s // 64] |= 1 << (s % 64)
    return words


def put(cells: Cells, positions: Iterable[int], *owners: int) -> list[int]:
    """Give tokens cells; return those."""
    array = np.array(list(positions), dtype=np.int32)
    rows = np.array([bits(cells, owners)] * len(array), dtype=np.uint64)
    placed: list[int] = cells.place(array, rows).tolist()
    cells.check()
    return placed


def state(cells: Cells) -> tuple[bytes, bytes, bytes, int, int, int]:
    return (
        cells.positions.tobytes(),
        cells.owners.tobytes(),
        cells.shifts.tobytes(),
        cells.head,
        cells.used,
        cells.top,
    )


def span(cells: Cells, seq: int) -> tuple[int, int]:
    return cells.seq_pos_min(seq), cells.seq_pos_max(seq)


def test_ring_order_after_wrap() -> None:  # [L] study T2
    cells = Cells(256, 4)
    put(cells, range(8), 0)
    put(cells, range(2), 1)
    put(cells, range(246), 2)
    cells.seq_rm(0, 0, 3)
    cells.seq_add(1, 0, -1, -5)
    assert cells.head == 8
    assert [span(cells, s) for s in range(3)] == [(3, 7), (-1, -1), (0, 245)]
    assert put(cells, range(4), 3) == [8, 9, 0, 1]
    assert (cells.head, cells.used) == (2, 255)
    assert cells.find(2).tolist() == []
    assert put(cells, [4], 3) == [2]


@pytest.mark.parametrize("bad", [-1, 2, 100, -2])
def test_ids_out_of_range(bad: int) -> None:
    cells = Cells(16, 2)
    put(cells, range(4), 0)
    before = state(cells)
    calls: list[Callable[[], object]] = [
        lambda: cells.seq_cp(bad, 0),
        lambda: cells.seq_cp(0, bad),
        lambda: cells.seq_keep(bad),
        lambda: cells.seq_add(bad, 0, -1, 1),
        lambda: cells.seq_div(bad, 0, -1, 2),
        lambda: cells.seq_pos_min(bad),
        lambda: cells.seq_pos_max(bad),
    ]
    if bad != -1:
        calls.append(lambda: cells.seq_rm(bad))
    for call in calls:
        with pytest.raises(ValueError, match=r"must lie in \[0, 2\)"):
            call()
    assert state(cells) == before


def test_impossible_changes_change_nothing() -> None:
    cells = Cells(4, 2)
    put(cells, range(3), 0)
    before = state(cells)
    one = np.array([3], dtype=np.int32)
    with pytest.raises(ValueError, match="free cells"):
        put(cells, [3, 4], 0)
    with pytest.raises(ValueError, match="owners"):
        cells.place(one, np.array([[0]], dtype=np.uint64))
    with pytest.raises(ValueError, match="owners"):
        cells.place(one, np.array([[4]], dtype=np.uint64))
    with pytest.raises(ValueError, match="must lie in"):
        put(cells, [-1], 0)
    with pytest.raises(ValueError, match="out of range"):
        cells.seq_add(0, 0, -1, 2**31 - 2)
    with pytest.raises(ValueError, match="1 or more"):
        cells.seq_div(0, 0, -1, 0)
    assert state(cells) == before


def test_rollback_works_after_commit_and_only_once() -> None:
    cells = Cells(8, 1)
    put(cells, range(2), 0)
    before = state(cells)
    cells.begin()
    put(cells, [2], 0)
    cells.commit()
    cells.rollback()
    assert state(cells) == before
    put(cells, [2], 0)
    after = state(cells)
    cells.rollback()
    assert state(cells) == after


def test_cells_that_held_something_else() -> None:
    cells = Cells(12, 2)
    every = np.arange(12)
    put(cells, range(4), 0)
    assert cells.used_before(every).tolist() == []  # nothing is under way
    cells.begin()
    assert cells.used_before(every).tolist() == []
    put(cells, [4, 5], 0)
    assert cells.used_before(every).tolist() == []
    cells.seq_rm(0, 1, 3)
    cells.begin()
    put(cells, range(2), 1)
    assert cells.used_before(np.array([2, 1, 1, 9, 5])).tolist() == [1, 2]
    cells.rollback()
    assert cells.used_before(every).tolist() == [1, 2]
    cells.commit()
    assert cells.used_before(every).tolist() == []


def test_shifts_as_far_as_they_go() -> None:
    cells = Cells(8, 2)
    for end in (-1, 3):
        put(cells, range(4), 0)
        put(cells, range(4), 1)
        cells.seq_add(0, 0, end, -(2**31))
        cells.check()
        assert span(cells, 0) == ((-1, -1) if end < 0 else (3, 3))
        cells.seq_add(1, 0, -1, 2**31 - 5)
        cells.check()
        assert span(cells, 1) == (2**31 - 5, 2**31 - 2)
        cells.clear()


def test_moves_that_meet_are_refused() -> None:
    cells = Cells(16, 1)
    put(cells, range(12), 0)
    cells.seq_rm(0, 0, 4)
    before = state(cells)
    for moves in ([(10, 0, 1), (11, 0, 1)], [(8, 0, 3), (10, 3, 1)], [(8, 0, 2), (10, 1, 2)]):
        with pytest.raises(ValueError, match="free"):
            cells.move(moves)
        assert state(cells) == before


def test_views_follow_the_cells_and_cannot_be_written() -> None:
    cells = Cells(4, 1)
    view = cells.positions
    put(cells, [7], 0)
    assert view.tolist() == [7, -1, -1, -1]
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    del cells
    assert view.tolist() == [7, -1, -1, -1]
