"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) as native code takes it, and for stored keys.

Style "norm" rotates channels (2i, 2i + 1), "neox" channels (i, i + dim / 2).

Frequencies follow ggml's formulas: linear scaling, YaRN (Peng et al. 2023, arXiv:2309.00071), per-pair
divisors (Llama 3).  Powers and logarithms are computed in decimal arithmetic and rounded once, so that every
machine gets the same float64 numbers; C libraries differ.  The size of the context chooses between two tables,
as in llama.cpp, so that all keys of a sequence are rotated alike.  transformers chooses by the sequence's
length; the logits are the same in a context of at most the original length.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal

import numpy as np

import aleator._native as _native
from aleator.core.arrays import Doubles, Floats, Int32s, Int64s
from aleator.models.config import RopeConfig

_EXACT = Context(prec=50)


def frequencies(
    rope: RopeConfig, divisors: Doubles | None = None, n_ctx: int = 0
) -> tuple[Doubles, float]:
    """How fast each pair of channels rotates.

    Args:
        rope: the model's rotary embedding.
        divisors: the file's own, float64 [dim / 2]; None: those of ``rope``.
        n_ctx: positions of the context, for dynamic scaling.

    Returns:
        Radians per position, float64 [dim / 2], and the factor of lengths in the rotation.
    """
    pairs = np.arange(rope.dim // 2)
    if rope.style == "none":
        return np.zeros(len(pairs)), 1.0
    theta = rope.theta
    if rope.scaling == "dynamic" and n_ctx > rope.original_context:
        theta = _grown(rope, n_ctx)
    plain = _powers(theta, rope.dim)
    if divisors is not None:
        plain = plain / divisors
    elif rope.scaling == "llama3":
        plain = plain / _llama3_divisors(rope, plain)
    if rope.scaling == "linear":
        return plain / rope.factor, rope.attn_factor
    if rope.scaling == "proportional":
        if divisors is None:
            plain[rope.n_rotated :] = 0.0
        return plain / rope.factor, rope.attn_factor
    if rope.scaling != "yarn":
        return plain, rope.attn_factor
    # Pairs that rotate more than beta_fast times within the original context keep their frequency,
    # those that rotate less than beta_slow times are interpolated, those between are mixed.
    low, high = (_pair_that_rotates(rope, beta) for beta in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(0.0, low), min(rope.dim - 1.0, high)
    ramp = np.clip((pairs - low) / max(0.001, high - low), 0.0, 1.0)
    mixed = plain / rope.factor * ramp + plain * (1.0 - ramp)
    return mixed, rope.attn_factor * (1.0 + 0.1 * logarithm(rope.factor))


def _grown(rope: RopeConfig, n_ctx: int) -> float:
    """The base of a context longer than the one that the model was trained with (NTK-aware scaling)."""
    growth = rope.factor * n_ctx / rope.original_context - (rope.factor - 1.0)
    power = _EXACT.divide(Decimal(rope.dim), Decimal(rope.dim - 2))
    return float(Decimal(rope.theta) * _EXACT.power(Decimal(growth), power))


def _powers(theta: float, dim: int) -> Doubles:
    """``theta`` to the powers 0, -2 / dim, -4 / dim, ..., each rounded once: [dim / 2]."""
    base, whole = Decimal(theta), Decimal(dim)
    powers = (_EXACT.power(base, _EXACT.divide(Decimal(-2 * i), whole)) for i in range(dim // 2))
    return np.array([float(power) for power in powers])


def logarithm(x: float) -> float:
    """The natural logarithm, rounded once."""
    return float(_EXACT.ln(Decimal(x)))


def _pair_that_rotates(rope: RopeConfig, times: float) -> float:
    """The (fractional) pair that rotates ``times`` times within the original context."""
    wavelength = rope.original_context / (times * 2 * math.pi)
    return rope.dim * logarithm(wavelength) / (2 * logarithm(rope.theta))


def llama3_divisors(rope: RopeConfig) -> Doubles:
    """The divisors of the frequencies of each pair in Llama 3.1's scaling: [dim / 2]."""
    return _llama3_divisors(rope, _powers(rope.theta, rope.dim))


def _llama3_divisors(rope: RopeConfig, plain: Doubles) -> Doubles:
    """Llama 3.1's scaling: low frequencies are divided by the factor, high ones kept."""
    turns = rope.original_context * plain / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - kept) / rope.factor + kept)


class Rotation:
    """How positions rotate queries and keys.

    Channels before ``offset`` and from ``offset + dim`` on are left as they are.

    Attributes:
        frequencies: radians per position of each pair, float64 [dim / 2].
        magnitude: the factor of lengths in a rotation.
        dim: rotated channels of a head.
        offset: channels before them.
        interleaved: neighbouring channels are a pair, else those half of ``dim`` apart.
    """

    def __init__(
        self,
        rope: RopeConfig,
        divisors: Doubles | None = None,
        n_ctx: int = 0,
    ) -> None:
        """Compute the frequencies, see :func:`frequencies`."""
        self.frequencies, self.magnitude = frequencies(rope, divisors, n_ctx)
        self.dim, self.offset = rope.dim, rope.offset
        self.interleaved = rope.style == "norm"

    def angles(self, positions: Int32s, magnitude: float) -> Floats:
        """Cosine and sine of each pair's angle times ``magnitude``: float32 [n, dim / 2, 2]."""
        made = np.empty((len(positions), len(self.frequencies), 2), np.float32)
        _native.rotary_angles(self.frequencies, positions, magnitude, made)
        return made

    def shift(self, keys: Floats, deltas: Int64s) -> Floats:
        """Rotate stored keys [n, G, head_dim] further by ``deltas`` [n], in place.

        Their lengths stay, as they already include the magnitude.
        """
        angles = self.angles(deltas.astype(np.int32), 1.0)
        if self.offset == 0:
            _native.rotate_heads(keys, angles, self.interleaved)
            return keys
        part = np.ascontiguousarray(keys[..., self.offset :])
        _native.rotate_heads(part, angles, self.interleaved)
        keys[..., self.offset :] = part
        return keys
