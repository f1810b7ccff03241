"""A cache in parts: one pool of cells for layers that see everything, and pools that follow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aleator.cache.cache import Cache
from aleator.cache.kv_cache import KVCache, log_size
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.pools.hybrid import HybridPool
from aleator.cache.pools.hybrid_batch import HybridBatch, HybridCheckpoint
from aleator.cache.pools.kept_states import KeptStates
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.window import WindowPool
from aleator.cache.prefix import PrefixConfig, require_config
from aleator.cache.rows.rows import LayerShape

__all__ = ["HybridBatch", "HybridCache", "HybridCheckpoint"]


class HybridCache(KVCache):
    """Cells that know every position, and the pools that follow them, with the verbs and handles of one.

    What would leave a window layer without a key that the next token must see, or a recurrent layer without
    its state, is refused: CannotRewind, with the oldest legal position, or CannotShift.

    Args:
        layers: layers that see everything; there may be none.
        n_cells: capacity in tokens, of the first pool.
        window: the pool of window layers; with ``prefix`` its ``n_kept`` is ``prefix.texts``.
        recurrent: the pool of recurrent layers; its ``kept_rows`` are for prefixes.
        prefix: see :class:`KVCache`; a prefix is found as far as every pool can go on from it.
        options: the others of :class:`KVCache`.

    Attributes:
        kept: the states of cached prefixes; None without a recurrent pool or ``prefix``.

    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        n_cells: int,
        *,
        window: WindowPool | None = None,
        recurrent: RecurrentPool | None = None,
        prefix: PrefixConfig | None = None,
        **options: Any,
    ) -> None:
        require_config(prefix)
        n_kept = prefix.texts if prefix else 0
        first = AttentionPool(layers, n_cells, n_kept=n_kept, **options)
        Cache.__init__(self, HybridPool(first, window, recurrent), prefix, in_parts=True)
        self.kept: KeptStates | None = None
        if recurrent is not None and self.prefix is not None:
            self.kept = recurrent.keeper = KeptStates(recurrent, self.prefix, recurrent.kept_rows)
        for leaf in self.pools:
            if isinstance(leaf, AttentionPool):
                log_size(leaf)
