"""Host arrays in one block of a device's memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

K = TypeVar("K", bound=Hashable)
_APART = 16  # alignment of a place, in bytes
_TYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}


class Packed(Generic[K]):
    """Arrays of int32, int64 or float32 by name; only their sizes determine their places in the block."""

    def __init__(self, arrays: Mapping[K, npt.NDArray[Any]]) -> None:
        self._arrays, self._begins, self.size = arrays, list[int](), 0
        for each in arrays.values():
            self._begins.append(self.size)
            self.size += -(-each.nbytes // _APART) * _APART

    def on(self, device: torch.device, into: torch.Tensor | None = None) -> dict[K, torch.Tensor]:
        """Copy them, without waiting for the device; ``into``: uint8, the block of an earlier call."""
        pinned = device.type == "cuda"
        flat = torch.empty(self.size, dtype=torch.uint8, pin_memory=pinned)
        to = flat.numpy()
        begins = list(zip(self._arrays.items(), self._begins, strict=True))
        for (_, each), begin in begins:
            to[begin : begin + each.nbytes] = np.ascontiguousarray(each).reshape(-1).view(np.uint8)
        block = flat.to(device, non_blocking=pinned) if into is None else into
        if into is not None:
            into.copy_(flat, non_blocking=pinned)
        return {
            name: block[begin : begin + each.nbytes].view(_TYPES[each.dtype]).view(each.shape)
            for (name, each), begin in begins
        }
