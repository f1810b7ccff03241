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
from tests.cache.caches import feed, interrupted, same
from tests.cache.test_recurrent import TEXT, context, fresh, ranges
from tests.cache.test_recurrent import decoder as decoder


def test_a_failed_decode_changes_nothing(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(decoder, rollback=2, n_ubatch=4)
    feed(ctx, 0, TEXT[:10])
    ctx.cache.seq_cp(0, 1)
    monkeypatch.setattr(ctx._step, "run", interrupted(ctx._step.run, 3))
    batch = Batch.one(TEXT[10:20])
    batch.add(7, None, [1])
    batch.add(3, None, [3])
    with pytest.raises(KeyboardInterrupt):
        ctx.decode(batch)
    monkeypatch.undo()
    ctx.cache.check()
    assert ranges(ctx.cache) == [(9, 9), (9, 9), (-1, -1), (-1, -1)]
    ctx.cache.seq_rm(1, 8, -1)
    assert same(feed(ctx, 0, [TEXT[10]]), fresh(decoder, TEXT[:11]))
    assert same(feed(ctx, 1, [TEXT[20]]), fresh(decoder, [*TEXT[:8], TEXT[20]]))


@pytest.mark.parametrize("name", ["mamba", "jamba"])
def test_a_clear_in_a_step_that_fails_is_taken_back(make_decoder: Any, name: str) -> None:
    ctx = Context(make_decoder(name), n_ctx=64, type_k="f32", type_v="f32")
    feed(ctx, 0, TEXT[:9])
    before = ctx.state_write(0)

    def fail() -> None:
        with ctx.cache.step():
            ctx.cache.clear()
            feed(ctx, 0, TEXT[20:24])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    ctx.cache.check()
    assert ctx.state_write(0) == before
    with ctx.cache.step():
        ctx.cache.clear()
    pool: Any = ctx.cache.pools[-1]
    assert not any(t.any() for t in pool.conv + pool.ssm)
    assert ctx.cache.seq_pos_max(0) == -1


@pytest.mark.parametrize("name", ["mamba", "mamba-norms", "jamba"])
@pytest.mark.parametrize("rollback", [0, 2])
def test_steps_within_steps(make_decoder: Any, name: str, rollback: int) -> None:
    options: Any = {"n_ctx": 64, "type_k": "f32", "type_v": "f32", "n_rollback": rollback}
    ctx, plain = (Context(make_decoder(name), **options) for _ in range(2))
    parts = [TEXT[:9], TEXT[9:12], TEXT[12:13], TEXT[13:20]]
    expected = [feed(plain, 0, part) for part in parts]
    feed(ctx, 0, parts[0])
    before = ctx.state_write(0)

    def fail() -> None:
        with ctx.cache.step():
            ctx.decode(Batch.one(TEXT[30:33]))
            ctx.decode(Batch.one(TEXT[33:36]))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert ctx.state_write(0) == before
    with ctx.cache.step():
        assert np.array_equal(feed(ctx, 0, parts[1]), expected[1])
        with pytest.raises(KeyError):
            fail()  # taken back alone
        assert np.array_equal(feed(ctx, 0, parts[2]), expected[2])
        saved = ctx.state_write(0)
        ctx.state_read(before, 0)
        ctx.cache.check()
        ctx.state_read(saved, 0)
    assert np.array_equal(feed(ctx, 0, parts[3]), expected[3])
    assert ctx.state_write(0) == plain.state_write(0)
    pool: Any = ctx.cache.pools[-1]
    rows, where = pool.states.n_rows, pool.addresses()
    with ctx.cache.step():
        for token in TEXT[20:30]:
            feed(ctx, 0, [token])
    assert (pool.states.n_rows, pool.addresses()) == (
        rows,
        where,
    )  # those of inner steps are used again
    ctx.cache.clear()
    assert not pool.states.book()


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
