"""A decoder in Triton over its cache: the native form's bits, on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from aleator.models.decoder import Progress
from aleator.models.kernels.rotation import rotate, turn
from aleator.models.placement import Place
from aleator.models.torch_decoder import TorchDecoder
from aleator.models.triton_ops import TritonEmbedding, TritonLinear, TritonWeights

if TYPE_CHECKING:
    from aleator.models.weights import Weights


class TritonDecoder(TorchDecoder):
    """A decoder whose layers compute with Triton's kernels, on weights as they are stored."""

    source = TritonWeights

    def __init__(
        self, weights: Weights, places: Sequence[Place], progress: Progress | None = None
    ) -> None:
        super().__init__(weights, places, progress)
        if weights.config.tied and isinstance(self.embedding, TritonEmbedding):
            self.head = TritonLinear([self.embedding.rows])

    def _shifted(self, layer: int, keys: Any, deltas: Any, *, windowed: bool) -> Any:
        """Stored keys rotated further, with native bits."""
        if not isinstance(keys, torch.Tensor) or not self._rotates(layer, windowed):
            return super()._shifted(layer, keys, deltas, windowed=windowed)
        rotation = self.window_rotation if windowed else self.rotation
        by = np.asarray(torch.as_tensor(deltas).cpu(), np.int32)
        return rotate(keys, turn(rotation, by, 1.0, keys.device))
