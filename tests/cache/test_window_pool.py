"""Window pools without a model: their sizes, which cells they free, and what tokens see in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.cache.journal import Transaction
from aleator.cache.kv_cache import HybridCache, LayerShape, WindowCache
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.recurrent_rows import RecurrentShape
from aleator.cache.pools.window import WindowPool, window_capacity
from aleator.core.errors import CacheFull, CannotRewind, CannotShift, ParameterError
from aleator.generate import Batch
from tests.cache.caches import fill, small


def test_capacity() -> None:
    assert window_capacity(8, 1024, 4, 16) == 256
    assert window_capacity(512, 4096, 1, 512) == 1024
    assert window_capacity(512, 600, 1, 512) == 600
    assert window_capacity(512, 1024, 1, 512) == 1024


def test_windows_that_do_not_fit() -> None:
    pytest.importorskip("torch")
    pool = WindowPool([LayerShape(1, 4, 4)], 12, window=8, n_seq_max=2)
    cache = HybridCache([], 64, window=pool, n_seq_max=2)
    _place(cache, [(i, 0) for i in range(8)])
    with pytest.raises(CacheFull, match="12 cells"):
        _place(cache, [(i, 1) for i in range(8)])
    assert (cache.seq_pos_max(1), pool.seq_pos_max(1), pool.used) == (-1, -1, 8)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"window": 0}, "window"),
        ({"window": 4, "sinks": -1}, "sinks"),
    ],
)
def test_sizes_are_checked(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError, match=name):
        WindowPool([LayerShape(1, 4, 4)], 16, **options)


def test_a_full_share_forgets_what_its_windows_have_left() -> None:
    pool = WindowPool([LayerShape(1, 8, 8)], 16, window=4, n_seq_max=2, policy="streams")
    for seq, n in ((1, 3), (0, 8), (0, 2)):
        at = np.arange(n, dtype=np.int32) + pool.seq_pos_max(seq) + 1
        pool.place(at, np.full(n, seq, np.int32), np.full((n, 1), 1 << seq, np.uint64))
        pool.check()
    assert (pool.seq_pos_min(0), pool.seq_pos_max(0)) == (2, 9)
    assert (pool.seq_pos_min(1), pool.seq_pos_max(1)) == (0, 2)


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("seqs", [(0, 63), (63, 64), (64, 65), (128, 129)])
def test_shares_of_sequences_of_any_number(seqs: tuple[int, int], ring: bool) -> None:
    """Each of two sequences finds cells in its own share, and gives up there what has left its window."""
    options: Any = {"window": 2, "n_seq_max": 130, "policy": "streams", "ring": ring}
    pool = WindowPool([LayerShape(1, 1, 1)], 130 * 4, **options)
    for step in range(5):
        positions = np.repeat(np.arange(2 * step, 2 * step + 2, dtype=np.int32), 2)
        given = np.array(seqs * 2, np.int32)
        owners = np.zeros((4, 3), np.uint64)
        owners[range(4), given // 64] = np.left_shift(np.uint64(1), (given % 64).astype(np.uint64))
        cells = pool.place(positions, given, owners).cell_ids
        assert (cells // 4).tolist() == given.tolist()
        pool.check()
    for seq in seqs:
        held = pool.cells.positions[pool.cells.seq_cell_list(seq)]
        assert sorted(held.tolist()) == [6, 7, 8, 9]


def _place(cache: HybridCache, tokens: list[tuple[int, int]]) -> Any:
    """Tokens (position, sequence) as a decode would place them; the last's positions of cells, and mask."""
    batch = Batch()
    for pos, seq in tokens:
        batch.add(0, pos, [seq])
    tensors: Any = None
    with cache.step(cache.plan(batch, n_ubatch=4)) as step:
        for part in step:
            if part.window is not None:
                tensors = part.window.tensors()
                assert cache.window is not None
                positions = cache.window.cells.positions[tensors._index]
                tensors = positions, tensors.mask(0)
    return tensors


def test_a_plan_of_windows_alone() -> None:
    """It is carried out where cells must be freed, and a token sees its window only."""
    cache = WindowCache([LayerShape(1, 4, 4)], 8, window=3)
    for start in range(0, 20, 5):
        batch = Batch()
        for i in range(5):
            batch.add(0, start + i, [0], logits=i % 2 == 0)
        with cache.step(cache.plan(batch, n_ubatch=4)) as step:
            for part in step:
                seen = (part.seen.counts - part.first).tolist()
                assert seen == [min(3, p + 1) for p in part.positions.tolist()]
                assert part.outputs.tolist() == ([0, 2] if len(seen) == 4 else [0])
        cache.check()
    assert (cache.seq_pos_min(0), cache.seq_pos_max(0), cache.used) == (12, 19, 8)


def test_chunks() -> None:
    """A token sees its own chunk; what another would see again cannot be gone when it is rewound to."""
    pytest.importorskip("torch")
    pool = WindowPool([LayerShape(1, 4, 4)], 8, window=4, chunked=True)
    cache = HybridCache([LayerShape(1, 4, 4)], 64, window=pool)
    for start in range(0, 40, 2):
        seen, mask = _place(cache, [(start + i, 0) for i in range(2)])
        for row, pos in enumerate(range(start, start + 2)):
            # Without a mask every token sees all that is listed up to itself.
            visible = seen <= pos if mask is None else (mask[row] == 0).numpy()
            assert sorted(seen[visible].tolist()) == list(range(pos // 4 * 4, pos + 1))
    assert (pool.seq_pos_min(0), pool.seq_pos_max(0)) == (32, 39)
    assert [pool.leaves_at(position) for position in (0, 3, 4)] == [4, 4, 8]
    with pytest.raises(CannotRewind, match="position is 32"):
        cache.seq_rm(0, 31, -1)
    cache.seq_rm(0, 34, -1)
    assert pool.seq_pos_max(0) == 33


def test_a_ring_of_chunks() -> None:
    """llama.cpp's rule: a chunk's cells are free as soon as the next token is of the next one."""
    pool = WindowPool([LayerShape(1, 4, 4)], 6, window=4, chunked=True, ring=True)
    owners = np.ones((1, 1), np.uint64)
    cell_ids = [int(pool.find(np.array([p], np.int32), owners)[0]) for p in range(10)]
    assert cell_ids[:6] == [0, 1, 2, 3, 4, 5]
    assert pool.seq_pos_min(0) == 4
    pool.check()


def test_sinks() -> None:
    pytest.importorskip("torch")
    pool = WindowPool([LayerShape(1, 4, 4)], 12, window=4, sinks=2)
    cache = HybridCache([], 64, window=pool)
    for start in range(0, 40, 4):
        seen, mask = _place(cache, [(start + i, 0) for i in range(4)])
    held_positions = sorted(int(p) for p in pool.cells.positions if p >= 0)
    assert held_positions == [0, 1, *range(30, 40)]
    for row, pos in enumerate(range(36, 40)):
        visible = seen[(mask[row] == 0).numpy()]
        assert sorted(visible) == [0, 1, *range(pos - 3, pos + 1)]
    with pytest.raises(CannotRewind) as caught:
        cache.seq_rm(0, 32, -1)
    assert caught.value.oldest_legal == 33


def test_recurrent_layers_beside_attention() -> None:
    """A sequence lives in both pools; what one refuses the other does not do."""
    states = RecurrentPool([RecurrentShape(2, 1, 1)], n_seq_max=3, rollback=2)
    cache = HybridCache(
        [LayerShape(1, 4, 4)],
        32,
        recurrent=states,
        n_seq_max=3,
        rotate=lambda layer, keys, deltas: keys,
    )
    _place(cache, [(i, 0) for i in range(10)])
    assert (cache.seq_pos_max(0), states.seq_pos_max(0)) == (9, 9)
    with pytest.raises(CannotRewind) as caught:
        cache.seq_rm(0, 5, -1)
    assert caught.value.oldest_legal == 8
    assert cache.oldest_rewind(0) == 8
    with pytest.raises(CannotRewind) as caught:
        cache.seq_cp(0, 1, 0, 4)
    assert caught.value.oldest_legal == 8
    with pytest.raises(ParameterError, match="part of sequence"):
        cache.seq_cp(0, 1, 4, 10)
    assert (cache.used, cache.seq_pos_max(1), states.seq_pos_max(1)) == (10, -1, -1)
    cache.seq_rm(0, 8, -1)
    cache.seq_cp(0, 1)
    assert [pool.seq_pos_max(1) for pool in (cache, states)] == [7, 7]
    with pytest.raises(ParameterError, match="not empty"):
        cache.seq_cp(0, 1)
    mark = cache.checkpoint(1)
    _place(cache, [(8 + i, 1) for i in range(5)])
    cache.restore(1, mark)
    assert [pool.seq_pos_max(1) for pool in (cache, states)] == [7, 7]
    assert cache.seq_pos_min(0) == 7
    cache.seq_rm(1)
    cache.seq_cp(0, 1)
    before = ranges = [pool.seq_pos_max(s) for pool in (cache, states) for s in (0, 1)]
    with pytest.raises((CannotShift, CannotRewind)):  # their shared state has one label
        cache.sequence(0).shift(0, 8, 3)
    ranges = [pool.seq_pos_max(s) for pool in (cache, states) for s in (0, 1)]
    assert ranges == before
    cache.seq_rm(0, 2, 4)  # the state keeps what it has read
    assert cache.cells.seq_cells(0) == 6
    cache.clear()
    assert (cache.used, len(states.states.book())) == (0, 0)
    states.check()


@pytest.mark.parametrize(
    ("window", "sinks", "name"),
    [
        (0, 0, "window"),
        (2**31, 0, "window"),
        (2.0, 0, "window"),
        (4, -1, "sinks"),
        (4, 2**31, "sinks"),
    ],
)
def test_bounds_of_windows_and_sinks(window: Any, sinks: Any, name: str) -> None:
    with pytest.raises(ParameterError, match=name):
        WindowPool([LayerShape(1, 8, 8)], 256, window=window, sinks=sinks)
    assert WindowPool([LayerShape(1, 8, 8)], 256, window=2**31 - 1).seen_from(5) == 0
    assert WindowPool([LayerShape(1, 8, 8)], 256, window=1, sinks=2**31 - 1).seen_from(5) == 5


def test_nothing_is_freed_where_what_is_needed_fits_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = WindowPool([LayerShape(1, 4, 4)], 12, window=4, n_seq_max=2, n_kept=2)
    owners = np.ones((5, 1), np.uint64)
    pool.cells.put(np.arange(5), np.arange(5, dtype=np.int32), owners)
    asked: list[int] = []
    monkeypatch.setattr(pool, "_forget_left", lambda target, *_: asked.append(target))
    pool.make_fit(7)
    assert asked == []
    with pytest.raises(CacheFull):
        pool.make_fit(8)
    assert asked[-1] == 4


def test_what_was_stored_is_kept_aside_once_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = small(16)
    fill(cache, "0000")
    pool: Any = cache.pool
    kept: list[int] = []
    monkeypatch.setattr(pool.rows, "preserve", lambda _, cells: kept.extend(cells.tolist()))
    for _ in range(2):
        kept.clear()
        with Transaction(cache.journal):
            pool.cells.seq_rm(0, 1, 3)
            pool.keep_rows(np.array([1, 2, 9]))
            pool.cells.seq_rm(0, 0, 1)
            pool.keep_rows(np.array([0, 1, 2]))
            for cell in (0, 1, 2):
                fill_one = np.array([cell]), np.array([cell], np.int32)
                pool.cells.put(*fill_one, np.ones((1, pool.cells.words), np.uint64))
        assert sorted(kept) == [0, 1, 2]
