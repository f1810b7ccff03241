"""Bytes that a model's layers will take in a cache."""

from __future__ import annotations

from aleator.cache.kv_cache import KVCache, LayerShape
from aleator.cache.pools.window import window_capacity
from aleator.cache.recurrent import RecurrentCache
from aleator.models.config import ModelConfig
from aleator.models.layers.recurrent_parts import state_shape


def cache_of_layers(
    config: ModelConfig, n_ctx: int, type_k: str, type_v: str, n_seq_max: int
) -> list[tuple[int, int, int]]:
    """Bytes of each layer's keys, of its values, and of its states for one sequence.

    Args:
        config: the model's configuration.
        n_ctx: positions.
        type_k: type of keys.
        type_v: type of values.
        n_seq_max: sequences that share these positions.
    """
    window, of_window = config.window, 0
    if window is not None:  # with micro-batches of 512
        of_window = window_capacity(window.size, n_ctx, n_seq_max, min(512, n_ctx))
    stateful = config.ssm is not None or config.delta is not None
    sizes: list[tuple[int, int, int]] = []
    for layer in range(config.n_layers):
        k = v = states = 0
        if config.stores_keys(layer):
            cells = n_ctx if window is None or not window.layers[layer] else of_window
            shape = LayerShape(config.n_kv_heads[layer], *config.stored_head_dims(layer))
            k, v = KVCache.bytes_for([shape], cells, type_k, type_v)
        if stateful and config.keeps_state(layer):
            states = RecurrentCache.bytes_for([state_shape(config)])
        sizes.append((k, v, states))
    return sizes
