"""The KV cache: cells that know position and owners, and the keys and values they stand for.

``Cells`` is bookkeeping and needs no torch; ``KVCache`` loads torch when first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aleator._native import Cells

if TYPE_CHECKING:
    from aleator.cache.kv_cache import CellTensors, KVCache, LayerShape, MicroBatch

__all__ = ["CellTensors", "Cells", "KVCache", "LayerShape", "MicroBatch"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from aleator.cache import kv_cache

        return getattr(kv_cache, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
