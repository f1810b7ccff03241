"""Sizes, types and verbs of the cache."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from aleator.cache import KVCache, LayerShape, RecurrentShape
from aleator.cache.kv_cache import Layers, build_cache
from aleator.cache.options import CacheOptions
from aleator.cache.pools import cell_pool
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.prefix_index import PrefixConfig
from aleator.cache.recurrent import RecurrentCache
from aleator.core.errors import CacheError, CacheFull, CannotShift, ParameterError
from tests.cache.caches import fill, small

SMALL = [LayerShape(2, 8, 4), LayerShape(1, 16, 16)]


@pytest.mark.parametrize(("layers", "width", "mib"), [(32, 4096, 512), (40, 5120, 800)])
def test_bytes_for(layers: int, width: int, mib: int) -> None:
    shapes = [LayerShape(width // 128, 128, 128)] * layers
    k, v = KVCache.bytes_for(shapes, 1024, "f16", "f16")
    assert k == v == mib * 2**20 // 2
    assert KVCache.bytes_for(shapes, 1024, "f32", "bf16") == (2 * k, v)


def test_storage_is_what_bytes_for_says_and_zeroed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "aleator.cache"):
        cache = KVCache(SMALL, 1024, type_k="f32", type_v="bf16")
    assert (cache.keys.nbytes, cache.values.nbytes) == KVCache.bytes_for(SMALL, 1024, "f32", "bf16")
    assert [t.dtype for t in cache.keys.layers] == [np.float32] * 2
    assert [tuple(t.shape) for t in cache.values.layers] == [(1024, 2, 4), (1024, 1, 16)]
    assert not any(t.any() for t in cache.keys.layers + cache.values.layers)
    assert "K (f32) 0.12 MiB, V (bf16) 0.05 MiB, sum 0.17 MiB" in caplog.text


@pytest.mark.parametrize("name", ["q6_k", "f64", "F16", ""])
@pytest.mark.parametrize("parameter", ["type_k", "type_v"])
def test_other_types_are_refused(parameter: str, name: str) -> None:
    types: dict[str, Any] = {"type_k": "f16", "type_v": "f16", parameter: name}
    with pytest.raises(
        ParameterError,
        match=f"{parameter} must be one of f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl",
    ):
        KVCache(SMALL, 16, **types)
    with pytest.raises(ParameterError, match=parameter):
        KVCache.bytes_for(SMALL, 16, **types)


@pytest.mark.parametrize(("n_cells", "n_seq_max"), [(0, 1), (-1, 1), (2**31, 1), (8, 0), (8, 4097)])
def test_sizes_out_of_range(n_cells: int, n_seq_max: int) -> None:
    with pytest.raises(ParameterError):
        KVCache([], n_cells, n_seq_max=n_seq_max)


def test_more_than_the_memory() -> None:
    shapes = [LayerShape(1 << 10, 1 << 10, 1 << 10)] * 2
    with pytest.raises(ParameterError, match=r"needs 4,194,304,000 MiB for K .* smaller n_ctx"):
        KVCache(shapes, 1_048_576_000)


def test_full_says_how_much() -> None:
    cache = KVCache(SMALL, 16)
    with pytest.raises(CacheFull, match="larger n_ctx") as caught, cache.step() as step:
        step.make_room(17)
    assert (caught.value.needed, caught.value.free) == (17, 16)


def test_without_rotation_positions_stay() -> None:
    cache = KVCache(SMALL, 16)
    assert not cache.can_shift()
    with pytest.raises(CannotShift):
        cache.seq_add(0, 0, -1, 1)
    with pytest.raises(CannotShift):
        cache.seq_div(0, 0, -1, 2)


def kept() -> KVCache:
    """Two cached prefixes, the first also held by sequence 0."""
    cache = KVCache(SMALL, 64, n_seq_max=2, rotate=lambda layer, k, d: k, prefix=PrefixConfig(4, 4))
    for seq, tokens in enumerate(([1, 2, 3, 4, 5, 6], [1, 2, 3, 9])):
        reused = cache.reuse(seq, tokens)
        n = len(tokens) - reused
        owners = np.full((n, 1), 1 << seq, np.uint64)
        with cache.step() as step:
            step.place(
                np.arange(reused, len(tokens), dtype=np.int32), np.full(n, seq, np.int32), owners
            )
        assert cache.keep(seq, tokens)
    cache.seq_rm(1)
    return cache


def test_kept_texts_stay_until_something_else_needs_the_cells() -> None:
    cache = kept()
    assert cache.used == 7
    cache.seq_rm(0)
    assert cache.used == 7
    assert cache.match([1, 2, 3, 9, 9]).length == 4
    with cache.step() as step:
        step.make_room(60)
    assert cache.used == 4
    with pytest.raises(CacheFull) as caught, cache.step() as step:
        step.make_room(65)
    assert (caught.value.needed, caught.value.free, caught.value.evictable) == (65, 60, 4)
    assert "4 of cached prefixes" in str(caught.value)
    assert cache.used == 4
    cache.cells.check()


def test_what_moves_is_not_kept() -> None:
    cache = kept()
    cache.seq_add(0, 3, -1, 5)
    assert cache.match([1, 2, 3, 4, 5, 6]).length == 3
    assert cache.match([1, 2, 3, 9, 9]).length == 4  # its fourth cell is its own
    with pytest.raises(ParameterError):
        cache.seq_add(0, 0, -1, 2**31 - 4)
    assert cache.match([1, 2, 3, 9, 9]).length == 4
    cache.seq_div(0, 2, -1, 2)
    assert cache.match([1, 2, 3, 9, 9]).length == 2


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda cache: cache.seq_rm(-1, 2, 3), 2),
        (lambda cache: cache.seq_rm(-1), 0),
        (lambda cache: cache.seq_keep(0), 0),
        (lambda cache: cache.clear(), 0),
    ],
)
def test_what_is_removed_for_all_is_not_kept(change: Any, left: int) -> None:
    cache = kept()
    match = cache.match([1, 2, 3, 4, 5, 6])
    change(cache)
    assert cache.match([1, 2, 3, 4, 5, 6]).length == left
    with pytest.raises(CacheError, match=r"match again|not empty"):
        cache.reuse_prefix(1 if cache.seq_pos_max(1) < 0 else 0, match)
    cache.cells.check()


def test_keep_and_adopt_refuse() -> None:
    cache = kept()
    with pytest.raises(ParameterError, match="positions 0 to 6"):
        cache.keep(0, [1, 2, 3, 4, 5, 6, 7])
    with pytest.raises(CacheError, match="not empty"):
        cache.reuse_prefix(0, cache.match([1, 2, 3]))
    plain = KVCache(SMALL, 16)
    assert plain.match([1, 2]).why_not == (
        "this cache caches no prefixes: create it with prefix=PrefixConfig()",
    )
    assert not plain.keep(0, [1])
    assert plain.reuse(0, [1, 2]) == 0


def test_what_does_not_move_is_kept() -> None:
    cache = kept()
    cache.seq_add(0, 3, 3, 5)
    cache.seq_add(0, 0, -1, 0)
    cache.seq_div(0, 2, 2, 2)
    cache.seq_div(0, 0, -1, 1)
    assert cache.match([1, 2, 3, 4, 5, 6]).length == 5
    cache.seq_rm(0, 0, 1)
    with pytest.raises(ParameterError, match="positions 0 to 5"):
        cache.keep(0, [1, 2, 3, 4, 5, 6])
    with pytest.raises(ParameterError, match="positions 0 to 0"):
        cache.keep(1, [1])


def test_the_log_names_devices(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "aleator.cache"):
        KVCache(SMALL, 64)
        KVCache([], 64)
    first, second = caplog.messages
    assert first.startswith("KV cache: 64 cells, 2 layers, cpu: K (f16)")
    assert second.startswith("KV cache: 64 cells, 0 layers, cpu: K (f16)")


@pytest.mark.parametrize("less", [0, 1])
def test_memory_that_is_just_enough(less: int, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = sum(KVCache.bytes_for(SMALL, 64))
    monkeypatch.setattr(cell_pool, "memory_limit", lambda: needed - less)
    if not less:
        assert KVCache(SMALL, 64).total_size == needed
        return
    with pytest.raises(ParameterError, match=r"n_ctx 64 needs .*, and there are 0 MiB; use a"):
        KVCache(SMALL, 64)


@pytest.mark.parametrize(
    ("options", "picture", "n", "why"),
    [
        ({}, "000000", 3, "has 2 free cells and the batch needs 3"),
        ({"compat": "llama-2024"}, "00.0000.", 2, "has 2 free cells, but not 2 in a row: defrag() it"),
        ({"compat": "llama-2024"}, "00.0000.", 3, "has 2 free cells and the batch needs 3"),
        ({"policy": "streams"}, "00", 3, "has 6 free cells, but not 3 in the share that each"),
    ],
)  # fmt: skip
def test_why_there_are_no_cells(options: dict[str, Any], picture: str, n: int, why: str) -> None:
    cache = small(8, **options)
    fill(cache, picture)
    with pytest.raises(CacheFull) as caught, cache.step() as step:
        step.find(np.arange(9, 9 + n, dtype=np.int32), np.ones((n, 1), np.uint64))
    assert why in str(caught.value)
    assert (caught.value.needed, caught.value.free) == (n, 8 - len(picture.replace(".", "")))


def rotates(layer: int, keys: Any, deltas: Any) -> Any:
    return keys


def layers(**parts: Any) -> Layers:
    """All-seeing layers, unless other parts are given."""
    made: dict[str, Any] = {
        "architecture": "x", "count": 5, "shapes": [LayerShape(1, 32, 32)], "devices": ["cpu"],
        "window": None, "chunked": False, "window_shapes": [], "window_devices": [], "states": [],
        "state_devices": [], "shift": rotates, "shift_window": rotates,
    }  # fmt: skip
    return Layers(**made | parts)


def built(
    model: Layers, n_ctx: int = 4096, prefix: PrefixConfig | None = None, **options: Any
) -> Any:
    return build_cache(model, CacheOptions(**options), n_ctx, 32, prefix)


WINDOWS: dict[str, Any] = {
    "window": 100, "window_shapes": [LayerShape(1, 2, 2)], "window_devices": ["cpu"],
}  # fmt: skip
STATES: dict[str, Any] = {"states": [RecurrentShape(1, 2, 3)], "state_devices": ["cpu"]}


@pytest.mark.parametrize(
    ("options", "layout", "pad"),
    [
        ({}, "token", 256),
        ({"flash_attn": False}, "channel", 256),
        ({"flash_attn": False, "type_v": "q8_0"}, "token", 256),
        ({"flash_attn": False, "compat": "llama-2024"}, "channel", 32),
        ({"compat": "llama-2024"}, "token", 256),
        ({"v_layout": "channel"}, "channel", 256),
        ({"v_layout": "token", "flash_attn": False}, "token", 256),
    ],
)
def test_what_a_decoder_stores_values_by(options: dict[str, Any], layout: str, pad: int) -> None:
    cache = built(layers(), **options)
    assert (cache.v_layout, cache.pad, cache.size) == (layout, pad, 4096)
    assert (cache.window, cache.recurrent, cache.n_pos_per_embd) == (None, None, 1)


def test_a_decoder_with_pictures_stores_four_positions_but_for_prefixes() -> None:
    model = layers(position_axes=4, shift=None)
    assert built(model).n_pos_per_embd == 4
    assert built(model, prefix=PrefixConfig()).n_pos_per_embd == 1
    assert built(layers(position_axes=1, shift=None)).n_pos_per_embd == 1


@pytest.mark.parametrize(
    ("options", "cells", "ring"),
    [
        ({}, 256, True),
        ({"n_seq_max": 4}, 512, True),
        ({"n_seq_max": 4, "swa_sinks": 20}, 512, True),
        ({"n_seq_max": 4, "swa_sinks": 21}, 768, True),
        ({"n_seq_max": 4, "policy": "streams"}, 1024, True),
        ({"n_seq_max": 32, "policy": "streams"}, 4096, True),
        ({"swa_full": True}, 4096, False),
        ({"n_seq_max": 4, "prefix": PrefixConfig(bytes=8 * 100 + 7)}, 612, False),
        ({"prefix": PrefixConfig(bytes=2**20)}, 4096, False),
    ],
)
def test_window_cells_of_a_decoder(options: dict[str, Any], cells: int, ring: bool) -> None:
    cache = built(layers(**WINDOWS), **options)
    assert (cache.window.cells.size, cache.window.ring, cache.size) == (cells, ring, 4096)
    assert cache.window.sinks == options.get("swa_sinks", 0)
    assert (cache.window.window, cache.window.chunked) == (100, False)


def test_states_of_a_decoder() -> None:
    alone = built(layers(shapes=[], **STATES), n_seq_max=3, n_rollback=2)
    assert (alone.size, alone.recurrent.rollback, alone.recurrent.n_layers) == (3, 2, 5)
    both = built(layers(**STATES), n_seq_max=3, n_rollback=1, prefix=PrefixConfig(bytes=20 * 10))
    assert (both.size, both.recurrent.rollback, both.recurrent.kept_rows) == (4096, 1, 10)
    for options, message in (
        ({"swa_sinks": 1}, "swa_sinks=1: this model has no windows"),
        ({"k_storage": "raw"}, "k_storage='raw' rotates keys"),
    ):
        with pytest.raises(ParameterError, match=message):
            built(layers(shift=None), **options)
    assert built(layers(), k_storage="raw").k_storage == "raw"


def test_what_is_free_when_a_step_ends_is_zeroed() -> None:
    cache = small(8)
    assert isinstance(cache.pool, AttentionPool)
    fill(cache, "0000")
    with cache.step() as step:
        cache.clear()
        owners = np.full((2, 1), 2, np.uint64)
        made = step.place(np.arange(2, dtype=np.int32), np.ones(2, np.int32), owners)
        for layer in cache.keys.layers + cache.values.layers:
            assert layer[3].all()
            layer[made.cell_ids] = 7
    for layer in cache.keys.layers + cache.values.layers:
        assert (layer[made.cell_ids] == 7).all()
        assert not layer[2:].any()
    cache.clear(data=False)
    assert cache.keys.layers[0][0].all()


def test_how_many_sequences_are_used() -> None:
    cache = RecurrentCache([RecurrentShape(1, 1, 1)], n_seq_max=3)
    for seq in (2, 0):
        at = np.zeros(1, np.int32)
        with cache.step() as step:
            step.place(at, at + seq, np.full((1, 1), 1 << seq, np.uint64))
    assert cache.states[2] == ((0, 0),)
    assert (cache.used, cache.size, repr(cache)) == (2, 3, "RecurrentCache(2/3 sequences used)")
