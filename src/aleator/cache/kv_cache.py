"""The KV cache of layers that see every position."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from aleator.cache.cache import Cache
from aleator.cache.devices import described, sizes_by_device
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.prefix import PrefixConfig, require_config
from aleator.cache.rows.defrag import Defragmented
from aleator.cache.rows.rows import LayerShape, RotateKeys, bytes_for

__all__ = ["Defragmented", "KVCache", "LayerShape", "RotateKeys"]

log = logging.getLogger(__name__)


class KVCache(Cache):
    """Keys and values of ``n_cells`` tokens, shared by up to ``n_seq_max`` sequences.

    Args:
        layers: what each layer stores.
        n_cells: capacity in tokens, over all sequences.
        prefix: cache prefixes (:meth:`keep`); None: do not.
        options: ``n_seq_max``: sequence ids lie in [0, n_seq_max).

            ``type_k``, ``type_v``: the types keys and values are stored in, see aleator.cache.options; those of
            blocks need heads of a multiple of 32 elements.

            ``device``: where they are stored; a list has one device per layer.

            ``rotate``: rotates keys to new positions; None where positions cannot be shifted.

            ``v_layout``: "token" keeps a cell's values together, "channel" a channel's, as llama.cpp does
            without flash attention; not in blocks.

            ``k_storage``: "rotated", or "raw": keys as if at position 0, rotated whenever they are read.

            ``hadamard``: rotate heads by a Hadamard matrix before they are rounded to blocks, where llama.cpp
            does.

            ``policy``: "unified": all sequences share one pool of cells; "streams": each has an equal share
            of them to itself.

            ``compat``: "llama-2024": tokens of a micro-batch lie in a row, and the head moves, as in
            llama.cpp's struct of 2024; None: any free cells, as in llama.cpp today.

            ``pad``: :attr:`n` is a multiple of this; None is 256 (32 with "llama-2024").

            ``architecture``: the model's, as state files name it.

            ``n_pos_per_embd``: 4 for M-RoPE: a token has positions (t, y, x, z), and the cells keep y, x and
            its id; at equal t a token does not see what is after it in (y, x).  Such a cache cannot shift.
            1: none of that, and no memory for it.

    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        n_cells: int,
        *,
        prefix: PrefixConfig | None = None,
        **options: Any,
    ) -> None:
        require_config(prefix)
        n_kept = prefix.texts if prefix else 0
        super().__init__(AttentionPool(layers, n_cells, n_kept=n_kept, **options), prefix)
        log_size(self.first)

    bytes_for = staticmethod(bytes_for)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.used}/{self.size} cells used, K {self.type_k}, V {self.type_v})"


def log_size(pool: AttentionPool) -> None:
    """Say how much memory a pool takes."""
    log.info(
        "KV cache: %d cells, %d layers, %s: K (%s) %.2f MiB, V (%s) %.2f MiB, sum %.2f MiB",
        pool.cells.size,
        len(pool.rows.shapes),
        described(sizes_by_device(pool.layer_bytes)),
        pool.type_k,
        pool.bytes_k / 2**20,
        pool.type_v,
        pool.bytes_v / 2**20,
        (pool.bytes_k + pool.bytes_v) / 2**20,
    )
