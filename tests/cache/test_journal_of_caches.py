"""Steps that fail, on every kind of cache: what is kept, evicted, relabelled or defragmented in them."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from aleator.cache import PrefixConfig
from aleator.core.errors import CacheBusy, CacheFull
from aleator.generate import Batch, Context
from aleator.models.decoder import Decoder
from tests.cache.decoders import decoder_of

TEXT = [3 + i * 7 % 60 for i in range(40)]
NAMES = ("llama", "gemma3", "mamba", "jamba")


@pytest.fixture(scope="module")
def decoders() -> dict[str, Decoder]:
    return {name: decoder_of(name) for name in NAMES}


def context(decoder: Decoder, n_ctx: int = 100, **options: Any) -> Context:
    prefix = PrefixConfig(block=4, texts=6, spacing=4)
    return Context(decoder, n_ctx=n_ctx, prefix=prefix, **options)


def texts(ctx: Context) -> list[Any]:
    """The cached prefixes, all that the index knows of them."""
    return [(t.seq, t.tokens.tolist(), list(t.used), t.digests) for t in ctx.cache.prefix or ()]


@pytest.mark.parametrize("name", NAMES)
def test_evictions_of_nested_steps_are_taken_back_with_their_step(
    name: str, decoders: dict[str, Decoder]
) -> None:
    ctx = context(decoders[name])
    for first in (1, 2, 3):
        ctx.decode(Batch.one([first, *TEXT[:10]]))
        ctx.cache.keep(0, [first, *TEXT[:10]])
        ctx.cache.seq_rm(0)
    before = texts(ctx)
    index: Any = ctx.cache.prefix

    def inner() -> None:
        with ctx.cache.step():
            while index.evict_block():
                pass
            raise KeyError

    def outer() -> None:
        with ctx.cache.step():
            assert index.evict_block()
            middle = texts(ctx)
            with pytest.raises(KeyError):
                inner()
            assert texts(ctx) == middle
            with ctx.cache.step():
                assert index.evict_block()
            raise ValueError("outer")

    with pytest.raises(ValueError, match="outer"):
        outer()
    assert texts(ctx) == before
    assert ctx.cache.match([2, *TEXT[:10], 9]).length == 11
    ctx.cache.check()


def test_defragmentation_in_a_nearly_full_cache_with_kept_texts(
    decoders: dict[str, Decoder],
) -> None:
    ctx = context(decoders["llama"], 32, n_seq_max=2)
    cache: Any = ctx.cache
    for i, seq in enumerate((0, 1, 0, 1, 0, 1)):  # alternating cells
        ctx.decode(Batch.one(TEXT[i * 4 : i * 4 + 4], None, seq))
    first = [*TEXT[:4], *TEXT[8:12], *TEXT[16:20]]
    assert cache.keep(0, first)
    cache.seq_rm(0)
    cache.seq_rm(1, 0, 4)  # holes
    cache.do_defrag = True

    def seen() -> Any:
        positions = cache.cells.positions
        return positions.tolist(), texts(ctx), cache.key_positions[positions >= 0].tolist()

    before = seen()
    with pytest.raises(CacheFull):
        ctx.decode(Batch.one(TEXT[:30]))
    assert seen() == before
    assert cache.do_defrag
    rows = ctx.decode(Batch.one(TEXT[:20]))  # evicts
    assert not cache.do_defrag
    assert np.array_equal(rows, context(decoders["llama"]).decode(Batch.one(TEXT[:20])))
    held = {cell for text in cache.prefix or () for cell in cache.cells.seq_cell_list(text.seq)}
    held |= {cell for seq in (0, 1) for cell in cache.cells.seq_cell_list(seq)}
    assert len(held) == cache.used
    cache.check()


@pytest.mark.parametrize("end", ["seq_rm", "truncate", "close"])
@pytest.mark.parametrize("name", ["mamba", "jamba"])
def test_states_relabelled_below_0_are_dropped(
    name: str, end: str, decoders: dict[str, Decoder]
) -> None:
    ctx = Context(decoders[name], n_ctx=64, n_rollback=7)
    handle = ctx.cache.sequence(0)
    ctx.decode(Batch.one(TEXT[:8]))
    ctx.cache.seq_add(0, 0, -1, -4)
    ctx.cache.check()
    if end == "seq_rm":
        ctx.cache.seq_rm(0)
    else:
        handle.truncate(0) if end == "truncate" else handle.close()
    assert ctx.cache.seq_pos_max(0) == -1
    rows = ctx.decode(Batch.one(TEXT[:5]))
    assert np.array_equal(rows, Context(decoders[name], n_ctx=64).decode(Batch.one(TEXT[:5])))
    ctx.cache.check()


def test_a_handle_that_a_failed_step_made_is_not_held(decoders: dict[str, Decoder]) -> None:
    ctx = context(decoders["llama"], n_seq_max=2)
    handle = ctx.cache.sequence(0)
    ctx.decode(Batch.one(TEXT[:8]))
    made: list[Any] = []

    def fail() -> None:
        with ctx.cache.step():
            made.append(handle.fork(4))
            handle.close()
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert len(handle) == 8
    assert len(ctx.cache.sequence(1)) == 0
    gc.collect()


def test_checkpoints_hold_after_a_step_that_failed(decoders: dict[str, Decoder]) -> None:
    ctx = context(decoders["llama"])
    handle = ctx.cache.sequence(0)
    ctx.decode(Batch.one(TEXT[:8]))
    mark = handle.checkpoint()

    def fail() -> None:
        with ctx.cache.step():
            handle.truncate(3)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert mark.valid_to == 8
    handle.restore(mark)


def test_planning_changes_nothing(decoders: dict[str, Decoder]) -> None:
    ctx = context(decoders["llama"], 32, n_seq_max=2)
    ctx.decode(Batch.one(TEXT[:24]))
    ctx.cache.keep(0, TEXT[:24])
    ctx.cache.seq_rm(0)
    before = texts(ctx), ctx.cache.cells.version, ctx.cache.cells.heads
    plan = ctx.cache.plan(Batch.one(TEXT[:20], None, 1), rule="sequence")
    assert (texts(ctx), ctx.cache.cells.version, ctx.cache.cells.heads) == before
    with ctx.cache.step(plan) as step:
        list(step)
    assert len(ctx.cache.cells.seq_cell_list(1)) == 20


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_two_threads_decode_in_turn_or_one_is_told(name: str, decoders: dict[str, Decoder]) -> None:
    alone = Context(decoders[name], n_ctx=64)
    wanted = [alone.decode(Batch.one([t])) for t in TEXT[:20]][-1]
    ctx = Context(decoders[name], n_ctx=128, n_seq_max=2)
    found: dict[int, Any] = {}

    def text(seq: int) -> None:
        for i, t in enumerate(TEXT[:20]):
            found[seq] = ctx.decode(Batch.one([t], i, seq))

    threads = [threading.Thread(target=text, args=(seq,)) for seq in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert np.array_equal(found[0], wanted)
    assert np.array_equal(found[1], wanted)
    assert ctx.cache.journal.current is None

    hasty = Context(decoders[name], n_ctx=64, lock_timeout=0.01)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with hasty.cache.step():
            inside.set()
            leave.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(10)
    with pytest.raises(CacheBusy, match="lock_timeout"):
        hasty.decode(Batch.one(TEXT[:2]))
    leave.set()
    holder.join(10)
    assert np.array_equal([hasty.decode(Batch.one([t])) for t in TEXT[:20]][-1], wanted)
