"""Which checkpoints stay valid after a change, and texts of a single token, whose end is at 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aleator.cache import Cache, Checkpoint, PrefixConfig, RecurrentCache, RecurrentShape, Sequence
from aleator.cache.kv_cache import HybridCache, KVCache, LayerShape
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.window import WindowPool
from aleator.core.errors import CacheError, CannotRewind, ParameterError
from aleator.generate import Batch
from tests.cache.caches import F32, small

ONE = [LayerShape(1, 1, 1)]
STATES = [RecurrentShape(1, 1, 1)]
Change = Callable[[Any], object]


def feed(cache: Cache, n: int = 1, seq: int = 0) -> None:
    """What a decode of ``n`` tokens does, but for computing anything."""
    with cache.step(cache.plan(Batch.one([0] * n, None, seq))) as step:
        list(step)


def beside_windows(**options: Any) -> Cache:
    window = WindowPool(ONE, 16, window=2, n_seq_max=3, **F32)
    return HybridCache(ONE, 64, window=window, n_seq_max=3, **F32, **options)


def beside_states() -> Cache:
    states = RecurrentPool(STATES, n_seq_max=3, rollback=2)
    return HybridCache(ONE, 64, recurrent=states, n_seq_max=3, **F32)


KINDS: dict[str, Callable[[], Cache]] = {
    "cells": small,
    "windows": beside_windows,
    "beside states": beside_states,
    "states": lambda: RecurrentCache(STATES, n_seq_max=3),
}


def marked(cache: Cache, lengths: range) -> tuple[Sequence, list[Checkpoint]]:
    """Sequence 0 with checkpoints at some lengths, and one token more."""
    handle, marks = cache.sequence(0), []
    for length in range(1, lengths.stop):
        feed(cache)
        if length in lengths:
            marks.append(handle.checkpoint())
    feed(cache)
    return handle, marks


def valid(handle: Sequence, marks: list[Checkpoint]) -> list[int]:
    """The lengths that can be gone back to, the longest first."""
    lengths = []
    for mark in reversed(marks):
        try:
            handle.restore(mark)
        except CannotRewind:
            continue
        assert handle.next == mark.length
        lengths.append(mark.length)
    return lengths


@pytest.mark.parametrize(
    ("change", "longest"),
    [
        (lambda c: c.seq_add(0, 6, -1, -2), 4),
        (lambda c: c.seq_add(0, 6, -1, 2), 6),
        (lambda c: c.seq_add(0, 6, -1, 0), 8),
        (lambda c: c.seq_div(0, 4, -1, 2), 2),
        (lambda c: c.seq_div(0, 5, -1, 2), 2),
        (lambda c: c.seq_div(0, 4, -1, 1), 8),
        (lambda c: c.seq_rm(0, 3, 5), 3),
        (lambda c: c.seq_rm(-1, 3, 5), 3),
        (lambda c: (c.seq_cp(0, 1), c.seq_add(1, 3, 5, 1)), 3),  # cells that both own
        (lambda c: c.seq_rm(1, 3, 5), 8),
        (lambda c: c.seq_cp(2, 0, 7, -1), 7),
    ],
)
def test_checkpoints_before_a_change_stay(change: Change, longest: int) -> None:
    cache = small()
    handle, marks = marked(cache, range(1, 9))
    change(cache)
    assert valid(handle, marks) == list(range(longest, 0, -1))


REPLACED: dict[str, Change] = {
    "seq_rm": lambda c: c.seq_rm(0),
    "seq_rm of all": lambda c: c.seq_rm(-1),
    "seq_keep": lambda c: c.seq_keep(1),
    "clear": lambda c: c.clear(),
    "state_read": lambda c: c.state_read(small().state_write()),
    "session_read": lambda c: c.session_read(small().session_write([])),
    "state_read of one": lambda c: c.state_read(c.state_write(1), 0),
    "session_read of one": lambda c: c.session_read(c.session_write([], 1), 0),
    "load": lambda c: c.load_sequence(0, c.save_sequence(1, None, (), ""), ""),
}


@pytest.mark.parametrize("how", REPLACED)
def test_there_is_no_way_back_to_a_text_that_is_replaced(how: str) -> None:
    cache = small()
    feed(cache, 3, seq=1)
    handle, (mark,) = marked(cache, range(1, 2))
    assert mark.nbytes == 0
    REPLACED[how](cache)
    if handle.next == 0:
        feed(cache, 2)
    with pytest.raises(CannotRewind, match="from 0 on have changed"):
        handle.restore(mark)


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("kind", ["windows", "beside states"])
def test_checkpoints_up_to_a_restored_one_stay(kind: str, partial: bool) -> None:
    cache = KINDS[kind]()
    handle, marks = marked(cache, range(1, 4))
    feed(cache, 1)
    copy = cache.state_write(0, partial=True) if partial else cache.checkpoint(0)
    middle = handle.next
    marks.append(handle.checkpoint())
    feed(cache)
    marks.append(handle.checkpoint())
    feed(cache, 4)
    if partial:
        cache.state_read(copy, 0, partial=True)
    else:
        cache.restore(0, copy)
    assert handle.next == middle
    assert valid(handle, marks) == [5, 3, 2, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_of_one_token_is_kept_and_found_again(kind: str) -> None:
    cache, other = KINDS[kind](), KINDS[kind]()
    feed(cache)
    handle = cache.sequence(0)
    mark, saved = handle.checkpoint(), handle.save()
    assert saved is not None
    feed(cache, 3)
    handle.restore(mark)
    assert handle.next == 1
    assert other.sequence(2).load(saved).usable == 1
    assert cache.checkpoint(0) is None or kind != "cells"
    if kind == "cells":
        assert cache.checkpoint(1) is None
    else:
        with pytest.raises(ParameterError, match="sequence 1 is empty"):
            cache.checkpoint(1)


def test_a_cached_prefix_of_one_token() -> None:
    cache = KVCache(ONE, 16, n_seq_max=3, prefix=PrefixConfig(block=4, texts=3), **F32)
    feed(cache)
    assert cache.keep(0, [7])
    assert cache.reuse(1, [7, 8]) == 1
    assert cache.seq_pos_max(1) == 0
    match = cache.match([7, 9])
    with pytest.raises(CacheError, match="sequence 1 is not empty"):
        cache.reuse_prefix(1, match)
    assert not cache.keep(0, [])
    plain = small()
    feed(plain)
    assert not plain.keep(0, [7])


@pytest.mark.parametrize("kind", KINDS)
def test_the_way_back_to_an_empty_text(kind: str) -> None:
    cache = KINDS[kind]()
    handle = cache.sequence(0)
    mark = handle.checkpoint()
    assert (mark.length, mark.nbytes) == (0, 0)
    feed(cache, 3)
    handle.restore(mark)
    assert (handle.next, cache.used) == (0, 0)
    cache.check()
