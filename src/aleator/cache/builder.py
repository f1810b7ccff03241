"""Makes the cache that a decoder needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aleator.cache.cache import Cache
from aleator.cache.devices import CPU, Device
from aleator.cache.kv_cache import HybridCache, KVCache
from aleator.cache.options import CacheOptions
from aleator.cache.pools.kept_states import kept_rows
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.recurrent_rows import RecurrentShape
from aleator.cache.pools.window import WindowPool, window_capacity
from aleator.cache.prefix import PrefixConfig, require_config
from aleator.cache.recurrent import RecurrentCache
from aleator.cache.rows.rows import LayerShape, RotateKeys, bytes_for
from aleator.cache.storage import storage_type
from aleator.core.errors import ParameterError
from aleator.core.records import dataclass


@dataclass(frozen=True)
class Layers:
    """What the layers of a model keep and where they compute: all-seeing ones, with windows, with states.

    ``shift`` and ``shift_window`` rotate keys to other positions, None where they cannot be; ``chunked``
    windows are of the position's own chunk; more than one of ``position_axes`` are kept where no prefixes
    are cached.
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
    """The cache of a decoder's layers; ``n_ctx`` and ``n_ubatch`` are those of ``options``, resolved."""
    require_config(prefix)
    if options.swa_sinks and model.window is None:
        raise ParameterError(
            "swa_sinks", f"swa_sinks={options.swa_sinks}: this model has no windows"
        )
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
            "k_storage",
            f"k_storage='raw' rotates keys as they are read, which {model.architecture!r} does not "
            "allow; use 'rotated'",
        )
    by_token = options.flash_attn or storage_type("type_v", options.type_v).block > 1
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
    if model.position_axes > 1 and prefix is None:
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
        n_kept=prefix.texts if prefix else 0,
        rotate=model.shift_window,
        device=list(model.window_devices) if options.offload_kqv else CPU,
        **common,
    )
    return HybridCache(shapes, n_ctx, window=window, prefix=prefix, **first)
