"""The KV cache: cells that know position and owners, and the keys and values they stand for.

On the CPU nothing here needs PyTorch; on a device the keys and values are its tensors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aleator._native import Cells as Cells

if TYPE_CHECKING:
    from aleator.cache.cache import Cache as Cache
    from aleator.cache.cells.plan import Part as Part
    from aleator.cache.cells.plan import Plan as Plan
    from aleator.cache.cells.view import Frame as Frame
    from aleator.cache.handle.sequence import Sequence as Sequence
    from aleator.cache.handle.sequence import Slid as Slid
    from aleator.cache.kv_cache import HybridCache as HybridCache
    from aleator.cache.kv_cache import KVCache as KVCache
    from aleator.cache.kv_cache import WindowCache as WindowCache
    from aleator.cache.pools.cell_pool import Defragmented as Defragmented
    from aleator.cache.pools.pool import Pool as Pool
    from aleator.cache.pools.recurrent_rows import RecurrentShape as RecurrentShape
    from aleator.cache.pools.step import Step as Step
    from aleator.cache.prefix import Match as Match
    from aleator.cache.prefix import PrefixConfig as PrefixConfig
    from aleator.cache.recurrent import RecurrentCache as RecurrentCache
    from aleator.cache.rows.batch import MicroBatch as MicroBatch
    from aleator.cache.rows.rows import LayerShape as LayerShape
    from aleator.cache.rows.tensors import CellTensors as CellTensors
    from aleator.cache.sequence_verbs import Checkpoint as Checkpoint

_MODULES = {
    "Cache": "cache",
    "CellTensors": "rows.tensors",
    "Checkpoint": "sequence_verbs",
    "Defragmented": "pools.cell_pool",
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

__all__ = ["Cells", *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"aleator.cache.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
