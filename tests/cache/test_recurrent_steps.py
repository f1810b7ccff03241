"""Steps over recurrent states that fail, or stand within other steps: all is taken back, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.recurrent_rows import RecurrentShape
from aleator.core.errors import CacheFull, CannotShift, ParameterError
from aleator.generate import Batch, Context
from aleator.models.decoder import Decoder
from tests.cache.caches import feed
from tests.cache.test_recurrent import TEXT
from tests.cache.test_recurrent import decoder as decoder


def test_no_memory_for_a_step_within_a_step(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx: Any = Context(decoder)
    feed(ctx, 0, TEXT[:9])

    def no_memory(*args: object) -> None:
        raise MemoryError("not enough memory")

    with ctx.cache.step():
        feed(ctx, 0, TEXT[9:10])
        before = ctx.state_write(0)
        monkeypatch.setattr(type(ctx.cache.pool.rows.arrays[0]), "grown", no_memory)
        with pytest.raises(CacheFull, match="end the outer step first"):
            ctx.decode(Batch.one(TEXT[10:11]))
        monkeypatch.undo()
        assert ctx.state_write(0) == before
    ctx.cache.check()


def pool_of(n: int, rollback: int = 0) -> RecurrentPool:
    """A pool, and sequence 0 after some tokens."""
    pool = RecurrentPool([RecurrentShape(1, 1, 1)], n_seq_max=3, rollback=rollback, kept_rows=4)
    for position in range(n):
        at = np.full(1, position, np.int32)
        pool.place(at, np.zeros(1, np.int32), np.ones((1, 1), np.uint64))
    return pool


@pytest.mark.parametrize(
    ("seq", "positions", "error"),
    [
        (0, (0, 1, 5), ""),
        (0, (0, 1, 2, 3), "too long"),
        (2, (0, 1, 2, 3), "too long"),
        (3, (0, 1, 2, 3), ""),  # of a cached prefix
        (1, (-1, 0), "not in order"),
        (1, (2, 2), "not in order"),
        (1, (0, 3, 2), "not in order"),
        (4, (1, 0), "not in order"),
    ],
)
def test_a_check_finds_what_cannot_be(seq: int, positions: tuple[int, ...], error: str) -> None:
    pool = pool_of(0, rollback=2)
    pool.states.change({seq: tuple(enumerate(positions))})
    if error:
        with pytest.raises(AssertionError, match=error):
            pool.check()
    else:
        pool.check()


def test_rows_and_whose_they_are() -> None:
    pool = pool_of(1, rollback=2)
    assert pool.states.n_rows == 2 * 3 * 3 + 4
    assert (pool.n_streams, pool.newest_row(0), pool.newest_row(1)) == (1, 0, -1)
    assert (pool.same_cells(0, 1), pool.same_cells(1, 2)) == (False, True)
    pool.unshare(0, 0, 9)
    pool.unshare(1, 0, 9)
    pool.seq_cp(0, 1, 0, 9)
    assert pool.same_cells(0, 1)
    with pytest.raises(CannotShift, match="0 and 1 share a recurrent state"):
        pool.unshare(0, 0, 9)
    assert [pool.has_exactly(0, n) for n in range(3)] == [False, True, False]
    for p0, p1, name in ((0, 0, "p1"), (1, 9, "p0")):
        with pytest.raises(ParameterError) as caught:
            pool.seq_cp(0, 2, p0, p1)
        assert caught.value.parameter == name
