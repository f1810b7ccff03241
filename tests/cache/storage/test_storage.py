"""What all ways of storing have in common."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from aleator.cache import KVCache, LayerShape
from aleator.cache.devices import CPU
from aleator.cache.rows.rows import Rows, unbroken
from aleator.cache.storage.layer import TYPES, encoded_rows, zeros
from aleator.cache.storage.storage import Storage, side_bytes
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
    before = [part.address for part in side.parts]
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
    for part in side.parts:
        part.put(np.array([4, 5, 3]), part.take(np.array([3, 4, 5])))  # a cycle
    for i in range(3):
        expected = rows[i].copy()
        expected[[4, 5, 3]] = rows[i][[3, 4, 5]]
        assert np.array_equal(side.parts[i].read(every), expected)
    assert [part.address for part in side.parts] == before
    assert side.nbytes == 10 * sum(side.parts[i].row_bytes for i in range(3))
    for part in side.parts:
        part.zero()
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
    with pytest.raises(ValueError, match="zip"):
        Storage("type_k", "f32", [(1, 64)] * 2, 8, [CPU])
    with pytest.raises(ParameterError, match="2 devices for 1 layers"):
        KVCache(shapes, 8, device=["cpu", "cpu"])


@pytest.mark.parametrize("kind", TYPES)
def test_what_is_not_finite_is_found_in_any_place(kind: str) -> None:
    type_ = TYPES[kind]
    rows = encoded_rows(type_, 0, np.ones((3, 64), np.float32))
    assert type_.is_finite(rows)
    wide = {"f32": 4}.get(kind, 2)
    bits = {"f32": 0x7F800000, "bf16": 0x7F80}.get(kind, 0x7C00)
    for block in range(0, rows.size, type_.block_bytes):
        for scale in type_.scales:
            for number, sound in ((bits, False), (bits | 1, False), (bits >> 1, True)):
                damaged = rows.copy()
                at = block + scale
                damaged.reshape(-1)[at : at + wide] = list(number.to_bytes(wide, "little"))
                assert type_.is_finite(damaged) == sound


def test_sizes_of_types() -> None:
    known = {name: (t.ggml, t.block, t.block_bytes, t.scales) for name, t in TYPES.items()}
    assert known == {
        "f32": (0, 1, 4, (0,)),
        "f16": (1, 1, 2, (0,)),
        "bf16": (30, 1, 2, (0,)),
        "q8_0": (8, 32, 34, (0,)),
        "q5_1": (7, 32, 24, (0, 2)),
        "q5_0": (6, 32, 22, (0,)),
        "q4_1": (3, 32, 20, (0, 2)),
        "q4_0": (2, 32, 18, (0,)),
        "iq4_nl": (20, 32, 18, (0,)),
    }
    assert TYPES["q4_1"].bytes(96) == 60
    assert side_bytes("type_k", "q4_1", [(2, 32), (1, 64)], 5) == 5 * (40 + 40)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
def test_memory_begins_at_a_line_of_the_processors_cache(n: int) -> None:
    for _ in range(20):
        made = zeros(n)
        assert (len(made), made.ctypes.data % 64, made.sum()) == (n, 0, 0)


def test_indices_without_gaps_are_a_slice() -> None:
    for n in range(5):
        for index in permutations(range(3, 9), n):
            ascending = n > 0 and list(index) == list(range(index[0], index[0] + n))
            expected = slice(index[0], index[0] + n) if ascending else None
            assert unbroken(np.array(index, np.int64)) == expected


@pytest.mark.parametrize(
    ("kind", "layout"), [("f32", "token"), ("f16", "channel"), ("q8_0", "token")]
)
@pytest.mark.parametrize("shapes", [[], SHAPES, [(1, 32), (1, 0)]])
def test_rows_of_all_layers_are_taken_put_and_zeroed(
    kind: str, layout: str, shapes: list[tuple[int, int]]
) -> None:
    layers = [LayerShape(heads, dim or 32, dim) for heads, dim in shapes]
    types = {"type_k": "f16" if layout == "channel" else kind, "type_v": kind}
    made: Any = {**types, "v_layout": layout, "k_storage": "rotated", "hadamard": True}
    rows = Rows(layers, 10, [CPU] * len(layers), rotate=None, **made)
    rng, cells = np.random.default_rng(1), np.array([7, 2, 4])
    block = np.frombuffer(rng.bytes(len(cells) * rows.row_bytes), np.uint8)
    rows.put(cells, block)
    assert bytes(rows.taken(cells)) == bytes(block)
    rows.put(np.array([9, 0]), block, first=1)
    assert bytes(rows.taken(np.array([7, 9, 0]))) == bytes(block)
    rows.key_positions[:] = range(10)
    rows.copy(np.array([7, 9]), np.array([9, 1]))
    assert bytes(rows.taken(np.array([9, 1, 0]))) == bytes(rows.taken(np.array([7, 2, 4])))
    assert rows.key_positions[[9, 1]].tolist() == [7, 9]
    left = bytes(rows.taken(np.array([1])))
    rows.zero(np.array([i for i in range(10) if i != 1]))
    assert bytes(rows.taken(np.array([1]))) == left
    assert not rows.taken(np.array([0, 9])).any()
    rows.zero(np.arange(10))
    assert not rows.taken(np.arange(10)).any()


@pytest.mark.parametrize("hadamard", [True, False])
def test_keys_are_rotated_in_larger_blocks_than_values(hadamard: bool) -> None:
    made: Any = {"type_k": "q8_0", "type_v": "q4_0", "v_layout": "token", "k_storage": "rotated"}
    layers = [LayerShape(2, 128, 128)]
    rows = Rows(layers, 4, [CPU], rotate=None, hadamard=hadamard, **made)
    assert (rows.keys.rotation, rows.values.rotation) == ((128, 64) if hadamard else (0, 0))
    plain = Rows(layers, 4, [CPU], rotate=None, hadamard=True, **made | {"type_k": "f16"})
    assert plain.keys.rotation == 0
    cache = KVCache(layers, 4, type_k="q8_0", type_v="q4_0")
    assert (cache.keys.rotation, cache.values.rotation) == (128, 64)
