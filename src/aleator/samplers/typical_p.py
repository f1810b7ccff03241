"""Locally typical truncation, Meister et al. 2022 (arXiv:2202.00666).

Keeps      the tokens whose surprise is closest to the entropy, until their mass reaches
           ceil(typical_p * Z); at least one, and at least ``min_keep``.  Surprise minus entropy is the
           depth of a weight, its bits below the largest in Q16, minus floor(mean depth * 65536 + 1/2), which
           needs no logarithm.  The mean depth and Z are those of the entropy (docs/numerics.md).
Equality   a mass exactly equal to the bound ends the set.  1 and more keep all.
Ties       equal distances rank by the order: logit descending, then token id ascending.
Masked     not candidates; they do not enter the entropy; ``min_keep`` does not revive them.
Elsewhere  llama.cpp stops when the sum exceeds p, strictly, and a token of probability 0 makes its entropy NaN;
           transformers agrees with the paper in float32.
"""

from __future__ import annotations

import math

import numpy as np

from aleator.core.numerics import Row, Step, exact, ints, prefix_of_mass
from aleator.core.parameter import MIN_KEEP, Off, Parameter, declare
from aleator.samplers.base import Place, Sampler, dataclass, host

TYPICAL_P = Parameter(
    "typical_p", float, 1.0,
    "keep the most typical tokens that together hold this probability; 1 is off",
    low=0, high=1, off=(Off("above", ("llama.cpp", "transformers"), 1.0, "keeps all tokens"),),
    aliases=("typ_p", "typical"), flags=("--typical", "--typical-p"),
)  # fmt: skip


@dataclass(frozen=True)
class TypicalP(Sampler):
    """Keep the tokens whose surprise is closest to the entropy."""

    name = "typical_p"
    letter = "y"
    aliases = ("typ_p", "typ-p", "typp", "typ")
    reads = "mass"
    since = 2
    switch = TYPICAL_P
    kernel = host.TypicalP
    llama_kernel = host.LlamaTypicalP
    typical_p: float = declare(TYPICAL_P)
    min_keep: int = declare(MIN_KEEP)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        order = row.order()
        entropy = row.entropy()
        distance = np.abs(row.depths() - math.floor(entropy.depth * 65536 + 0.5))[order]
        ranked = order[np.argsort(distance, kind="stable")]
        wanted = math.ceil(exact(self.typical_p) * entropy.mass)
        length = prefix_of_mass(ints(row.weights()[ranked]), wanted)
        row.keep(ranked[: max(length, self.min_keep)])
