"""A decoder in Triton over its cache: the native form's bits, on a device."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from aleator.cache.pools.pool import Pool
from aleator.cache.storage.tensors import current
from aleator.models.decoder import Decoder, Progress
from aleator.models.kernels.rotation import rotate, rotation_angles
from aleator.models.native_decoder import NativeDecoder
from aleator.models.placement import EXACT, Place
from aleator.models.torch_decoder import TorchDecoder
from aleator.models.triton_ops import TritonEmbedding, TritonLinear, TritonWeights
from aleator.models.triton_step import TritonStep

if TYPE_CHECKING:
    from aleator.models.weights import Weights


class TritonDecoder(TorchDecoder):
    """A decoder whose layers compute with Triton's kernels, on weights as they are stored.

    Attributes:
        front: computes the layers before the device's, with the same bits; None: there are none.
    """

    source = TritonWeights

    def __init__(
        self, weights: Weights, places: Sequence[Place], progress: Progress | None = None
    ) -> None:
        first = sum(place.dtype != EXACT for place in places)
        self.front: Decoder | None = None
        if first:
            self.front = NativeDecoder(weights, progress, first).hidden()
        super().__init__(weights, places, progress, first)
        if weights.config.tied and isinstance(self.embedding, TritonEmbedding):
            self.head = TritonLinear([self.embedding.rows])

    def use_rotations(self) -> None:
        super().use_rotations()
        if self.front is not None:
            self.front = copy.copy(self.front)
            self.front.rotation, self.front.window_rotation = self.rotation, self.window_rotation

    def over(self, pool: Pool, fused: bool = True) -> TritonStep:
        return TritonStep(self, None if self.front is None else self.front.over(pool))

    def shift_keys(self, layer: int, keys: Any, deltas: Any, windowed: bool = False) -> Any:
        """Stored keys rotated further, with native bits."""
        if not isinstance(keys, torch.Tensor) or not self._rotates(layer, windowed):
            return super().shift_keys(layer, keys, deltas, windowed)
        rotation = self.window_rotation if windowed else self.rotation
        by = np.asarray(torch.as_tensor(deltas).cpu(), np.int32)
        with current(keys.device):
            return rotate(keys, rotation_angles(rotation, by, 1.0, keys.device))
