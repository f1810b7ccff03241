"""Layers in native code: how they are appended to the native step of a decoder over one pool.

Native code reads the attributes of parts.py and recurrent_parts.py by their names (native/layers/given*.hpp).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import aleator._native as _native
from aleator.cache.storage.layer import HostLayer
from aleator.core.arrays import Floats
from aleator.core.errors import ParameterError
from aleator.models.layers.stored import StoredWeight

if TYPE_CHECKING:
    from aleator.cache.rows.rows import Rows
    from aleator.cache.storage.storage import Storage
    from aleator.models.layers.parts import Attention

Stored = list[StoredWeight]


def add_attention(step: _native.DecoderStep, block: Attention[Stored, Floats], rows: Rows) -> None:
    """Append a layer with attention, whose keys and values are in ``rows``."""
    compressed = block.latent is not None and block.latent.config.compressed
    if block.latent is not None and compressed:
        _check_blocks(rows.keys, block.latent.config.rank)
    values = None if compressed else _memory(rows.values, block.index)
    step.add_attention(block, _memory(rows.keys, block.index), values)


def _check_blocks(keys: Storage, rank: int) -> None:
    """Raise ParameterError if the compressed keys, which are also the values, end within a block."""
    block = max(keys.rotation, keys.type.block)
    if rank % block:
        raise ParameterError(
            f"type_k={keys.type.name} stores blocks of {block} channels here, and {rank} compressed ones "
            "are not a multiple: use f32, f16 or bf16"
        )


def _memory(side: Storage, layer: int) -> _native.CacheMemory:
    """A layer's keys or values, shared, not copied."""
    part = side.parts[layer]
    if not isinstance(part, HostLayer):
        raise TypeError("native code computes over caches on the CPU")
    return _native.CacheMemory(
        part.bytes,
        side.type.native,
        side.n_cells,
        *side.shapes[layer],
        side.by_channel,
        side.rotation,
    )
