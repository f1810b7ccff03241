"""Min-k truncation, Ding et al. 2026 (arXiv:2604.11012): a cut at the steepest fall of the sorted logits.

Keeps      the first k of the order, z_1 >= z_2 >= ... >= z_N.  k is the i with the largest
           (z_i - z_(i+1)) / i, or floor(min_k_tau / (z_1 - z_N)) if that is more; all if N is less.  The
           paper also divides each fall by z_1 - z_N, which does not change which is the largest.
Equality   of equal quotients the first counts.  If all logits are equal, all stay.  0 uses the steepest fall
           alone, -1 keeps all.
Ties       by lower token id.
Masked     not candidates; z_N is the least likely candidate.
Precision  each difference and quotient is rounded to float64 once.
Temperature does not matter: the logits are those before it is applied.
Elsewhere  vLLM's proposal works in float32, on logits divided by the temperature, and keeps all that tie with
           the last.
"""

from __future__ import annotations

import math

import numpy as np

from aleator.core.parameter import Parameter, declare, single
from aleator.samplers.base import Place, Row, Sampler, Step, dataclass, host

MIN_K_TAU = Parameter(
    "min_k_tau", float, -1.0,
    "keep what stands before the steepest fall of the logits, and at least this over their range; -1 is off",
    low=0, high=1e6, beyond=-1.0, flags=("--min-k-tau",),
)  # fmt: skip


@dataclass(frozen=True)
class MinK(Sampler):
    """Keep the tokens before the steepest fall of the sorted logits."""

    name = "min_k"
    aliases = ("min-k", "mink")
    switch = MIN_K_TAU
    kernel = host.MinK
    min_k_tau: float = declare(MIN_K_TAU)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        z = np.sort(row.logits)[::-1].astype(np.float64)
        if z[0] == z[-1]:
            return
        cliff = 1 + int(np.argmax((z[:-1] - z[1:]) / np.arange(1, len(z))))
        least = min(single(self.min_k_tau) / float(z[0] - z[-1]), len(z))
        row.keep_first(max(cliff, math.floor(least)))
