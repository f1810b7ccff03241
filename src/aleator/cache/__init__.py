"""The KV cache: cells that know position and owners, and the keys and values they stand for.

``Cells`` is bookkeeping and needs no torch; ``KVCache`` loads torch when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aleator._native import Cells

if TYPE_CHECKING:
    from aleator.cache.cell_tensors import CellTensors
    from aleator.cache.defrag import Defragmented
    from aleator.cache.hybrid import HybridCache
    from aleator.cache.kv_cache import KVCache, LayerShape
    from aleator.cache.plan import Part, Plan
    from aleator.cache.prefix import Match, PrefixConfig
    from aleator.cache.recurrent import RecurrentCache, RecurrentShape
    from aleator.cache.sequence import Checkpoint, Sequence, Slid
    from aleator.cache.step import MicroBatch, Step
    from aleator.cache.view import Frame
    from aleator.cache.window import WindowCache

_MODULES = {
    "CellTensors": "cell_tensors",
    "Checkpoint": "sequence",
    "Defragmented": "kv_cache",
    "Frame": "view",
    "HybridCache": "hybrid",
    "KVCache": "kv_cache",
    "LayerShape": "kv_cache",
    "Match": "prefix",
    "MicroBatch": "step",
    "Part": "plan",
    "Plan": "plan",
    "PrefixConfig": "prefix",
    "RecurrentCache": "recurrent",
    "RecurrentShape": "recurrent",
    "Sequence": "sequence",
    "Slid": "sequence",
    "Step": "step",
    "WindowCache": "window",
}

__all__ = [
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
