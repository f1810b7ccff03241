"""The cache of window layers alone; in models they stand beside others, in a :class:`HybridCache`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aleator.cache.cache import Cache
from aleator.cache.kv_cache import KVCache, log_size
from aleator.cache.pools.window import WindowPool, window_capacity
from aleator.cache.rows.rows import LayerShape

__all__ = ["WindowCache", "window_capacity"]


class WindowCache(KVCache):
    """Keys and values of window layers.

    Args:
        layers: what each layer stores.
        capacity: how many cells; see :func:`window_capacity`.
        options: those of :class:`aleator.cache.pools.window.WindowPool`.

    """

    def __init__(self, layers: Sequence[LayerShape], capacity: int, **options: Any) -> None:
        Cache.__init__(self, WindowPool(layers, capacity, **options))
        log_size(self.first)
