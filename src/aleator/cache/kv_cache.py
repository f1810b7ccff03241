"""Caches of cells: for layers that see every position, for windows, for several kinds; and a decoder's."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from aleator.cache.cache import Cache
from aleator.cache.devices import CPU, Device, described, sizes_by_device
from aleator.cache.options import CacheOptions
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.pools.cell_pool import Defragmented
from aleator.cache.pools.hybrid import HybridBatch, HybridCheckpoint, HybridPool
from aleator.cache.pools.kept_states import kept_rows
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.recurrent_rows import RecurrentShape
from aleator.cache.pools.window import WindowPool, window_capacity
from aleator.cache.prefix_index import PrefixConfig, kept_texts
from aleator.cache.recurrent import RecurrentCache
from aleator.cache.rows.rows import LayerShape, RotateKeys, bytes_for
from aleator.cache.storage.layer import storage_type
from aleator.core.errors import ParameterError
from aleator.core.records import dataclass

# Names that are imported from here too.
__all__ = [
    "Defragmented",
    "HybridBatch",
    "HybridCache",
    "HybridCheckpoint",
    "KVCache",
    "LayerShape",
]
__all__ += ["RotateKeys", "WindowCache", "window_capacity"]

log = logging.getLogger(__name__)


class KVCache(Cache):
    """Keys and values of ``n_cells`` tokens, shared by up to ``n_seq_max`` sequences.

    Args:
        layers: what each layer stores.
        n_cells: capacity in tokens, over all sequences.
        prefix: how to cache prefixes (:meth:`keep`); None does not cache them.
        options: ``n_seq_max``: sequence ids lie in [0, n_seq_max).

            ``type_k``, ``type_v``: the types that keys and values are stored in, see aleator.cache.options;
            block types need heads of a multiple of 32 elements.

            ``device``: where they are stored; a list has one device per layer.

            ``rotate``: rotates keys to new positions; None if positions cannot be shifted.

            ``v_layout``: "token" keeps a cell's values together, "channel" a channel's, as llama.cpp does
            without flash attention; not for block types.

            ``k_storage``: "rotated", or "raw": keys as if at position 0, rotated whenever they are read.

            ``hadamard``: rotate heads by a Hadamard matrix before they are rounded to blocks, where llama.cpp
            does.

            ``policy``: "unified": all sequences share one pool of cells; "streams": each has an equal part of
            them for itself.

            ``compat``: "llama-2024": tokens of a micro-batch get contiguous cells, and the head moves, as in
            llama.cpp's struct of 2024; None: any free cells, as in llama.cpp today.

            ``pad``: :attr:`n` is a multiple of this; None is 256 (32 with "llama-2024").

            ``architecture``: the model's, as state files name it.

            ``n_pos_per_embd``: 4 for M-RoPE: a token has positions (t, y, x, z), and the cells store y, x and
            its id; at equal t a token does not see those after it in (y, x).  Such a cache cannot shift.
            1: one position per token, and no memory for the others.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        n_cells: int,
        *,
        prefix: PrefixConfig | None = None,
        **options: Any,
    ) -> None:
        pool = AttentionPool(layers, n_cells, n_kept=kept_texts(prefix), **options)
        super().__init__(pool, prefix)
        log_size(self.first)

    bytes_for = staticmethod(bytes_for)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.used}/{self.size} cells used, K {self.type_k}, V {self.type_v})"


class WindowCache(KVCache):
    """Keys and values of window layers.

    Args:
        layers: what each layer stores.
        capacity: number of cells; see :func:`window_capacity`.
        options: those of :class:`aleator.cache.pools.window.WindowPool`.
    """

    def __init__(self, layers: Sequence[LayerShape], capacity: int, **options: Any) -> None:
        Cache.__init__(self, WindowPool(layers, capacity, **options))
        log_size(self.first)


class HybridCache(KVCache):
    """Cells that know every position, and the pools that follow them, with the methods of a single cache.

    An operation is refused if the next token would then miss a key in a window layer, or a recurrent layer its
    state: CannotRewind, with the oldest legal position, or CannotShift.

    Args:
        layers: layers that see everything; may be empty.
        n_cells: capacity in tokens, of the first pool.
        window: the pool of window layers; with ``prefix`` its ``n_kept`` is ``prefix.texts``.
        recurrent: the pool of recurrent layers; its ``kept_rows`` are for prefixes.
        prefix: see :class:`KVCache`; a prefix is found up to the length that every pool can continue from.
        options: the others of :class:`KVCache`.
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
        first = AttentionPool(layers, n_cells, n_kept=kept_texts(prefix), **options)
        Cache.__init__(self, HybridPool(first, window, recurrent), prefix, partial_prefixes=True)
        for leaf in self.pools:
            if isinstance(leaf, AttentionPool):
                log_size(leaf)


def log_size(pool: AttentionPool) -> None:
    """Log how much memory a pool takes."""
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


@dataclass(frozen=True)
class Layers:
    """What the layers of a model store and where they compute: all-seeing, window and recurrent layers.

    ``shift`` and ``shift_window`` rotate keys to other positions, or are None if that is not possible.  A
    ``chunked`` window is the position's own chunk.  More than one of ``position_axes`` are only stored if
    prefixes are not cached.
    """

    architecture: str
    count: int
    shapes: Sequence[LayerShape]
    devices: Sequence[Device]
    window: int | None
    chunked: bool
    window_shapes: Sequence[LayerShape]
    window_devices: Sequence[Device]
    states: Sequence[RecurrentShape]
    state_devices: Sequence[Device]
    shift: RotateKeys | None
    shift_window: RotateKeys | None
    position_axes: int = 1


def build_cache(
    model: Layers, options: CacheOptions, n_ctx: int, n_ubatch: int, prefix: PrefixConfig | None
) -> Cache:
    """Build the cache of a decoder's layers; ``n_ctx`` and ``n_ubatch`` are the resolved ``options``."""
    n_kept = kept_texts(prefix)
    if options.swa_sinks and model.window is None:
        raise ParameterError(f"swa_sinks={options.swa_sinks}: this model has no windows")
    shapes, states = model.shapes, model.states
    of_states: dict[str, Any] = {
        "n_seq_max": options.n_seq_max,
        "rollback": options.n_rollback,
        "device": list(model.state_devices),
        "architecture": model.architecture,
        "n_layers": model.count,
    }
    if states and not shapes:
        return RecurrentCache(states, prefix=prefix, **of_states)
    if options.k_storage == "raw" and model.shift is None:
        raise ParameterError(
            f"k_storage='raw' rotates keys as they are read, which {model.architecture!r} does not "
            "allow; use 'rotated'"
        )
    by_token = options.flash_attn or storage_type("type_v", options.type_v).element is None
    common: dict[str, Any] = {
        "n_seq_max": options.n_seq_max,
        "type_k": options.type_k,
        "type_v": options.type_v,
        "v_layout": options.v_layout or ("token" if by_token else "channel"),
        "k_storage": options.k_storage,
        "policy": options.policy,
        "pad": 256 if options.flash_attn or options.compat is None else 32,
        "architecture": model.architecture,
    }
    first = {**common, "rotate": model.shift, "compat": options.compat}
    first["device"] = list(model.devices) if options.offload_kqv else CPU
    if states:
        kept = kept_rows(prefix, options.n_seq_max, states)
        pool = RecurrentPool(states, kept_rows=kept, **of_states)
        return HybridCache(shapes, n_ctx, recurrent=pool, prefix=prefix, **first)
    if model.position_axes == 4 and prefix is None:
        first["n_pos_per_embd"] = model.position_axes
    if model.window is None:
        return KVCache(shapes, n_ctx, prefix=prefix, **first)
    cells = n_ctx
    if not options.swa_full:
        shares = options.n_seq_max if options.policy == "streams" else 1
        of_share = n_ctx // shares, options.n_seq_max // shares
        cells = shares * window_capacity(model.window, *of_share, n_ubatch, options.swa_sinks)
        if prefix:
            cell = sum(bytes_for(model.window_shapes, 1, options.type_k, options.type_v))
            cells = min(n_ctx, cells + prefix.bytes // cell)
    window = WindowPool(
        model.window_shapes,
        cells,
        window=model.window,
        chunked=model.chunked,
        sinks=options.swa_sinks,
        ring=not (options.swa_full or prefix),
        n_kept=n_kept,
        rotate=model.shift_window,
        device=list(model.window_devices) if options.offload_kqv else CPU,
        **common,
    )
    return HybridCache(shapes, n_ctx, window=window, prefix=prefix, **first)
