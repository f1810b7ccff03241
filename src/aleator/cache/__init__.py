"""The KV cache: cells that know position and owners, and the keys and values they stand for.

On the CPU nothing here needs PyTorch; on a device the keys and values are its tensors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aleator._native import Cells

if TYPE_CHECKING:
    from aleator.cache.cache import Cache
    from aleator.cache.cells.plan import Part, Plan
    from aleator.cache.cells.view import Frame
    from aleator.cache.handle.sequence import Sequence, Slid
    from aleator.cache.kv_cache import HybridCache, KVCache, WindowCache
    from aleator.cache.pools.pool import Pool
    from aleator.cache.pools.recurrent_rows import RecurrentShape
    from aleator.cache.pools.step import Step
    from aleator.cache.prefix import Match, PrefixConfig
    from aleator.cache.recurrent import RecurrentCache
    from aleator.cache.rows.batch import MicroBatch
    from aleator.cache.rows.defrag import Defragmented
    from aleator.cache.rows.rows import LayerShape
    from aleator.cache.rows.tensors import CellTensors
    from aleator.cache.sequence_verbs import Checkpoint

_MODULES = {
    "Cache": "cache",
    "CellTensors": "rows.tensors",
    "Checkpoint": "sequence_verbs",
    "Defragmented": "rows.defrag",
    "Frame": "cells.view",
    "HybridCache": "kv_cache",
    "KVCache": "kv_cache",
    "LayerShape": "rows.rows",
    "Match": "prefix",
    "MicroBatch": "rows.batch",
    "Pool": "pools.pool",
    "Part": "cells.plan",
    "Plan": "cells.plan",
    "PrefixConfig": "prefix",
    "RecurrentCache": "recurrent",
    "RecurrentShape": "pools.recurrent_rows",
    "Sequence": "handle.sequence",
    "Slid": "handle.sequence",
    "Step": "pools.step",
    "WindowCache": "kv_cache",
}

__all__ = [
    "Cache",
    "CellTensors",
    "Cells",
    "Checkpoint",
    "Defragmented",
    "Frame",
    "HybridCache",
    "KVCache",
    "LayerShape",
    "Match",
    "MicroBatch",
    "Part",
    "Plan",
    "Pool",
    "PrefixConfig",
    "RecurrentCache",
    "RecurrentShape",
    "Sequence",
    "Slid",
    "Step",
    "WindowCache",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"aleator.cache.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
