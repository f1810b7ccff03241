"""Elementary functions and sums of docs/numerics.md, part 2, inside Triton kernels.

Launch kernels that use them with :data:`EXACT`: every multiply and every add is then rounded by itself, and
fused operations are explicit.  Triton's ``/``, ``tl.sqrt``, ``tl.exp`` and ``tl.sum`` over floats are not used:
compiled, they are not correctly rounded or have no fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import triton
import triton.language as tl

EXACT: dict[str, Any] = {"enable_fp_fusion": False}
"""Options of every launch."""

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether kernels run under Triton's interpreter."""


def sized(interpreted: int, compiled: int) -> int:
    """A size of programs: under the interpreter few wide ones are fast."""
    return interpreted if INTERPRETED else compiled


@dataclass(frozen=True)
class Constants:
    """Constants that a kernel passes on to its functions: Triton 3.6 passes no tuple of constants on.

    Attributes:
        rows: tuples of one length; indices go through one after the other.
    """

    rows: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        row, column = divmod(i, len(self.rows[0]))
        return self.rows[row][column]


class Work(NamedTuple):
    """What programs do that may be those of another launch."""

    kind: str  # "heads" are finished, "convolution", "scan", or "route" tokens to experts
    programs: int
    count: int  # tokens, or chains of runs to convolve or scan
    arguments: tuple[Any, ...]
    forms: Constants  # of each group of heads
    shape: Constants  # of all
    warps: int = 4  # of a launch of its own


_LOG2_E = tl.constexpr(float(np.float32(1.44269504)))
_ROUNDER = tl.constexpr(1.5 * 2.0**23)
_LN2_HIGH = tl.constexpr(-float.fromhex("0x1.63p-1"))
_LN2_LOW = tl.constexpr(float.fromhex("0x1.bd0106p-13"))
_SIXTH, _E4, _E5, _E6, _E7 = (
    tl.constexpr(float(np.float32(1) / np.float32(n))) for n in (6, 24, 120, 720, 5040)
)
_L3, _L5, _L7, _L9, _L11, _L13, _L15, _L17 = (
    tl.constexpr(float(np.float32(1) / np.float32(n))) for n in range(3, 18, 2)
)
_T0, _T1, _T2, _T3, _T4 = (
    tl.constexpr(float.fromhex(c))
    for c in ("-0x1.71ba5p-8", "0x1.514478p-6", "-0x1.b81bd4p-5", "0x1.110640p-3", "-0x1.55553p-2")
)
_F0, _F1, _F2, _F3, _F4 = (
    tl.constexpr(float(np.float32(c)))
    for c in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
)
_ERF_SCALE = tl.constexpr(float(np.float32(0.3275911)))
_HALF_ROOT = tl.constexpr(float(np.float32(0.70710678118654752440)))


@triton.jit
def tree(lanes, ROWS: tl.constexpr):
    """The sums of 16 lanes, float32 [ROWS, 16] -> [ROWS]: lanes 8 apart, then 4, then 2, then the last two."""
    # A sum of two has one order.
    eight = tl.sum(tl.reshape(lanes, (ROWS, 2, 8)), axis=1)
    four = tl.sum(tl.reshape(eight, (ROWS, 2, 4)), axis=1)
    two = tl.sum(tl.reshape(four, (ROWS, 2, 2)), axis=1)
    return tl.sum(two, axis=1)


@triton.jit
def bfloat16_bits(x):
    """The nearest bfloat16, ties to even: its bits, int32."""
    bits = x.to(tl.int32, bitcast=True)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(x != x, (bits >> 16) | 64, nearest)


@triton.jit
def exponential(x):
    """e^x; 0 below -87, e^88 above 88."""
    y = tl.where(x > 88.0, 88.0, x)
    shifted = tl.fma(y, _LOG2_E, _ROUNDER)
    n = shifted - _ROUNDER
    r = tl.fma(n, _LN2_HIGH, y)
    r = tl.fma(n, _LN2_LOW, r)
    p = tl.fma(r, _E7, _E6)
    p = tl.fma(p, r, _E5)
    p = tl.fma(p, r, _E4)
    p = tl.fma(p, r, _SIXTH)
    p = tl.fma(p, r, 0.5)
    p = tl.fma(p, r, 1.0)
    p = tl.fma(p, r, 1.0)
    power = ((shifted.to(tl.int32, bitcast=True) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < -87.0, 0.0, p * power)


@triton.jit
def sigmoid(x):
    """``1 / (1 + e^-x)``."""
    return tl.div_rn(1.0, 1.0 + exponential(-x))


@triton.jit
def silu(x):
    """``x / (1 + e^-x)``."""
    return tl.div_rn(x, 1.0 + exponential(-x))


@triton.jit
def gelu(x):
    """The approximation of GELU by tanh, in terms of e^x."""
    inner = -2.0 * tl.full([], 0.79788456080286535588, tl.float32) * x * (1.0 + 0.044715 * x * x)
    return tl.div_rn(x, 1.0 + exponential(inner))


@triton.jit
def gelu_exact(x):
    """GELU by the error function, computed with Abramowitz and Stegun's formula 7.1.26."""
    a = tl.abs(x) * _HALF_ROOT
    t = tl.div_rn(1.0, tl.fma(a, _ERF_SCALE, 1.0))
    p = tl.fma(t, _F0, _F1)
    p = tl.fma(p, t, _F2)
    p = tl.fma(p, t, _F3)
    p = tl.fma(p, t, _F4)
    p = tl.fma(p, t, 0.0)
    above = 0.5 * p * exponential(-(a * a))
    return x * tl.where(x > 0, 1.0 - above, above)


@triton.jit
def relu_squared(x):
    """``max(x, 0)^2``."""
    above = tl.where(x > 0, x, 0.0)
    return above * above


@triton.jit
def softplus(x):
    """``log(1 + e^x)``."""
    above = tl.where(x > 0, x, 0.0)
    y = exponential(x - 2.0 * above)
    s = tl.div_rn(y, 2.0 + y)
    z = s * s
    p = tl.fma(z, _L17, _L15)
    p = tl.fma(p, z, _L13)
    p = tl.fma(p, z, _L11)
    p = tl.fma(p, z, _L9)
    p = tl.fma(p, z, _L7)
    p = tl.fma(p, z, _L5)
    p = tl.fma(p, z, _L3)
    p = tl.fma(p, z, 1.0)
    return tl.fma(2.0 * s, p, above)


@triton.jit
def tanh(x):
    """The hyperbolic tangent."""
    a = tl.abs(x)
    z = a * a
    p = tl.fma(z, _T0, _T1)
    p = tl.fma(p, z, _T2)
    p = tl.fma(p, z, _T3)
    p = tl.fma(p, z, _T4)
    near = tl.fma(z * a, p, a)
    far = 1.0 - tl.div_rn(2.0, exponential(2.0 * a) + 1.0)
    y = tl.where(a < 0.625, near, far).to(tl.int32, bitcast=True)
    return ((y & 0x7FFFFFFF) | (x.to(tl.int32, bitcast=True) & -2147483648)).to(
        tl.float32, bitcast=True
    )


@triton.jit
def softened(x, cap):
    """``cap * tanh(x / cap)``."""
    return tanh(tl.div_rn(x, cap)) * cap
