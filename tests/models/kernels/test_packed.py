"""Host arrays in one block of memory: their places, and what is read there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

import torch

from aleator.models.triton.inputs import Packed

CPU = torch.device("cpu")


def test_arrays_begin_at_multiples_of_16_bytes() -> None:
    arrays: dict[str, Any] = {
        "a": np.arange(5, dtype=np.int32), "b": np.zeros((0, 3), np.float32),
        "c": np.arange(8, dtype=np.int64).reshape(2, 4).T, "d": np.arange(4, dtype=np.float32).reshape(2, 2),
    }  # fmt: skip
    packed = Packed(arrays)
    assert packed.size == 32 + 64 + 16
    block = torch.full((packed.size,), 99, dtype=torch.uint8)
    made = packed.on(CPU, block)
    for name, each in arrays.items():
        assert made[name].dtype == torch.from_numpy(each).dtype
        assert np.array_equal(made[name].numpy(), each)
        assert np.array_equal(packed.on(CPU)[name].numpy(), each)
    begins = [made[name].data_ptr() - block.data_ptr() for name in "acd"]
    assert begins == [0, 32, 96]
