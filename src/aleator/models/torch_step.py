"""A step in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from aleator.cache.devices import Device
from aleator.cache.storage.tensors import torch_device
from aleator.models.step import Inputs, Step

Forward = Callable[
    [Inputs, npt.NDArray[np.int32], Any, npt.NDArray[np.int64], bool],
    torch.Tensor,
]
"""``TorchDecoder.forward``."""


class TensorStep(Step):
    """A decoder in PyTorch over any cache.

    Args:
        forward: computes a micro-batch.
        fused: whether attention may use PyTorch's fused kernel.
    """

    def __init__(self, forward: Forward, fused: bool) -> None:
        self._forward, self._fused = forward, fused

    @torch.inference_mode()
    def run(
        self,
        inputs: Inputs,
        positions: npt.NDArray[np.int32],
        cells: Any,
        wanted: npt.NDArray[np.int64],
        n_threads: int | None = None,
    ) -> torch.Tensor:
        """See :class:`Step`; None leaves PyTorch's own number of threads."""
        if n_threads is not None and n_threads != torch.get_num_threads():
            torch.set_num_threads(n_threads)
        return self._forward(inputs, positions, cells, wanted, self._fused)

    @torch.inference_mode()
    def joined(
        self, parts: Sequence[Any], order: npt.NDArray[np.int64] | None, device: Device
    ) -> Any:
        """See :class:`Step`."""
        rows: torch.Tensor = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        if order is not None:
            rows = rows[torch.from_numpy(order).to(rows.device)]
        if device.type == "cpu":
            return rows.cpu().numpy()
        return rows.to(torch_device(device))
