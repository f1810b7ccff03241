"""The pools of the package fulfil what all pools have in common; see pool_contract.py."""

from __future__ import annotations

from typing import Any

import pytest

from aleator.cache import LayerShape, RecurrentCache, RecurrentShape
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.pools.hybrid import HybridPool
from aleator.cache.pools.pool import Pool
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.window import WindowPool
from aleator.core.errors import NoCells
from tests.cache.pool_contract import PoolContract

SHAPES, STATES = [LayerShape(1, 2, 2), LayerShape(1, 2, 2)], [RecurrentShape(2, 1, 1)]


def rotate(layer: int, keys: Any, deltas: Any) -> Any:
    return keys


class TestAttentionPool(PoolContract):
    def make(self) -> Pool:
        return AttentionPool(SHAPES, 24, n_seq_max=3, n_kept=2, rotate=rotate)


class TestWindowPool(PoolContract):
    def make(self) -> Pool:
        return WindowPool(SHAPES, 24, window=4, n_seq_max=3, n_kept=2, rotate=rotate)


class TestRing(PoolContract):
    def make(self) -> Pool:
        return WindowPool(SHAPES, 24, window=4, ring=True, n_seq_max=3, n_kept=2, rotate=rotate)


class TestRecurrentPool(PoolContract):
    def make(self) -> Pool:
        return RecurrentPool(STATES, n_seq_max=3, rollback=2)


class TestHybridPool(PoolContract):
    def make(self) -> Pool:
        first = AttentionPool(SHAPES, 24, n_seq_max=3, n_kept=2, rotate=rotate)
        window = WindowPool(SHAPES, 24, window=4, n_seq_max=3, n_kept=2, rotate=rotate)
        return HybridPool(first, window)


class TestHybridPoolWithStates(PoolContract):
    def make(self) -> Pool:
        first = AttentionPool(SHAPES, 24, n_seq_max=3, rotate=rotate)
        return HybridPool(first, None, RecurrentPool(STATES, n_seq_max=3, rollback=2))

    @pytest.mark.skip("states of prefixes are held by the cache around it")
    def test_a_copy_that_is_held_serves_another_sequence(self) -> None: ...


def test_what_is_of_cells_is_refused_of_states() -> None:
    cache = RecurrentCache(STATES)
    asks: list[Any] = [
        lambda: cache.find_slot(1),
        cache.map,
        cache.update,
        cache.defrag,
        cache.frame,
    ]
    for ask in asks:
        with pytest.raises(NoCells, match="no cells"):
            ask()
    for name in ("cells", "keys", "head", "n", "has_shift", "free"):
        with pytest.raises(NoCells, match="no cells"):
            getattr(cache, name)
