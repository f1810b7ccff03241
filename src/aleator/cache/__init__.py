"""The KV cache: cells that know position and owners, and their keys and values.

On the CPU nothing here needs PyTorch; on a device the keys and values are torch tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aleator._native import Cells as Cells
from aleator.core.on_demand import on_demand

if TYPE_CHECKING:
    from aleator.cache.batches import Part as Part
    from aleator.cache.batches import Plan as Plan
    from aleator.cache.cache import Cache as Cache
    from aleator.cache.cache import Step as Step
    from aleator.cache.kv_cache import HybridCache as HybridCache
    from aleator.cache.kv_cache import KVCache as KVCache
    from aleator.cache.kv_cache import WindowCache as WindowCache
    from aleator.cache.pools.cell_pool import Defragmented as Defragmented
    from aleator.cache.pools.pool import Pool as Pool
    from aleator.cache.pools.recurrent_rows import RecurrentShape as RecurrentShape
    from aleator.cache.prefix_index import Match as Match
    from aleator.cache.prefix_index import PrefixConfig as PrefixConfig
    from aleator.cache.recurrent import RecurrentCache as RecurrentCache
    from aleator.cache.rows.batch import MicroBatch as MicroBatch
    from aleator.cache.rows.rows import LayerShape as LayerShape
    from aleator.cache.rows.tensors import CellTensors as CellTensors
    from aleator.cache.sequence import ContextShift as ContextShift
    from aleator.cache.sequence import Sequence as Sequence
    from aleator.cache.sequence_verbs import Checkpoint as Checkpoint
    from aleator.cache.view import Frame as Frame

_NAMES = {
    "batches": "Part Plan",
    "cache": "Cache Step",
    "kv_cache": "HybridCache KVCache WindowCache",
    "pools.cell_pool": "Defragmented",
    "pools.pool": "Pool",
    "pools.recurrent_rows": "RecurrentShape",
    "prefix_index": "Match PrefixConfig",
    "recurrent": "RecurrentCache",
    "rows.batch": "MicroBatch",
    "rows.rows": "LayerShape",
    "rows.tensors": "CellTensors",
    "sequence": "ContextShift Sequence",
    "sequence_verbs": "Checkpoint",
    "view": "Frame",
}

__all__ = ["Cells", *" ".join(_NAMES.values()).split()]

__getattr__ = on_demand(__name__, _NAMES)
