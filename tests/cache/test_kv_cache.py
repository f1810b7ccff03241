"""Sizes, types and verbs of the cache."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from aleator.cache import KVCache, LayerShape
from aleator.core.errors import CacheFull, CannotShift, ParameterError

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
    assert [t.dtype for t in cache.keys.layers] == [torch.float32] * 2
    assert [tuple(t.shape) for t in cache.values.layers] == [(1024, 2, 4), (1024, 1, 16)]
    assert not any(t.any() for t in cache.keys.layers + cache.values.layers)
    assert "K (f32) 0.12 MiB, V (bf16) 0.05 MiB, sum 0.17 MiB" in caplog.text


@pytest.mark.parametrize("name", ["q5_0", "f64", "F16", ""])
@pytest.mark.parametrize("parameter", ["type_k", "type_v"])
def test_other_types_are_refused(parameter: str, name: str) -> None:
    types: dict[str, Any] = {"type_k": "f16", "type_v": "f16", parameter: name}
    with pytest.raises(
        ParameterError, match=f"{parameter} must be one of f32, f16, bf16, q8_0, q4_0"
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


def test_ids_and_arguments_out_of_range() -> None:
    cache = KVCache(SMALL, 16, n_seq_max=2, rotate=lambda layer, keys, deltas: keys)
    for call in (
        lambda: cache.seq_rm(2),
        lambda: cache.seq_rm(-2),
        lambda: cache.seq_cp(0, 5),
        lambda: cache.seq_cp(-1, 0),
        lambda: cache.seq_keep(-1),
        lambda: cache.seq_pos_max(2),
        lambda: cache.seq_pos_min(-1),
        lambda: cache.seq_add(2, 0, -1, 1),
        lambda: cache.seq_add(0, 0, -1, 2**31),
        lambda: cache.seq_div(0, 0, -1, 0),
        lambda: cache.seq_div(0, 0, -1, -1),
    ):
        with pytest.raises(ParameterError, match="must lie in"):
            call()
    assert cache.seq_rm(-1) is True


def test_full_says_how_much() -> None:
    cache = KVCache(SMALL, 16)
    with pytest.raises(CacheFull, match="larger n_ctx") as caught:
        cache.require_free(17)
    assert (caught.value.needed, caught.value.free) == (17, 16)


def test_without_rotation_positions_stay() -> None:
    cache = KVCache(SMALL, 16)
    assert not cache.can_shift()
    with pytest.raises(CannotShift):
        cache.seq_add(0, 0, -1, 1)
    with pytest.raises(CannotShift):
        cache.seq_div(0, 0, -1, 2)
