"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and its context extensions.

Style "norm" rotates channels (2i, 2i + 1), "neox" channels (i, i + dim / 2).  Frequencies follow
ggml's formulas: linear scaling, YaRN (Peng et al. 2023, arXiv:2309.00071), per-pair divisors
(Llama 3).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from aleator.models.config import RopeConfig

TABLE_ROWS = 1 << 15


def frequencies(
    rope: RopeConfig, divisors: npt.NDArray[np.float64] | None = None
) -> tuple[npt.NDArray[np.float64], float]:
    """How fast each pair of channels rotates.

    Args:
        rope: the model's rotary embedding.
        divisors: the file's own, float64 [dim / 2]; None: those of ``rope``.

    Returns:
        Radians per position, float64 [dim / 2], and what the rotation multiplies lengths by.
    """
    pairs = np.arange(rope.dim // 2)
    if rope.style == "none":
        return np.zeros(len(pairs)), 1.0
    plain = rope.theta ** (-pairs * 2.0 / rope.dim)
    if divisors is not None:
        plain = plain / divisors
    elif rope.scaling == "llama3":
        plain = plain / _llama3_divisors(rope, plain)
    if rope.scaling == "linear":
        return plain / rope.factor, rope.attn_factor
    if rope.scaling != "yarn":
        return plain, rope.attn_factor
    # Pairs that rotate more than beta_fast times within the original context keep their frequency,
    # those that rotate less than beta_slow times are interpolated, those between are mixed.
    low = max(0.0, math.floor(_pair_that_rotates(rope, rope.beta_fast)))
    high = min(rope.dim - 1.0, math.ceil(_pair_that_rotates(rope, rope.beta_slow)))
    ramp = np.clip((pairs - low) / max(0.001, high - low), 0.0, 1.0)
    mixed = plain / rope.factor * ramp + plain * (1.0 - ramp)
    return mixed, rope.attn_factor * (1.0 + 0.1 * math.log(rope.factor))


def _pair_that_rotates(rope: RopeConfig, times: float) -> float:
    """The (fractional) pair that rotates ``times`` times within the original context."""
    wavelength = rope.original_context / (times * 2 * math.pi)
    return rope.dim * math.log(wavelength) / (2 * math.log(rope.theta))


def _llama3_divisors(rope: RopeConfig, plain: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Llama 3.1's scaling: low frequencies are divided by the factor, high ones kept."""
    turns = rope.original_context * plain / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - kept) / rope.factor + kept)


class Rotary:
    """Rotates queries and keys by their positions.

    Channels from ``dim`` on are left as they are.  Angles are float64, used as float32.

    Attributes:
        frequencies: radians per position of each pair, float64 [dim / 2].
        magnitude: what a rotation multiplies lengths by.
        dim: rotated channels of a head.
        interleaved: neighbouring channels are a pair, else those half of ``dim`` apart.
    """

    def __init__(
        self,
        rope: RopeConfig,
        device: torch.device,
        divisors: npt.NDArray[np.float64] | None = None,
    ) -> None:
        self.frequencies, self.magnitude = frequencies(rope, divisors)
        self.dim = rope.dim
        self.interleaved = rope.style == "norm"
        self._frequencies = torch.from_numpy(self.frequencies).to(device)
        self._table = torch.empty(0, 1, self.dim // 2, dtype=torch.complex64, device=device)

    def angles(self, positions: torch.Tensor, highest: int) -> torch.Tensor:
        """exp(i angle) of every pair.

        Args:
            positions: integers [T].
            highest: none is higher.

        Returns:
            complex64 [T, 1, dim / 2].
        """
        if highest >= TABLE_ROWS:
            return self._polar(positions, self.magnitude)
        if highest >= len(self._table):
            rows = torch.arange(max(1024, 1 << highest.bit_length()), device=positions.device)
            self._table = self._polar(rows, self.magnitude)
        return self._table.index_select(0, positions)

    def _polar(self, positions: torch.Tensor, magnitude: float) -> torch.Tensor:
        angle = positions.to(torch.float64)[:, None, None] * self._frequencies
        return torch.polar(torch.full_like(angle, magnitude), angle).to(torch.complex64)

    def rotate(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Rotate queries or keys in place.

        Args:
            x: float32 [T, heads, head_dim].
            angles: what :meth:`angles` gives for their positions.

        Returns:
            ``x``.
        """
        part = x if x.shape[-1] == self.dim else x[..., : self.dim]
        if self.interleaved:
            torch.view_as_complex(part.view(*part.shape[:-1], -1, 2)).mul_(angles)
            return x
        pairs = part.view(*part.shape[:-1], 2, -1)
        turned = torch.complex(pairs[..., 0, :], pairs[..., 1, :]).mul_(angles)
        pairs.copy_(torch.view_as_real(turned).transpose(-1, -2))
        return x

    def magnitude_over(self, head_dim: int) -> torch.Tensor:
        """What a rotation multiplies each channel's length by: float32 [head_dim]."""
        factors = torch.ones(head_dim, device=self._table.device)
        factors[: self.dim] = self.magnitude
        return factors

    def shift(self, keys: torch.Tensor, deltas: torch.Tensor) -> torch.Tensor:
        """Rotate stored keys further, in place; their lengths stay, for they carry the magnitude already.

        Args:
            keys: float32 [n, G, head_dim].
            deltas: int64 [n], positions to rotate by.

        Returns:
            ``keys``.
        """
        return self.rotate(keys, self._polar(deltas, 1.0))
