"""What all ways of storing have in common."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from aleator.cache import KVCache, LayerShape
from aleator.cache.devices import CPU
from aleator.cache.storage.storage import Storage
from aleator.core.errors import ParameterError

BLOCKS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
SHAPES = [(2, 64), (1, 32), (3, 64)]
KINDS = [
    ("f32", "token"),
    ("f16", "token"),
    ("bf16", "token"),
    *((kind, "token") for kind in BLOCKS),
]
KINDS += [("f32", "channel"), ("f16", "channel"), ("bf16", "channel")]
TOLERANCE = {"f32": 0, "f16": 2e-3, "bf16": 2e-2, "q8_0": 0.02, "q5_1": 0.3, "q5_0": 0.3}


def make(kind: str, layout: str, shapes: list[tuple[int, int]] = SHAPES) -> Storage:
    return Storage("type_v", kind, shapes, 10, [CPU] * len(shapes), layout=layout)


@pytest.mark.parametrize(("kind", "layout"), KINDS)
@pytest.mark.parametrize("uniform", [False, True])
def test_write_read_take_put_copy(kind: str, layout: str, uniform: bool) -> None:
    shapes = [(2, 64)] * 3 if uniform else SHAPES
    side = make(kind, layout, shapes)
    assert side.rotation == (64 if uniform and kind in BLOCKS else 0)
    before = side.addresses()
    rng = np.random.default_rng(1)
    row = np.arange(3, 7)
    scattered = np.array([9, 0, 2])
    for layer, (heads, dim) in enumerate(shapes):
        part = side.parts[layer]
        x = rng.standard_normal((4, heads, dim)).astype(np.float32)
        part.write(row, x)
        close: dict[str, Any] = {"atol": TOLERANCE.get(kind, 0.5), "rtol": 0}
        np.testing.assert_allclose(part.read(row), x, **close)
        assert np.array_equal(part.bytes_of(row).size, 4 * part.row_bytes)
        part.write(scattered, x[:3])
        assert np.array_equal(part.read(scattered), part.read(row[:3]))
        assert not part.read(np.array([1])).any()
        taken = part.take(scattered)
        part.put(np.array([1, 8, 7]), taken)
        assert list(taken.shape) == part.taken_shape(3)
        assert np.array_equal(part.read(np.array([1, 8, 7])), part.read(scattered))
        call, *arguments = part.put_back(scattered)
        part.zero(scattered)
        assert not part.read(scattered).any()
        call(*arguments)
        assert np.array_equal(part.read(scattered), part.read(row[:3]))
        encoded = part.encoded(x)
        if not part.by_channel:
            assert np.array_equal(encoded, part.bytes_of(row))
        part.put_bytes(row, part.bytes_of(row))
        np.testing.assert_allclose(part.read(row), x, **close)
    every = np.arange(10)
    rows = [side.parts[i].read(every) for i in range(3)]
    side.copy(np.array([3, 4, 5]), np.array([4, 5, 3]))  # a cycle
    for i in range(3):
        expected = rows[i].copy()
        expected[[4, 5, 3]] = rows[i][[3, 4, 5]]
        assert np.array_equal(side.parts[i].read(every), expected)
    assert side.addresses() == before
    assert side.nbytes == 10 * sum(side.parts[i].row_bytes for i in range(3))
    side.zero()
    assert not any(t.any() for t in side.layers)


@pytest.mark.parametrize(("k", "v"), list(product(("f32", *BLOCKS), ("f16", "q8_0", "q4_0"))))
def test_bytes_for_is_what_is_allocated(k: str, v: str) -> None:
    shapes = [LayerShape(2, 64, 32), LayerShape(1, 96, 64)]
    cache = KVCache(shapes, 7, type_k=k, type_v=v)
    got = cache.keys.nbytes, cache.values.nbytes
    assert got == KVCache.bytes_for(shapes, 7, k, v)
    blocks = {"q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18, "iq4_nl": 18}
    per = {"f32": 4, "f16": 2} | {name: size / 32 for name, size in blocks.items()}
    assert got == (7 * (128 + 96) * per[k], 7 * (64 + 64) * per[v])


def test_heads_that_fill_no_blocks_are_refused_by_name() -> None:
    shapes = [LayerShape(4, 64, 64), LayerShape(4, 80, 48)]
    for parameter, dim in (("type_k", 80), ("type_v", 48)):
        types: dict[str, Any] = {parameter: "q8_0"}
        match = rf"{parameter}=q8_0 .* layer 1 has {dim} per head, not a multiple: use f32"
        with pytest.raises(ParameterError, match=match) as caught:
            KVCache(shapes, 8, **types)
        assert caught.value.parameter == parameter
        with pytest.raises(ParameterError, match=match):
            KVCache.bytes_for(shapes, 8, **types)


def test_layouts_that_cannot_be() -> None:
    shapes = [LayerShape(1, 64, 64)]
    with pytest.raises(ParameterError, match="v_layout='channel' cannot hold type_v=q4_0"):
        KVCache(shapes, 8, type_v="q4_0", v_layout="channel")
    with pytest.raises(ParameterError, match="v_layout must be token or channel"):
        KVCache(shapes, 8, v_layout="rows")
    with pytest.raises(ParameterError, match="must be one of rotated, raw"):
        KVCache(shapes, 8, k_storage="plain")
    with pytest.raises(ParameterError, match="2 devices for 1 layers"):
        KVCache(shapes, 8, device=["cpu", "cpu"])
