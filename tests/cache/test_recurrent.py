"""Recurrent states: llama.cpp's truth table where it is right, forks, rewinds, checkpoints, failures.

Scenarios T21 to T23 are those of llama.cpp's own tests and of its defects: a rewind after a short
micro-batch, a fork of a rewound sequence, a rewind of a sequence that shares its state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from make_models import SPECS, write_model

from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.prefix import PrefixConfig
from aleator.cache.recurrent import RecurrentCache, RecurrentShape
from aleator.core.errors import (
    CacheFull,
    CannotRewind,
    CannotShift,
    Corrupt,
    InvalidBatch,
    ParameterError,
)
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder

TEXT = [int(t) for t in np.random.default_rng(5).integers(0, 64, 60)]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    path = write_model(tmp_path_factory.mktemp("mamba") / "m.gguf", SPECS["mamba"])
    return build_decoder(open_weights(path))


def context(decoder: Decoder, rollback: int = 0, n_ubatch: int = 512) -> Any:
    return Context(decoder, n_seq_max=4, n_rollback=rollback, n_ubatch=n_ubatch)


def feed(ctx: Any, seq: int, tokens: list[int]) -> Any:
    """Logits after the last token."""
    logits: Any = ctx.decode(Batch.one(tokens, None, seq))[-1]
    ctx.cache.check()
    return logits


def fresh(decoder: Decoder, tokens: list[int]) -> Any:
    return feed(context(decoder), 0, tokens)


def same(a: Any, b: Any) -> bool:
    return bool(np.abs(a - b).max() < 1e-5 * (b.max() - b.min()))


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


@pytest.mark.parametrize("call", [
    lambda c: c.seq_rm(4), lambda c: c.seq_rm(-2), lambda c: c.seq_cp(0, 4), lambda c: c.seq_cp(-1, 0),
    lambda c: c.seq_keep(7), lambda c: c.seq_add(9, 0, -1, 1), lambda c: c.seq_pos_max(-1),
])  # fmt: skip
def test_sequence_ids_are_checked(
    nine_and_three: Any, call: Callable[[RecurrentCache], object]
) -> None:
    with pytest.raises(ParameterError, match="n_seq_max"):
        call(nine_and_three.cache)


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
    other = RecurrentCache([RecurrentShape(3, 2, 1)] * 2)
    with pytest.raises(ParameterError, match="another shape"):
        other.restore(0, kept)


def test_handles(decoder: Decoder) -> None:
    ctx = context(decoder, rollback=3)
    text = ctx.cache.sequence()
    feed(ctx, text.id, TEXT[:12])
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
    with pytest.raises(CannotShift):
        text.slide()
    text.close()
    fork.close()
    assert ctx.cache.used == 0


def test_kept_texts(decoder: Decoder) -> None:
    ctx = Context(decoder, n_seq_max=2, prefix=PrefixConfig(texts=2))
    cache: Any = ctx.cache
    feed(ctx, 0, TEXT[:20])
    assert cache.keep(0, TEXT[:20])
    assert not cache.keep(0, TEXT[:10])  # that state is not held
    cache.seq_rm(0)
    assert cache.reuse(0, TEXT[:30]) == 20
    assert same(feed(ctx, 0, TEXT[20:30]), fresh(decoder, TEXT[:30]))
    cache.seq_rm(0)
    match = cache.match([*TEXT[:15], 1, 2, 3])
    assert match.length == 0
    assert "after 0 tokens" in match.why_not[-1]
    assert cache.used == 0
    for i in range(3):  # the oldest goes
        feed(ctx, 1, TEXT[i : i + 8])
        cache.keep(1, TEXT[i : i + 8])
        cache.seq_rm(1)
    assert cache.match(TEXT[:30]).length == 0
    assert cache.match(TEXT[2:30]).length == 8
    cache.check()
    cache.clear()
    assert cache.match(TEXT[2:30]).length == 0
    cache.check()


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
        monkeypatch.setattr(ctx.cache.pool.rows.arrays, "grown", no_memory)
        with pytest.raises(CacheFull, match="end the outer step first"):
            ctx.decode(Batch.one(TEXT[10:11]))
        monkeypatch.undo()
        assert ctx.state_write(0) == before
    ctx.cache.check()


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_seq_max", 0),
        ("n_seq_max", 5000),
        ("n_seq_max", 2.5),
        ("rollback", -1),
        ("rollback", "a"),
    ],
)
def test_sizes_are_checked(name: str, value: Any) -> None:
    sizes: dict[str, Any] = {name: value}
    with pytest.raises(ParameterError, match=name):
        RecurrentCache([RecurrentShape(2, 1, 1)], **sizes)


def test_bytes_for() -> None:
    layers = [RecurrentShape(8, 3, 16), RecurrentShape(4, 2, 5)]
    cache = RecurrentCache(layers, n_seq_max=3, rollback=2)
    held = sum(t.nbytes for t in cache.conv + cache.ssm)
    assert RecurrentCache.bytes_for(layers, n_seq_max=3, rollback=2) == held
    with pytest.raises(ParameterError, match=r"n_seq_max=1\.0 is not an integer"):
        RecurrentCache.bytes_for(layers, n_seq_max=1.0)  # type: ignore[arg-type]


def hashed(text: list[int]) -> int:
    value = 0
    for token in text:
        value = (value * 31 + token) % 65521
    return value


class Model(RuleBasedStateMachine):
    """Random operations against texts: a row holds a number that tells the text it stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = RecurrentCache(
            [RecurrentShape(1, 1, 1)],
            n_seq_max=3,
            rollback=2,
            prefix=PrefixConfig(block=2, texts=3, spacing=4, bytes=80),  # ten states
        )
        self.texts: dict[int, list[int]] = {}
        self.held: dict[int, int] = {}  # how many states back from the newest
        self.counter = 0

    def _write(self, tokens: dict[int, list[int]], fail: bool) -> None:
        """What a decode does: the state of a text is a hash of it."""
        rows = [(s, t) for s, ts in tokens.items() for t in ts]
        at = {s: len(self.texts.get(s, [])) for s in tokens}
        positions = []
        for s, _ in rows:
            positions.append(at[s])
            at[s] += 1
        seqs = np.array([s for s, _ in rows], np.int32)
        owners = (np.uint64(1) << seqs.astype(np.uint64))[:, None]
        with self.cache.step() as step:
            where = np.array(positions, np.int32)
            batch = step.place(where, seqs, owners)
            for run in batch.runs:
                value = 0.0 if run.source < 0 else float(batch.ssm[0][run.source, 0, 0])
                stores = dict(run.stores)
                for i, token in enumerate(run.tokens):
                    value = (value * 31 + rows[token][1]) % 65521
                    if i in stores:
                        batch.ssm[0][stores[i], 0, 0] = value
            if fail:
                raise KeyboardInterrupt
        for s, ts in tokens.items():
            self.texts[s] = self.texts.get(s, []) + ts
            self.held[s] = min(3, self.held.get(s, 0) + len(ts))

    @rule(
        lengths=st.dictionaries(st.integers(0, 2), st.integers(1, 5), min_size=1),
        fail=st.booleans(),
    )
    def decode(self, lengths: dict[int, int], fail: bool) -> None:
        tokens = {}
        for seq, n in lengths.items():
            tokens[seq] = [self.counter % 97 + 1 + i for i in range(n)]
            self.counter += n
        if fail:
            with pytest.raises(KeyboardInterrupt):
                self._write(tokens, fail)
        else:
            self._write(tokens, fail)

    @rule(seq=st.integers(0, 2), back=st.integers(0, 6))
    def rewind(self, seq: int, back: int) -> None:
        text = self.texts.get(seq, [])
        p0 = max(0, len(text) - back)
        if p0 > 0 and back >= self.held.get(seq, 0) and back > 0:
            with pytest.raises(CannotRewind) as caught:
                self.cache.seq_rm(seq, p0, -1)
            assert caught.value.oldest_legal == len(text) - self.held[seq] + 1
            return
        self.cache.seq_rm(seq, p0, -1)
        if text:
            self.texts[seq] = text[:p0]
            self.held[seq] = max(0, self.held[seq] - back) if p0 else 0

    @rule(src=st.integers(0, 2), dst=st.integers(0, 2))
    def copy(self, src: int, dst: int) -> None:
        self.cache.seq_cp(src, dst)
        self.texts[dst] = list(self.texts.get(src, []))
        self.held[dst] = self.held.get(src, 0)

    @rule(src=st.integers(0, 2), dst=st.integers(0, 2))
    def restore(self, src: int, dst: int) -> None:
        if self.texts.get(src):
            self.cache.restore(dst, self.cache.checkpoint(src))
            self.texts[dst], self.held[dst] = list(self.texts[src]), 1

    @rule(seq=st.integers(0, 2), length=st.integers(1, 12))
    def keep(self, seq: int, length: int) -> None:
        self.cache.keep(seq, self.texts.get(seq, [])[:length])

    @rule(src=st.integers(0, 2), dst=st.integers(0, 2), more=st.lists(st.integers(1, 97)))
    def reuse(self, src: int, dst: int, more: list[int]) -> None:
        text = [*self.texts.get(src, []), *more]
        if text and src != dst:
            self.cache.seq_rm(dst)
            n = self.cache.reuse(dst, text)
            self.texts[dst], self.held[dst] = text[:n], min(n, 1)

    @invariant()
    def keeps_states_of_beginnings(self) -> None:
        kept: Any = self.cache.kept
        texts = [(text.seq, text.tokens.tolist()) for text in kept.index]
        texts += [(kept.number(seq), text) for seq, text in self.texts.items()]
        rows = set()
        for number, tokens in texts:
            for row, position in self.cache.states.get(number, ()):
                assert float(self.cache.ssm[0][row, 0, 0]) == hashed(tokens[: position + 1])
                rows.add(row)
        assert len(rows) == kept.held() <= kept.limit == 5
        assert {s for s in self.cache.states if s >= 3} <= {number for number, _ in texts}

    @invariant()
    def agrees(self) -> None:
        self.cache.check()
        for seq in range(3):
            text = self.texts.get(seq, [])
            assert self.cache.seq_pos_max(seq) == len(text) - 1
            if text:
                row = self.cache.states[seq][-1][0]
                assert float(self.cache.ssm[0][row, 0, 0]) == hashed(text)
                assert self.cache.oldest_rewind(seq) == len(text) - self.held[seq] + 1


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_types_of_paths(tmp_path: Path) -> None:
    """Weights on the CPU in 16 bits take the torch layers, with the same states."""
    pytest.importorskip("torch")
    weights = open_weights(write_model(tmp_path / "m.gguf", SPECS["mamba"]))
    half = Context(build_decoder(weights, dtype="bfloat16"))
    rows = half.decode(Batch.one(TEXT[:9], logits=True))
    full = Context(build_decoder(weights)).decode(Batch.one(TEXT[:9], logits=True))
    assert np.abs(rows - full).max() < 0.05 * (full.max() - full.min())


def test_the_log_says_what_states_take(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "aleator.cache"):
        RecurrentCache([RecurrentShape(1024, 3, 16)], n_seq_max=4, rollback=1)
    mib = 2 * 4 * 2 * 1024 * 19 * 4 / 2**20
    assert caplog.messages == [f"recurrent states: 4 sequences, 1 layers, cpu: {mib:.2f} MiB"]


def test_positions_that_division_makes_equal_are_held_once() -> None:
    pool = RecurrentPool([RecurrentShape(1, 1, 1)], rollback=3)
    for position in (4, 5, 6, 7):
        at = np.array([position], np.int32)
        pool.place(at, np.zeros(1, np.int32), np.ones((1, 1), np.uint64))
    pool.seq_div(0, 0, 2**31 - 1, 2)
    assert [position for _, position in pool.states.history(0)] == [3]
    pool.check()
