"""Recurrent states: llama.cpp's truth table where it is right, forks, rewinds, checkpoints, failures.

Scenarios T21 to T23 are those of llama.cpp's own tests and of its defects: a rewind after a short
micro-batch, a fork of a rewound sequence, a rewind of a sequence that shares its state.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from make_models import SPECS, write_model

from aleator.cache.recurrent import RecurrentCache, RecurrentShape
from aleator.core.errors import CannotRewind, CannotShift, Corrupt, InvalidBatch, ParameterError
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder
from tests.cache.caches import feed, same

TEXT = [int(t) for t in np.random.default_rng(5).integers(0, 64, 60)]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    path = write_model(tmp_path_factory.mktemp("mamba") / "m.gguf", SPECS["mamba"])
    return build_decoder(open_weights(path))


def context(decoder: Decoder, rollback: int = 0, n_ubatch: int = 512) -> Any:
    return Context(decoder, n_seq_max=4, n_rollback=rollback, n_ubatch=n_ubatch)


def fresh(decoder: Decoder, tokens: list[int]) -> Any:
    return feed(context(decoder), 0, tokens)


def ranges(cache: RecurrentCache) -> list[tuple[int, int]]:
    return [(cache.seq_pos_min(s), cache.seq_pos_max(s)) for s in range(4)]


@pytest.fixture
def nine_and_three(decoder: Decoder) -> Any:
    """Sequence 0 at position 9, sequence 1 at 3."""
    ctx = context(decoder)
    feed(ctx, 0, TEXT[:10])
    feed(ctx, 1, TEXT[10:14])
    return ctx


@pytest.mark.parametrize("removed", [(0, 5), (3, 6), (10, -1), (5, 5), (9, 3)])
def test_ranges_without_the_newest_position_change_nothing(
    nine_and_three: Any, removed: tuple[int, int]
) -> None:
    cache = nine_and_three.cache
    assert cache.seq_rm(0, *removed) is True
    assert ranges(cache)[:2] == [(9, 9), (3, 3)]


@pytest.mark.parametrize("p0", [1, 5, 9])
def test_rewinds_without_states_are_refused(nine_and_three: Any, p0: int) -> None:
    cache = nine_and_three.cache
    with pytest.raises(CannotRewind) as caught:
        cache.seq_rm(0, p0, -1)
    assert caught.value.oldest_legal == 10
    assert ranges(cache)[:2] == [(9, 9), (3, 3)]


def test_removing_everything(nine_and_three: Any) -> None:
    cache = nine_and_three.cache
    assert cache.seq_rm(0)
    assert ranges(cache)[:2] == [(-1, -1), (3, 3)]
    assert cache.seq_rm(-1)  # llama.cpp says no
    assert ranges(cache) == [(-1, -1)] * 4
    cache.check()


def test_removal_for_everybody_is_all_or_none(nine_and_three: Any) -> None:
    cache = nine_and_three.cache
    with pytest.raises(CannotRewind):
        cache.seq_rm(-1, 2, -1)
    assert ranges(cache)[:2] == [(9, 9), (3, 3)]


def test_sequences_that_share_a_state_move_together(decoder: Decoder) -> None:
    ctx = context(decoder)
    cache = ctx.cache
    feed(ctx, 0, TEXT[:10])
    cache.seq_cp(0, 2)
    cache.seq_cp(0, 3, 0, 10)
    cache.seq_add(0, 0, -1, -4)
    assert ranges(cache) == [(5, 5), (-1, -1), (5, 5), (5, 5)]
    logits = ctx.decode(Batch.one([TEXT[10]], 6, 2))[0]
    assert ranges(cache) == [(5, 5), (-1, -1), (6, 6), (5, 5)]
    assert same(logits, fresh(decoder, TEXT[:11]))
    assert same(feed(ctx, 3, [TEXT[11]]), fresh(decoder, [*TEXT[:10], TEXT[11]]))
    cache.seq_keep(2)
    assert ranges(cache) == [(-1, -1), (-1, -1), (6, 6), (-1, -1)]
    cache.check()


def test_copies_replace_and_are_whole(nine_and_three: Any) -> None:
    cache = nine_and_three.cache
    with pytest.raises(ParameterError, match="part of sequence 0"):
        cache.seq_cp(0, 3, 2, 5)
    with pytest.raises(ParameterError, match=r"positions \[1, .* are a part of sequence 0"):
        cache.seq_cp(0, 3, 1)
    with pytest.raises(ParameterError, match="part of sequence 0"):
        cache.seq_cp(0, 3, 0, 9)
    assert ranges(cache)[3] == (-1, -1)
    cache.seq_cp(0, 1)
    assert ranges(cache)[1] == (9, 9)
    cache.seq_cp(2, 1)  # an empty sequence
    assert ranges(cache)[1] == (-1, -1)
    cache.check()


def test_positions_stay_in_range(nine_and_three: Any) -> None:
    cache = nine_and_three.cache
    for delta in (-10, 2**31 - 1):
        with pytest.raises(ParameterError, match="position 9"):
            cache.seq_add(0, 0, -1, delta)
    cache.seq_add(0, 0, 9, -3)  # the newest position is not in the range
    assert ranges(cache)[0] == (9, 9)
    cache.seq_div(0, 0, -1, 2)
    assert ranges(cache)[0] == (4, 4)
    with pytest.raises(ParameterError):
        cache.seq_div(0, 0, -1, 0)


# Rewinds (T22, T23)


@pytest.mark.parametrize("parts", [[12], [11, 1], [1] * 12, [3, 9], [5, 2, 5], [10, 2]])
@pytest.mark.parametrize("back", [1, 3, 4])
def test_rewinds_are_exact_whatever_the_split(
    decoder: Decoder, parts: list[int], back: int
) -> None:
    ctx, at = context(decoder, rollback=4), 0
    for n in parts:
        feed(ctx, 0, TEXT[at : at + n])
        at += n
    assert ctx.cache.oldest_rewind(0) == 8
    assert ctx.cache.seq_rm(0, 12 - back, -1)
    assert ctx.cache.seq_pos_max(0) == 11 - back
    expected = fresh(decoder, [*TEXT[: 12 - back], TEXT[30]])
    assert same(feed(ctx, 0, [TEXT[30]]), expected)


def test_rewinds_past_the_ring_are_refused(decoder: Decoder) -> None:
    ctx = context(decoder, rollback=4, n_ubatch=5)
    feed(ctx, 0, TEXT[:12])
    for p0 in (7, 3, 1):
        with pytest.raises(CannotRewind) as caught:
            ctx.cache.seq_rm(0, p0, -1)
        assert caught.value.oldest_legal == 8
    assert ctx.cache.seq_rm(0, 9, -1)
    with pytest.raises(CannotRewind):  # three and three are more than four
        ctx.cache.seq_rm(0, 6, -1)
    assert ctx.cache.seq_rm(0, 8, -1)  # three and one are not
    assert same(feed(ctx, 0, [TEXT[40]]), fresh(decoder, [*TEXT[:8], TEXT[40]]))
    assert ctx.cache.seq_rm(0, 0, -1)
    assert same(feed(ctx, 0, TEXT[:3]), fresh(decoder, TEXT[:3]))


def test_fork_of_a_rewound_sequence(decoder: Decoder) -> None:
    ctx = context(decoder, rollback=4)
    feed(ctx, 0, TEXT[:12])
    ctx.cache.seq_rm(0, 9, -1)
    ctx.cache.seq_cp(0, 1)
    expected = fresh(decoder, [*TEXT[:9], TEXT[50]])
    assert same(feed(ctx, 0, [TEXT[50]]), expected)
    assert same(feed(ctx, 1, [TEXT[50]]), expected)
    other = context(decoder, rollback=4)  # llama.cpp cannot save this
    other.cache.state_read(ctx.cache.state_write())
    assert ranges(other.cache)[:2] == [(9, 9), (9, 9)]
    ctx.cache.seq_rm(1, 8, -1)  # the fork has the older states too
    assert same(feed(ctx, 1, [TEXT[51]]), fresh(decoder, [*TEXT[:8], TEXT[51]]))


def test_rewind_of_a_sequence_that_shares_its_state(decoder: Decoder) -> None:
    ctx = context(decoder, rollback=4)
    feed(ctx, 0, TEXT[:12])
    ctx.cache.seq_cp(0, 1)
    ctx.cache.seq_rm(0, 9, -1)
    assert ranges(ctx.cache)[:2] == [(8, 8), (11, 11)]
    assert same(feed(ctx, 1, [TEXT[12]]), fresh(decoder, TEXT[:13]))
    assert same(feed(ctx, 0, [TEXT[20]]), fresh(decoder, [*TEXT[:9], TEXT[20]]))


def test_shifts_keep_only_states_whose_positions_fit(decoder: Decoder) -> None:
    ctx = context(decoder, rollback=4)
    feed(ctx, 0, TEXT[:12])
    ctx.cache.seq_add(0, 10, -1, -5)
    assert ctx.cache.seq_pos_max(0) == 6
    assert ctx.cache.oldest_rewind(0) == 6  # after positions 5 and 6
    ctx.cache.seq_rm(0, 6, -1)
    assert same(feed(ctx, 0, [TEXT[20]]), fresh(decoder, [*TEXT[:11], TEXT[20]]))


def test_checkpoints(decoder: Decoder) -> None:
    ctx = context(decoder, rollback=2)
    feed(ctx, 0, TEXT[:10])
    kept = ctx.cache.checkpoint(0)
    assert kept.position == 9
    assert kept.nbytes * ctx.cache.recurrent.states.n_rows == sum(
        t.nbytes for t in ctx.cache.conv + ctx.cache.ssm
    )
    feed(ctx, 0, TEXT[10:40])
    ctx.cache.restore(1, kept)
    ctx.cache.restore(0, kept)
    for seq in (0, 1):
        assert same(feed(ctx, seq, [TEXT[10]]), fresh(decoder, TEXT[:11]))
    with pytest.raises(ParameterError, match="empty"):
        ctx.cache.checkpoint(3)
    shape = RecurrentShape(3, 2, 1)
    for n in (1, 2, 3):
        with pytest.raises(ParameterError, match="another shape"):
            RecurrentCache([shape] * n).restore(0, kept)


def test_handles(decoder: Decoder) -> None:
    ctx = context(decoder, rollback=3)
    text = ctx.cache.sequence()
    feed(ctx, text.id, TEXT[:12])
    assert repr(text) == f"RecurrentSequence({text.id}, next position 12)"
    assert (len(text), text.pos_min, text.pos_max, text.next) == (12, 11, 11, 12)
    assert text.positions.tolist() == [8, 9, 10, 11]
    assert len(set(text.cells.tolist())) == 4
    assert (text.oldest_rewind(), text.can_truncate(8), text.can_truncate(9)) == (9, False, True)
    mark = text.checkpoint()
    fork = text.fork(10)
    assert (fork.next, text.next) == (10, 12)
    with pytest.raises(CannotRewind):
        text.fork(3)
    assert ctx.cache.used == 2
    fork.shift(0, 99, 20)
    assert (fork.next, text.next) == (30, 12)
    fork.divide(0, 99, 3)
    assert fork.next == 10
    assert same(feed(ctx, fork.id, [TEXT[20]]), fresh(decoder, [*TEXT[:10], TEXT[20]]))
    feed(ctx, text.id, TEXT[12:30])
    with pytest.raises(CannotRewind):
        text.truncate(12)
    text.restore(mark)
    assert same(feed(ctx, text.id, [TEXT[12]]), fresh(decoder, TEXT[:13]))
    with pytest.raises(CannotRewind, match="middle"):
        text.drop(3, 6)
    text.drop(12, 99)
    assert text.next == 12
    text.drop(3, 3)
    feed(ctx, text.id, TEXT[12:14])
    text.drop(12, 14)
    assert text.next == 12
    with pytest.raises(CannotShift):
        text.slide()
    text.close()
    fork.close()
    assert ctx.cache.used == 0


# Batches


def test_coupled_tokens(decoder: Decoder) -> None:
    ctx = context(decoder, rollback=1)
    batch = Batch()
    for i in range(4):
        batch.add(TEXT[i], i, [0, 1, 2], logits=True)
    batch.add(TEXT[4], 4, [0, 1], logits=True)
    batch.add(TEXT[5], 4, [2], logits=True)
    batch.add(TEXT[6], 5, [1], logits=True)
    batch.add(TEXT[7], 5, [2], logits=True)
    rows = ctx.decode(batch)
    ctx.cache.check()
    expected = {0: TEXT[:5], 1: [*TEXT[:5], TEXT[6]], 2: [*TEXT[:4], TEXT[5], TEXT[7]]}
    assert same(rows[4], fresh(decoder, expected[0]))
    assert same(rows[6], fresh(decoder, expected[1]))
    assert same(rows[7], fresh(decoder, expected[2]))
    for seq, text in expected.items():
        assert same(feed(ctx, seq, [TEXT[9]]), fresh(decoder, [*text, TEXT[9]]))
    batch = Batch()
    batch.add(1, None, [0, 1])
    with pytest.raises(InvalidBatch):  # their states differ
        ctx.decode(batch)


def test_checkpoints_of_another_cache_are_refused(decoder: Decoder) -> None:
    ctx, other = context(decoder), context(decoder)
    feed(ctx, 0, TEXT[:5])
    feed(other, 0, TEXT[:9])
    with other.cache.sequence(0) as theirs, ctx.cache.sequence(0) as ours:
        mark = theirs.checkpoint()
        with pytest.raises(CannotRewind, match="not one of sequence 0 in this cache"):
            ours.restore(mark)
        assert ours.next == 5
        theirs.restore(mark)


def test_forks_of_a_beginning_beside_attention(make_decoder: Any) -> None:
    options: Any = {"n_ctx": 64, "n_seq_max": 2, "type_k": "f32", "type_v": "f32"}
    ctx: Any = Context(make_decoder("jamba"), n_rollback=3, **options)
    feed(ctx, 0, TEXT[:9])
    with ctx.cache.sequence(0) as base:
        for upto in (7, 0, 20):
            with base.fork(upto) as other:
                assert other.next == min(upto, 9)
                ctx.cache.check()
                fresh = Context(make_decoder("jamba"), **options)
                again = feed(fresh, 0, [*TEXT[: min(upto, 9)], 5, 6])
                assert same(feed(ctx, other.id, [5, 6]), again)
        before = ctx.state_write(0)
        with pytest.raises(CannotRewind) as caught:
            base.fork(5)
        assert caught.value.oldest_legal == base.oldest_rewind() == 6
        assert ctx.state_write(0) == before
        assert ctx.cache.seq_pos_max(1) == -1
        with pytest.raises(ParameterError) as refused:
            ctx.cache.seq_cp(0, 1, 2, 5)
        assert refused.value.parameter == "p0"


def test_states_of_any_position_are_read_and_no_others() -> None:
    cache, other = (RecurrentCache([RecurrentShape(1, 1, 1)]) for _ in range(2))
    for position in (62, 2**31 - 2):
        cache.clear()
        at = np.array([position], np.int32)
        cache.journal.run(cache.pool.place, at, np.zeros(1, np.int32), np.ones((1, 1), np.uint64))
        blob = cache.state_write(0)
        other.state_read(blob, 0)
        assert other.seq_pos_max(0) == position
    last = struct.pack("<i", 2**31 - 2)
    assert blob.count(last) == 1
    with pytest.raises(Corrupt, match="state 0 is at position 2147483647"):
        other.state_read(blob.replace(last, struct.pack("<i", 2**31 - 1)), 0)


def test_a_damaged_position_is_named_as_what_it_is(make_decoder: Any) -> None:
    ctx: Any = Context(make_decoder("jamba"), n_ctx=64)
    feed(ctx, 0, TEXT[:9])
    blob = bytearray(ctx.state_write(0))
    pool = ctx.cache.recurrent
    at = len(blob) - (16 + sum(12 + t[0].nbytes for t in pool.conv + pool.ssm))
    assert blob[at] == 8
    blob[at] = 7
    with pytest.raises(Corrupt, match="recurrent layers lack") as caught:
        ctx.state_read(bytes(blob), 0)
    assert "window" not in str(caught.value)
    assert "offset" not in str(caught.value)
    assert caught.value.offset == -1
