"""Bookkeeping of the cells; numbers marked [L] were observed in llama.cpp 0.5.0."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from aleator.cache import Cells
from tests.cache.caches import mask


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


def picture(cells: Cells) -> str:
    """ "." free, a digit its owner, "M" several."""
    out = ""
    for row in cells.owners[:, 0].tolist():
        out += "." if row == 0 else "M" if row & (row - 1) else str(row.bit_length() - 1)
    return out


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


def test_append_and_range() -> None:
    cells = Cells(256, 4)
    assert put(cells, range(6), 0) == [0, 1, 2, 3, 4, 5]
    assert picture(cells).rstrip(".") == "000000"
    assert (cells.used, cells.head, cells.top) == (6, 6, 6)
    assert span(cells, 0) == (0, 5)
    assert span(cells, 1) == (-1, -1)


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


@pytest.mark.parametrize(("n", "expected"), [(2, [1, 3]), (8, list(range(1, 16, 2))), (9, [])])
def test_holes(n: int, expected: list[int]) -> None:  # [L] study T3
    cells = Cells(16, 2)
    for i in range(16):
        put(cells, [i // 2], i % 2)
    cells.seq_rm(1)
    assert picture(cells) == "0.0.0.0.0.0.0.0."
    assert cells.head == 1
    assert cells.find(n).tolist() == expected


def test_low_holes_come_first() -> None:  # [L] study T3
    cells = Cells(32, 2)
    put(cells, range(10), 0)
    put(cells, range(10), 1)
    cells.seq_rm(0, 2, 4)
    assert put(cells, range(10, 13), 1) == [2, 3, 20]
    assert picture(cells) == "001100000011111111111..........."
    assert cells.head == 21


@pytest.mark.parametrize(("n", "expected"), [(2, [0, 1]), (5, [10, 11, 12, 13, 14])])
def test_search_starts_over_when_head_is_far_ahead(n: int, expected: list[int]) -> None:  # [L]
    cells = Cells(32, 2)
    put(cells, range(10), 0)
    put(cells, range(10), 1)
    cells.seq_rm(0)
    cells.seq_add(1, 0, -1, -9)
    assert (cells.head, cells.used) == (10, 1)
    assert cells.find(n).tolist() == expected


def test_share_and_diverge() -> None:  # [L] study T4
    cells = Cells(16, 4)
    put(cells, range(4), 0, 1)
    put(cells, [4], 0)
    put(cells, [4], 1)
    assert picture(cells).rstrip(".") == "MMMM01"
    assert cells.used == 6
    visible = np.zeros((1, 6), dtype=np.bool_)
    n = mask(cells, np.array([4], dtype=np.int32), np.array([1], dtype=np.int32), visible)
    assert visible.tolist() == [[True, True, True, True, False, True]]
    assert n == 5
    cells.seq_rm(0, -1, -1)
    assert picture(cells).rstrip(".") == "1111.1"
    assert (cells.used, cells.head, span(cells, 0)) == (5, 4, (-1, -1))
    assert put(cells, [0], 2) == [4]


def test_add_moves_shared_cells_for_all() -> None:  # [L] study T5
    cells = Cells(16, 4)
    put(cells, range(4), 0, 1)
    put(cells, [4], 0)
    put(cells, [4], 1)
    cells.seq_add(0, 2, -1, 10)
    assert cells.positions[:6].tolist() == [0, 1, 12, 13, 14, 4]
    assert (span(cells, 0), span(cells, 1), cells.head) == ((0, 14), (0, 13), 0)
    cells.seq_add(0, 12, -1, -13)
    assert cells.positions[:6].tolist() == [0, 1, -1, 0, 1, 4]
    assert cells.shifts[:6].tolist() == [0, 0, 0, -3, -3, 0]
    assert (span(cells, 0), span(cells, 1)) == ((0, 1), (0, 4))
    assert (cells.head, cells.used) == (2, 5)
    cells.check()


def test_remove_for_everybody() -> None:  # [L] study T6
    cells = Cells(16, 4)
    put(cells, range(6), 0, 1)
    cells.seq_rm(-1, 2, 4)
    assert picture(cells).rstrip(".") == "MM..MM"
    assert span(cells, 0) == span(cells, 1) == (0, 5)
    assert put(cells, [6, 7], 0) == [2, 3]
    assert picture(cells).rstrip(".") == "MM00MM"
    assert cells.head == 4


def test_ranges() -> None:  # [L] study T7
    cells = Cells(16, 4)
    put(cells, range(8), 0)
    before = state(cells)
    cells.seq_rm(0, 5, 3)
    cells.seq_rm(0, 3, 3)
    cells.seq_cp(0, 0)
    cells.seq_add(0, 3, 3, 1)
    assert state(cells) == before
    cells.seq_add(0, 5, 3, 1)
    assert (cells.head, span(cells, 0)) == (0, (0, 7))
    cells.seq_rm(0, -5, 3)
    assert span(cells, 0) == (3, 7)
    cells.seq_rm(0, 6, -1)
    assert span(cells, 0) == (3, 5)
    cells.seq_cp(0, 1, 4, -1)
    assert span(cells, 1) == (4, 5)
    assert cells.owners[3:6, 0].tolist() == [1, 3, 3]
    cells.seq_rm(-1, -1, -1)
    assert (span(cells, 0), span(cells, 1), cells.used) == ((-1, -1), (-1, -1), 0)


def test_keep() -> None:
    cells = Cells(16, 4)
    put(cells, range(2), 0)
    put(cells, range(2), 1)
    put(cells, [2], 0, 1)
    cells.seq_keep(1)
    assert picture(cells).rstrip(".") == "..111"
    assert (cells.head, cells.used, span(cells, 0), span(cells, 1)) == (0, 3, (-1, -1), (0, 2))


def test_context_shift() -> None:  # [L] study T11
    cells = Cells(256, 1)
    put(cells, range(256), 0)
    cells.seq_rm(0, 4, 130)
    cells.seq_add(0, 130, -1, -126)
    assert span(cells, 0) == (0, 129)
    assert set(cells.shifts[130:].tolist()) == {-126}
    assert not cells.shifts[:130].any()
    assert cells.head == 0
    assert put(cells, [130], 0) == [4]
    order = cells.positions[cells.positions >= 0].tolist()
    assert order == [0, 1, 2, 3, 130, *range(4, 130)]
    assert cells.used == 131


def test_divide_shifts_towards_the_new_position() -> (
    None
):  # study T12; llama.cpp has the sign wrong
    cells = Cells(16, 1)
    put(cells, range(8), 0)
    cells.seq_div(0, 0, -1, 2)
    assert cells.positions[:8].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert cells.shifts[:8].tolist() == [0, -1, -1, -2, -2, -3, -3, -4]
    assert cells.shifted().tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_self_extend() -> None:  # [L] positions, study T12: group 2, width 4, 8 tokens
    cells = Cells(16, 1)
    put(cells, range(8), 0)
    cells.seq_add(0, 0, 8, 0)
    cells.seq_div(0, 0, 4, 2)
    cells.seq_add(0, 4, 8, -2)
    assert cells.positions[:8].tolist() == [0, 0, 1, 1, 2, 3, 4, 5]
    cells.seq_add(0, 2, 6, 2)
    cells.seq_div(0, 4, 8, 2)
    cells.seq_add(0, 8, 8, -4)
    assert cells.positions[:8].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_shift_there_and_back_leaves_nothing_to_do() -> None:
    cells = Cells(16, 1)
    put(cells, range(4), 0)
    cells.seq_add(0, 0, -1, 3)
    assert cells.has_shift
    cells.seq_add(0, 0, -1, -3)
    assert not cells.has_shift


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


def random_change(cells: Cells, rng: np.random.Generator) -> None:
    n_seq = cells.n_seq_max
    a, b = (int(x) for x in rng.integers(0, n_seq, 2))
    p0, p1 = (int(x) for x in rng.integers(-1, 20, 2))
    kind = rng.integers(0, 9)
    if kind < 3:
        n = int(rng.integers(1, 6))
        if n <= cells.size - cells.used:
            start = cells.seq_pos_max(a) + 1
            put(cells, range(start, start + n), *{a, b})
    elif kind == 3:
        cells.seq_rm(a if p0 % 3 else -1, p0, p1)
    elif kind == 4:
        cells.seq_cp(a, b, p0, p1)
    elif kind == 5:
        cells.seq_add(a, p0, p1, int(rng.integers(-6, 7)))
    elif kind == 6:
        cells.seq_div(a, p0, p1, int(rng.integers(1, 4)))
    elif kind == 7 and p0 < 4:
        cells.seq_keep(a)
    elif kind == 8:
        cells.clear_shifts() if p0 > 3 else cells.clear()


@pytest.mark.parametrize("n_seq_max", [3, 64, 130])
def test_rollback_restores_everything(n_seq_max: int) -> None:
    rng = np.random.default_rng(n_seq_max)
    cells = Cells(40, n_seq_max)
    for _ in range(300):
        before = state(cells)
        spans = [span(cells, s) for s in range(n_seq_max)]
        cells.begin()
        for _ in range(int(rng.integers(0, 5))):
            random_change(cells, rng)
        cells.check()
        if rng.integers(0, 2):
            cells.rollback()
            assert state(cells) == before
            assert [span(cells, s) for s in range(n_seq_max)] == spans
        else:
            cells.commit()
        cells.check()


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


"""Owners (M: 0 and 1) and positions of eight cells."""


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
