"""Steps over recurrent states that fail, or stand within other steps: all is taken back, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.core.errors import (
    CacheFull,
)
from aleator.generate import Batch, Context
from aleator.models.decoder import Decoder
from tests.cache.test_recurrent import TEXT, context, feed, fresh, ranges, same
from tests.cache.test_recurrent import decoder as decoder


def test_a_failed_decode_changes_nothing(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(decoder, rollback=2, n_ubatch=4)
    feed(ctx, 0, TEXT[:10])
    ctx.cache.seq_cp(0, 1)
    run, calls = ctx._step.run, 0

    def failing(*args: object) -> Any:
        nonlocal calls
        calls += 1
        out: Any = run(*args)
        if calls == 3:
            raise KeyboardInterrupt
        return out

    monkeypatch.setattr(ctx._step, "run", failing)
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
