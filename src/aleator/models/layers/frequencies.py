"""How fast the channels of a rotary position embedding rotate.

Frequencies follow ggml's formulas: linear scaling, YaRN (Peng et al. 2023, arXiv:2309.00071), per-pair
divisors (Llama 3).  Powers and logarithms are taken in decimal arithmetic and rounded once, so that every
machine gets the same float64 numbers; a C library's may differ from another's.  The size of the context chooses
between two tables, as in llama.cpp, so that a text's keys are all rotated alike.  transformers goes by the
text's length; a context of at most the original length gives its logits.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from aleator.models.config import RopeConfig

Doubles = npt.NDArray[np.float64]

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
        Radians per position, float64 [dim / 2], and what the rotation multiplies lengths by.
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


def _llama3_divisors(rope: RopeConfig, plain: Doubles) -> Doubles:
    """Llama 3.1's scaling: low frequencies are divided by the factor, high ones kept."""
    turns = rope.original_context * plain / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - kept) / rope.factor + kept)
