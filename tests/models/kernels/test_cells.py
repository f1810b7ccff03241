"""Keys and values as they are stored, in Triton under its interpreter: native bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from aleator import _native
from aleator.cache.storage.layer import TYPES, HostLayer, LayerFormat
from aleator.core.threads import pool as thread_pool
from aleator.models.kernels import cells
from tests.models.kernels.test_attention import same

# Halfway between two numbers of 16 bits, and beside that.
HALFWAY = np.array(
    [0x3F808000, 0x3F818000, 0xBF808000, 0xBF818000, 0x3F807FFF, 0x3F808001, 0x7F7F8000, 0x3F801000, 0x3F803000,
     0xBF801000, 0x00008000, 0x33000000, 0x33000001, 0x477FF000], np.uint32,
).view(np.float32)  # fmt: skip


def steps(extremes: list[float]) -> npt.NDArray[np.float32]:
    """A block of 32 numbers whose scale is 1: halves of steps between the extremes, and beside them."""
    low, high = min(0.0, *extremes), max(0.0, *extremes)
    halves: npt.NDArray[np.float32] = np.clip(np.arange(-16, 16) + 0.5, low, high).astype(
        np.float32
    )
    halves[::3] = np.nextafter(halves[::3], np.float32(0))
    halves[: len(extremes)] = extremes
    return halves


SPECIAL = [0.0, -0.0, 1e-45, -1e-40, 65504.0, -7e4, 3e38, -3e38, 1.5, -2.5, 1e-8, 0.49999997]


@pytest.mark.parametrize("rotation", [0, 32])
def test_stored_bytes_are_native(rotation: int) -> None:
    for kind in (each for each in TYPES if not rotation or TYPES[each].block > 1):
        compare_stored_bytes(kind, rotation)


def compare_stored_bytes(kind: str, rotation: int) -> None:
    rng = np.random.default_rng(5)
    layers = [HostLayer(LayerFormat(TYPES[kind], 3, 96, 40, False, rotation)) for _ in range(2)]
    at = rng.permutation(40)
    x = rng.standard_normal((40, 3, 96)).astype(np.float32)
    x[1], x[2] = 0.0, -0.0
    x[3:17] = rng.choice(np.array(SPECIAL, np.float32), x[3:17].shape)
    x[17:20] *= np.float32(1e-20)
    x[20:23] = rng.integers(-3, 4, x[20:23].shape)
    x[23, 0, :32], x[23, 0, 32:64] = 2.5, -2.5
    x[24].reshape(-1)[: len(HALFWAY)] = HALFWAY
    for i, extremes in enumerate(
        ([127], [-127], [8], [-8], [16], [-16], [0, 15], [15, 0], [0, 31])
    ):
        x[25].reshape(-1)[32 * i : 32 * i + 32] = steps([float(each) for each in extremes])
    if rotation:  # no infinity minus infinity
        x = np.clip(x, -1e30, 1e30)
    layers[0].write(at, x)
    for t in (slice(0, 1), slice(1, 3), slice(3, 6), slice(6, 23), slice(23, 40)):
        cells.store(layers[1], torch.from_numpy(at[t]), torch.from_numpy(x[t]))
    assert layers[0].bytes.tobytes() == layers[1].bytes.tobytes()
    gathered = cells.gathered(cells.side(layers[0]), torch.from_numpy(at)).numpy()
    stored = np.empty((40, 3 * 96), np.float32)
    rows = layers[0].rows
    assert rows is not None
    _native.load_rows(thread_pool(1), TYPES[kind].native, 0, rows, at, stored)
    assert same(gathered, stored)


def test_what_is_not_finite_reads_as_nan() -> None:
    for kind in TYPES:
        layers = [HostLayer(LayerFormat(TYPES[kind], 1, 32, 3)) for _ in range(2)]
        x = np.random.default_rng(1).standard_normal((3, 1, 32)).astype(np.float32)
        x[0, 0, 3], x[1, 0, 30], x[2, 0, 0] = np.nan, np.inf, -np.inf
        at = np.arange(3)
        layers[0].write(at, x)
        cells.store(layers[1], torch.from_numpy(at), torch.from_numpy(x))
        np.testing.assert_array_equal(layers[0].read(at), layers[1].read(at))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_values_by_channel_are_stored(kind: str) -> None:
    layers = [HostLayer(LayerFormat(TYPES[kind], 2, 13, 9, True)) for _ in range(2)]
    x = np.random.default_rng(2).standard_normal((4, 2, 13)).astype(np.float32)
    at = np.array([7, 0, 3, 8])
    layers[0].write(at, x)
    cells.store(layers[1], torch.from_numpy(at), torch.from_numpy(x))
    assert layers[0].bytes.tobytes() == layers[1].bytes.tobytes()
