"""Storage of keys, values and states: NumPy arrays on the CPU, torch tensors on devices."""

from __future__ import annotations

from typing import Any

from aleator.core.moved import moved_name

_MOVED = dict.fromkeys(
    ("TYPES", "LayerStorage", "StateArrays", "StorageType", "storage_type"), "layer"
)
_MOVED |= dict.fromkeys(("Storage", "make_storage", "side_bytes", "state_arrays"), "storage")


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name, _MOVED)
