"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and its context extensions.

Style "norm" rotates channels (2i, 2i + 1), "neox" channels (i, i + dim / 2).
"""

from __future__ import annotations

import numpy as np
import torch

from aleator.models.layers.rotation import Rotation

TABLE_ROWS = 1 << 15


class Rotary:
    """Rotates queries and keys by their positions.

    Channels before ``offset`` and from ``offset + dim`` on are left as they are.
    Angles are float64, used as float32.

    Attributes:
        rotation: the same, as native code takes it.
        magnitude: the factor of lengths in a rotation.
        table: the rotations of the first positions, replaced by a larger one when it is needed.
    """

    def __init__(self, rotation: Rotation, device: torch.device) -> None:
        self.rotation = rotation
        self.magnitude = rotation.magnitude
        self._channels = rotation.dim, rotation.offset, rotation.interleaved
        self._frequencies = torch.from_numpy(rotation.frequencies).to(device)
        self.table = torch.empty(0, 1, rotation.dim // 2, dtype=torch.complex64, device=device)

    def angles(self, positions: torch.Tensor, highest: int) -> torch.Tensor:
        """exp(i angle) of every pair at positions [T], none above ``highest``: complex64 [T, 1, dim / 2]."""
        if highest >= TABLE_ROWS:
            return self._polar(positions, self.magnitude)
        if highest >= len(self.table):
            rows = max(1024, 1 << highest.bit_length())
            self.table = self._native(rows).to(positions.device)
        return self.table.index_select(0, positions)

    def _native(self, rows: int) -> torch.Tensor:
        """The rotations of the first positions, as native decoders compute them."""
        table = self.rotation.angles(np.arange(rows, dtype=np.int32), self.magnitude)
        return torch.view_as_complex(torch.from_numpy(table)).unsqueeze(1)

    def _polar(self, positions: torch.Tensor, magnitude: float) -> torch.Tensor:
        angle = positions.to(torch.float64)[:, None, None] * self._frequencies.to(positions.device)
        return torch.polar(torch.full_like(angle, magnitude), angle).to(torch.complex64)

    def rotate(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Rotate queries or keys, float32 [T, heads, head_dim], in place by the result of :meth:`angles`."""
        dim, offset, interleaved = self._channels
        part = x if x.shape[-1] == dim else x[..., offset : offset + dim]
        if interleaved and offset:
            pairs = part.reshape(*part.shape[:-1], -1, 2)
            turned = torch.view_as_complex(pairs.contiguous()).mul(angles)
            part.copy_(torch.view_as_real(turned).reshape(part.shape))
            return x
        if interleaved:
            torch.view_as_complex(part.view(*part.shape[:-1], -1, 2)).mul_(angles)
            return x
        pairs = part.view(*part.shape[:-1], 2, -1)
        turned = torch.complex(pairs[..., 0, :], pairs[..., 1, :]).mul_(angles)
        pairs.copy_(torch.view_as_real(turned).transpose(-1, -2))
        return x

    def magnitude_over(self, head_dim: int) -> torch.Tensor:
        """The factor of each channel's length in a rotation: float32 [head_dim]."""
        factors = torch.ones(head_dim, dtype=torch.float32, device=self.table.device)
        dim, offset, _ = self._channels
        factors[offset : offset + dim] = self.magnitude
        return factors

    def shift(self, keys: torch.Tensor, deltas: torch.Tensor) -> torch.Tensor:
        """Rotate stored keys by ``deltas``, see :meth:`Rotation.shift`."""
        return self.rotate(keys, self._polar(deltas, 1.0))
