"""The feed-forward layer without a gate: down(f(up(x)))."""

from __future__ import annotations

import torch

from aleator.models.layers.activations import activation
from aleator.models.layers.linear import Linear


class Ungated:
    """Two matrices with an activation between them.

    Attributes:
        up: to the inner width.
        down: back to the width.
        kind: the activation, see :func:`~aleator.models.layers.activations.activation`.
    """

    __slots__ = ("down", "kind", "up")

    def __init__(self, up: Linear, down: Linear, kind: str) -> None:
        self.up, self.down, self.kind = up, down, kind

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, n_embd] -> [T, n_embd]."""
        return self.down(activation(self.kind, self.up(x)))
