"""Ranges of what caches and their verbs take: the message of what is just too little names both ends."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from aleator.cache.cache import Cache
from aleator.cache.kv_cache import KVCache, LayerShape
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.recurrent_rows import RecurrentShape
from aleator.cache.pools.window import WindowPool
from aleator.cache.prefix_index import PrefixConfig
from aleator.core.errors import ParameterError
from tests.cache.caches import F32, small

LAYERS = [LayerShape(1, 4, 4)]
STATES = [RecurrentShape(2, 1, 2)]
CONFIGS = {
    "block": (1, "4096]"),
    "texts": (1, "1024]"),
    "spacing": (1, "1048576]"),
    "bytes": (0, "1099511627776]"),
}
POOLS: dict[str, tuple[Callable[[int], object], int, str]] = {
    "window": (lambda n: WindowPool(LAYERS, 8, window=n, n_seq_max=1, **F32), 1, "2^31)"),
    "sinks": (lambda n: WindowPool(LAYERS, 8, window=4, sinks=n, n_seq_max=1, **F32), 0, "2^31)"),
    "n_ctx": (lambda n: KVCache(LAYERS, n, n_seq_max=1, **F32), 1, "2^31)"),
    "pad": (lambda n: KVCache(LAYERS, 8, n_seq_max=1, pad=n, **F32), 1, "1048576]"),
    "rollback": (lambda n: RecurrentPool(STATES, n_seq_max=1, rollback=n), 0, "4096]"),
    "kept_rows": (lambda n: RecurrentPool(STATES, n_seq_max=1, kept_rows=n), 0, "2^31)"),
}


def check(name: str, call: Callable[[int], object], low: int, high: str) -> None:
    """What is just below the range is refused, by both of its ends."""
    allowed = f"lie in [{low}, {high}" if high else f"be {low} or more"
    with pytest.raises(
        ParameterError, match=re.escape(f"{name} must {allowed}, not {low - 1}")
    ) as caught:
        call(low - 1)
    assert caught.value.parameter == name


@pytest.mark.parametrize("name", CONFIGS)
def test_prefixes(name: str) -> None:
    low, high = CONFIGS[name]
    given: Any = PrefixConfig
    check(name, lambda n: given(**{name: n}), low, high)
    top = int(high[:-1])
    for value in (low, top):
        assert getattr(given(**{name: value}), name) == value
    with pytest.raises(ParameterError, match=f"{name} must lie in"):
        given(**{name: top + 1})


@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str) -> None:
    call, low, high = POOLS[name]
    check(name, call, low, high)
    call(low)


VERBS: dict[str, tuple[str, Callable[[Cache, int], object], int, str]] = {
    "divisor": ("divisor", lambda c, n: c.seq_div(0, 0, -1, n), 1, "2^31)"),
    "delta": ("delta", lambda c, n: c.seq_add(0, 0, -1, n), 1 - 2**31, "2^31)"),
    "upto": ("upto", lambda c, n: c.sequence(0).fork(n), 0, ""),
    "truncate": ("n", lambda c, n: c.sequence(0).truncate(n), 0, ""),
    "start": ("start", lambda c, n: c.sequence(0).drop(n, 3), 0, ""),
    "stop": ("stop", lambda c, n: c.sequence(0).drop(0, n), 0, ""),
    "n": ("n", lambda c, n: c.find_slot(n), 1, ""),
    "keep": ("keep", lambda c, n: c.sequence(0).slide(n), 0, ""),
    "discard": ("discard", lambda c, n: c.sequence(0).slide(0, n), 0, ""),
    "max_moves": ("max_moves", lambda c, n: c.defrag(max_moves=n), 0, ""),
}


@pytest.mark.parametrize("verb", VERBS)
def test_verbs(verb: str) -> None:
    name, call, low, high = VERBS[verb]
    cache = small(16)
    check(name, lambda n: call(cache, n), low, high)
