"""Handles on sequences: metadata, and logits that are those of the text they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.cache.cache import Cache
from aleator.cache.kv_cache import KVCache, LayerShape
from aleator.cache.sequence import Sequence
from aleator.core.errors import CacheError, CacheFull, CannotRewind, CannotShift, ParameterError
from aleator.generate import Batch, Context
from aleator.models.decoder import Decoder
from tests.cache.caches import tokens

F32: dict[str, Any] = {"type_k": "f32", "type_v": "f32"}


@pytest.fixture
def decoder(make_decoder: Any) -> Decoder:
    made: Decoder = make_decoder("llama-one-layer")
    return made


@pytest.fixture
def ctx(decoder: Decoder) -> Context:
    return Context(decoder, n_ctx=64, n_seq_max=4, **F32)


def fresh(decoder: Decoder, text: list[int]) -> Any:
    return Context(decoder, n_ctx=64, **F32).decode(Batch.one(text, 0))[0]


def close(a: Any, b: Any) -> bool:
    return bool(np.abs(a - b).max() < 1e-4)


def state(cache: Cache) -> tuple[bytes, bytes, list[list[int]]]:
    owners = [cache.cells.owners_of(i) for i in range(cache.size)]
    return cache.cells.positions.tobytes(), cache.cells.shifts.tobytes(), owners


def test_ids_are_given_and_given_back(ctx: Context) -> None:
    cache = ctx.cache
    with cache.sequence() as a, cache.sequence() as b:
        assert (a.id, b.id) == (0, 1)
        ctx.decode(Batch.one(tokens(5), seq=a.id))
        assert (len(a), a.pos_min, a.pos_max, a.next) == (5, 0, 4, 5)
        assert (len(b), b.pos_min, b.pos_max, b.next) == (0, None, None, 0)
        assert a.positions.tolist() == a.cells.tolist() == [0, 1, 2, 3, 4]
        with pytest.raises(CacheError, match="has a handle already"):
            cache.sequence(0)
    assert cache.used == 0
    with pytest.raises(CacheError, match="closed"):
        len(a)
    a.close()  # a second time does nothing
    handles = [cache.sequence() for _ in range(4)]
    with pytest.raises(CacheFull, match="all 4 sequences") as full:
        cache.sequence()
    assert (full.value.needed, full.value.free) == (0, 0)
    del handles[2]
    assert cache.sequence().id == 2  # dropped and empty
    with pytest.raises(ParameterError, match=r"\[0, 4\)"):
        cache.sequence(4)


def test_fork_and_diverge(ctx: Context, decoder: Decoder) -> None:
    text = tokens(8)
    a = ctx.cache.sequence()
    ctx.decode(Batch.one(text, seq=a.id))
    b, c = a.fork(), a.fork(upto=3)
    assert (len(b), len(c), ctx.cache.used) == (8, 3, 8)
    batch = Batch()
    for s, token in ((a, 1), (b, 2), (c, 3)):
        batch.add(token, seqs=[s.id], logits=True)
    rows = ctx.decode(batch)
    for row, start, token in zip(rows, (8, 8, 3), (1, 2, 3), strict=True):
        assert close(row, fresh(decoder, [*text[:start], token]))
    a.close()
    assert ctx.cache.map() == "MMM11111.12"
    assert ctx.cache.sequence().id == 0
    with pytest.raises(ParameterError, match="upto"):
        b.fork(upto=-1)


def test_truncate_and_drop(ctx: Context, decoder: Decoder) -> None:
    text = tokens(10)
    s = ctx.cache.sequence()
    ctx.decode(Batch.one(text, seq=s.id))
    assert s.can_truncate(0)
    assert s.oldest_rewind() == 0
    s.truncate(6)
    assert s.next == 6
    assert close(ctx.decode(Batch.one([9], seq=s.id))[0], fresh(decoder, [*text[:6], 9]))
    s.drop(2, 4)
    assert s.positions.tolist() == [0, 1, 4, 5, 6]
    s.truncate(100)
    assert len(s) == 5
    with pytest.raises(ParameterError, match="n must"):
        s.truncate(-1)
    for start, stop in ((-1, 3), (0, -1)):
        with pytest.raises(ParameterError, match="0 or more"):
            s.drop(start, stop)


def test_slide_equals_the_shortened_text(ctx: Context, decoder: Decoder) -> None:
    text = tokens(20)
    s = ctx.cache.sequence()
    ctx.decode(Batch.one(text, seq=s.id))
    assert s.slide(keep=4) == (8, 12)
    assert s.positions.tolist() == list(range(12))
    short = [*text[:4], *text[12:], 7]
    assert close(ctx.decode(Batch.one([7], seq=s.id))[0], fresh(decoder, short))
    assert s.slide(keep=4, discard=100) == (8, 5)  # at least one stays
    assert s.slide(keep=5) == (0, 5)
    assert s.slide(keep=100, discard=3) == (0, 5)
    with pytest.raises(ParameterError, match="keep"):
        s.slide(keep=-1)
    with pytest.raises(ParameterError, match="discard"):
        s.slide(discard=-1)


def test_a_shared_cell_is_copied_before_it_moves(ctx: Context, decoder: Decoder) -> None:
    text = tokens(12)
    a = ctx.cache.sequence()
    ctx.decode(Batch.one(text, seq=a.id))
    b = a.fork()
    assert b.slide(keep=2, discard=4) == (4, 8)
    assert a.positions.tolist() == list(range(12))
    assert ctx.cache.used == 12 + 6
    assert ctx.cache.cells.shared_cells == 2
    ctx.cache.check()
    batch = Batch()
    for s in (a, b):
        batch.add(5, seqs=[s.id], logits=True)
    rows = ctx.decode(batch)
    assert close(rows[0], fresh(decoder, [*text, 5]))
    assert close(rows[1], fresh(decoder, [*text[:2], *text[6:], 5]))


def test_shift_and_divide_move_nothing_of_others(ctx: Context, decoder: Decoder) -> None:
    text = tokens(6)
    a = ctx.cache.sequence()
    ctx.decode(Batch.one(text, seq=a.id))
    b = a.fork()
    b.shift(0, 6, 10)
    assert (a.pos_min, b.pos_min, b.pos_max) == (0, 10, 15)
    assert close(ctx.decode(Batch.one([3], seq=b.id))[0], fresh(decoder, [*text, 3]))
    b.divide(0, 100, 2)
    assert b.positions.tolist() == [5, 5, 6, 6, 7, 7, 8]
    before = state(ctx.cache)
    with pytest.raises(ParameterError, match="below 0"):
        b.shift(0, 100, -6)
    with pytest.raises(ParameterError, match="divisor"):
        b.divide(0, 100, 0)
    assert state(ctx.cache) == before
    assert close(ctx.decode(Batch.one([3], seq=a.id))[0], fresh(decoder, [*text, 3]))


def test_no_room_for_copies_changes_nothing(decoder: Decoder) -> None:
    ctx = Context(decoder, n_ctx=16, n_seq_max=2, **F32)
    a = ctx.cache.sequence()
    ctx.decode(Batch.one(tokens(12), seq=a.id))
    b = a.fork()
    before = state(ctx.cache)
    with pytest.raises(CacheFull, match="shared"):
        b.slide(keep=2, discard=2)
    assert state(ctx.cache) == before
    ctx.cache.check()


def test_a_failing_copy_changes_nothing(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    a = ctx.cache.sequence()
    ctx.decode(Batch.one(tokens(12), seq=a.id))
    b = a.fork()
    before = state(ctx.cache)

    def fail(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ctx.cache.first.rows, "copy", fail)
    with pytest.raises(KeyboardInterrupt):
        b.slide(keep=2)
    assert state(ctx.cache) == before
    assert ctx.cache.journal.current is None
    ctx.cache.check()


def test_checkpoints(ctx: Context, decoder: Decoder) -> None:
    text = tokens(10)
    s = ctx.cache.sequence()
    ctx.decode(Batch.one(text, seq=s.id))
    mark = s.checkpoint()
    for seed in (2, 3):
        ctx.decode(Batch.one(tokens(5, seed), seq=s.id))
        s.restore(mark)
        assert s.next == 10
    assert close(ctx.decode(Batch.one([9], seq=s.id))[0], fresh(decoder, [*text, 9]))
    other = s.fork()
    with pytest.raises(CannotRewind, match="not one of sequence 1"):
        other.restore(mark)
    s.truncate(7)
    ctx.decode(Batch.one(tokens(8, 4), seq=s.id))
    with pytest.raises(CannotRewind, match="from 7 on"):
        s.restore(mark)
    assert s.next == 15


def test_defrag_and_other_sequences_leave_checkpoints_alone(ctx: Context) -> None:
    ctx.decode(Batch.one(tokens(6), seq=1))
    s = ctx.cache.sequence(0)
    ctx.decode(Batch.one(tokens(6), seq=0))
    mark = s.checkpoint()
    ctx.cache.seq_rm(1)
    ctx.cache.defrag()
    ctx.decode(Batch.one(tokens(3), seq=0))
    s.restore(mark)
    assert s.cells.tolist() == [0, 1, 2, 3, 4, 5]


def test_without_rotation() -> None:
    cache = KVCache([LayerShape(1, 8, 8)], 16, n_seq_max=2)
    s = cache.sequence()
    assert isinstance(s, Sequence)
    for call in (lambda: s.shift(0, 4, 1), lambda: s.divide(0, 4, 2), lambda: s.slide()):
        with pytest.raises(CannotShift):
            call()
