"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) as native code takes it, and for stored keys.

Style "norm" rotates channels (2i, 2i + 1), "neox" channels (i, i + dim / 2).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import aleator._native as _native
from aleator.models.config import RopeConfig
from aleator.models.layers.frequencies import frequencies


class Rotation:
    """How positions rotate queries and keys.

    Channels before ``offset`` and from ``offset + dim`` on are left as they are.

    Attributes:
        frequencies: radians per position of each pair, float64 [dim / 2].
        magnitude: what a rotation multiplies lengths by.
        dim: rotated channels of a head.
        offset: channels before them.
        interleaved: neighbouring channels are a pair, else those half of ``dim`` apart.
    """

    def __init__(
        self,
        rope: RopeConfig,
        divisors: npt.NDArray[np.float64] | None = None,
        n_ctx: int = 0,
    ) -> None:
        """Compute the frequencies, see :func:`~aleator.models.layers.frequencies.frequencies`."""
        self.frequencies, self.magnitude = frequencies(rope, divisors, n_ctx)
        self.dim, self.offset = rope.dim, rope.offset
        self.interleaved = rope.style == "norm"

    def angles(self, positions: npt.NDArray[np.int32], magnitude: float) -> npt.NDArray[np.float32]:
        """Cosine and sine of each pair's angle times ``magnitude``: float32 [n, dim / 2, 2]."""
        made = np.empty((len(positions), len(self.frequencies), 2), np.float32)
        _native.rotary_angles(self.frequencies, positions, magnitude, made)
        return made

    def shift(
        self, keys: npt.NDArray[np.float32], deltas: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Rotate stored keys [n, G, head_dim] further by ``deltas`` [n], in place.

        Their lengths stay, for they carry the magnitude already.
        """
        angles = self.angles(deltas.astype(np.int32), 1.0)
        if self.offset == 0:
            _native.rotate_heads(keys, angles, self.interleaved)
            return keys
        part = np.ascontiguousarray(keys[..., self.offset :])
        _native.rotate_heads(part, angles, self.interleaved)
        keys[..., self.offset :] = part
        return keys
