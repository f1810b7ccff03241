"""Quadratic sampling, or smoothing (kalomaze, 2024): bend the logits with their distance from the best.

Effect     with d = z - zmax, each logit becomes (zmax - a * d^2) + b * d^3, each operation rounded to float32
           once, the powers as d * d and (d * d) * d; a = fl32(factor * (3 - curve) / 2), b = fl32(factor *
           (curve - 1) / 2), the products in float64.  With curve 1 a parabola: logits close to the best come
           closer, distant ones fall away.  Above a curve of 3 a token slightly below the best overtakes it.
Order      after the temperature, which it materialises first, so that z / T is bent.
Masked     stay masked; what overflows to -inf or NaN is masked.
Elsewhere  text-generation-webui and Aphrodite have the same formula, in PyTorch's float32; KoboldCpp applies it
           inside its temperature, after dividing; llama.cpp, vLLM and transformers do not have it.
"""

from __future__ import annotations

import numpy as np

from aleator.core.parameter import Parameter, declare, single
from aleator.samplers.base import Place, Row, Sampler, Step, dataclass, host

SMOOTHING_FACTOR = Parameter(
    "smoothing_factor", float, 0.0, "strength of quadratic sampling, which bends the logits; 0 is off",
    low=0, high=1e6, flags=("--smoothing-factor",),
)  # fmt: skip
SMOOTHING_CURVE = Parameter(
    "smoothing_curve", float, 1.0, "how fast the bent curve falls far from the best token; 1 is a parabola",
    low=1, high=10, flags=("--smoothing-curve",),
)  # fmt: skip


@dataclass(frozen=True)
class Smoothing(Sampler):
    """Bend the logits with the square and the cube of their distance from the best."""

    name = "smoothing"
    aliases = ("quadratic", "quadratic_sampling")
    writes = True
    switch = SMOOTHING_FACTOR
    kernel = host.Smoothing
    smoothing_factor: float = declare(SMOOTHING_FACTOR)
    smoothing_curve: float = declare(SMOOTHING_CURVE)

    @property
    def coefficients(self) -> tuple[float, float]:
        """The coefficients of the square and of the cube, float32."""
        factor, curve = self.smoothing_factor, self.smoothing_curve
        return single(factor * (3 - curve) / 2), single(factor * (curve - 1) / 2)

    def arguments(self, place: Place) -> tuple[float, float]:
        return (0.0, 0.0) if self.neutral else self.coefficients

    def reference(self, row: Row, step: Step, place: Place) -> None:
        row.materialise()
        row.full_mass = 0
        a, b = (np.float32(x) for x in self.coefficients)
        with np.errstate(all="ignore"):
            d = row.logits - row.top
            square = d * d
            row.logits = (row.top - a * square) + b * (square * d)
        row.settle()
