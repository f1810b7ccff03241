"""Storage as torch's tensors gives what that of the host gives, and shares the host's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aleator.cache.devices import CPU
from aleator.cache.rows.rows import LayerShape, Rows
from aleator.cache.storage.layer import TYPES, HostLayer, LayerFormat, LayerStorage, StateArrays
from aleator.cache.storage.storage import Storage
from aleator.cache.storage.tensors import (
    TensorLayer,
    TensorStates,
    as_tensor,
    tensor_layers,
    torch_device,
)

KINDS = [(name, False) for name in TYPES] + [(name, True) for name in ("f32", "f16", "bf16")]
HEADS, DIM, CELLS = 2, 64, 10


def pair(kind: str, by_channel: bool) -> tuple[HostLayer, TensorLayer]:
    rotation = 64 if TYPES[kind].block > 1 else 0
    format = LayerFormat(TYPES[kind], HEADS, DIM, CELLS, by_channel, rotation)
    return HostLayer(format), TensorLayer.on(torch_device(CPU), format)


@pytest.mark.parametrize(("kind", "by_channel"), KINDS)
def test_blocks_of_a_prompt_have_the_same_bytes(kind: str, by_channel: bool) -> None:
    layout = "channel" if by_channel else "token"
    keys = "f16" if by_channel else kind
    shapes = [LayerShape(HEADS, DIM, DIM)] * 3
    options: dict[str, Any] = {"k_storage": "rotated", "hadamard": True}
    host, device = (
        Rows(
            shapes, CELLS, [CPU] * 3, type_k=keys, type_v=kind, v_layout=layout, rotate=None, **options,
        )
        for _ in range(2)
    )  # fmt: skip
    for side in (device.keys, device.values):
        side.parts = [TensorLayer.on(torch_device(CPU), part.format) for part in side.parts]
    assert device.row_bytes == host.row_bytes
    rng, cells = np.random.default_rng(1), np.array([7, 2, 3, 9])
    block = np.frombuffer(rng.bytes(len(cells) * host.row_bytes), np.uint8)
    for rows in (host, device):
        rows.put(cells, block)
        assert bytes(rows.taken(cells)) == bytes(block)
        rows.put(np.array([0, 1]), block, first=2)  # a part of it
    some = np.array([0, 1, 3, 9, 4])
    assert bytes(device.taken(some)) == bytes(host.taken(some))
    assert bytes(host.taken(some[:2])) == bytes(host.taken(some[2:4]))


@pytest.mark.parametrize(("kind", "by_channel"), KINDS)
def test_both_store_the_same(kind: str, by_channel: bool) -> None:
    host, tensors = pair(kind, by_channel)
    x = np.random.default_rng(0).standard_normal((4, HEADS, DIM)).astype(np.float32)
    cells, others = np.array([7, 0, 3, 4]), np.array([1, 2])
    host.write(cells, x)
    tensors.write(cells, torch.from_numpy(x))
    exact = TYPES[kind].block == 1
    every = np.arange(CELLS)
    a, b = host.bytes_of(every), tensors.bytes_of(every)
    assert a.shape == b.shape
    # Torch's sum of the Hadamard turn has another order, so a block's integer may be one off.
    assert (
        np.array_equal(a, b)
        if exact
        else np.allclose(host.read(cells), tensors.read(cells), atol=0.5)
    )
    assert host.nbytes == tensors.nbytes == a.size
    tensors.put_bytes(every, a)
    assert np.array_equal(tensors.bytes_of(every), a)
    np.testing.assert_allclose(tensors.read(cells), host.read(cells), atol=2e-6)
    assert np.array_equal(tensors.encoded(torch.from_numpy(x)), host.encoded(x))
    parts: list[LayerStorage[Any]] = [host, tensors]
    for part in parts:
        assert list(part.take(others).shape) == part.taken_shape(2)
        part.put(others, part.take(cells[:2]))
        call, *arguments = part.put_back(others)
        part.zero(others)
        assert not part.bytes_of(others).any()
        call(*arguments)
    assert np.array_equal(tensors.bytes_of(every), host.bytes_of(every))
    assert list(host.joined([host.read(cells)] * 3).shape) == [4, 3 * HEADS, DIM]
    assert list(tensors.joined([tensors.read(cells)] * 3).shape) == [4, 3 * HEADS, DIM]
    for part in parts:
        part.zero()
        assert not part.bytes_of(every).any()


@pytest.mark.parametrize("layout", ["token", "channel"])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "iq4_nl"])
def test_layers_in_torch_write_the_hosts_memory(kind: str, layout: str) -> None:
    if layout == "channel" and TYPES[kind].block > 1:
        pytest.skip("no blocks by channel")
    side = Storage("type_v", kind, [(HEADS, DIM)] * 2, CELLS, [CPU] * 2, layout=layout)
    shared = tensor_layers(side.parts)
    x = torch.randn(3, HEADS, DIM, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        shared[1].store(slice(2, 5), x)
    shared[1].store(torch.tensor([9, 8, 7]), x)
    assert np.array_equal(
        side.parts[1].read(np.arange(2, 5)), side.parts[1].read(np.array([9, 8, 7]))
    )
    same = Storage("type_v", kind, [(HEADS, DIM)] * 2, CELLS, [CPU] * 2, layout=layout)
    same.parts[1].write(np.arange(2, 5), x.numpy())
    assert np.array_equal(
        side.parts[1].bytes_of(np.arange(2, 5)), same.parts[1].bytes_of(np.arange(2, 5))
    )
    assert np.array_equal(
        shared[1].load(slice(2, 5)).float().numpy(), side.parts[1].read(np.arange(2, 5))
    )
    if TYPES[kind].block == 1:
        assert shared[1].address == side.parts[1].address


def test_states_are_the_same() -> None:
    values = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    found = []
    kinds: list[StateArrays] = [StateArrays(), TensorStates(torch_device(CPU))]
    for kind in kinds:
        array = kind.zeros((3, 3, 4))
        assert array.nbytes == 144
        array[[0, 2]] = kind.of_host(values)
        row = kind.row(array, 2)
        kind.zero(array, [2])
        grown = kind.grown(array, 5)
        assert kind.address(array) != kind.address(grown)
        found.append([np.asarray(row), kind.host(array, [2, 0]), kind.host(grown, [0, 4])])
        as_tensor(array)[1] = 7
        assert (kind.host(array, [1]) == 7).all()
    for a, b in zip(*found, strict=True):
        assert np.array_equal(a, b)
    assert np.array_equal(found[0][0], values[1])
