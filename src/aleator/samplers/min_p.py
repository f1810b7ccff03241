"""Min-p truncation, Nguyen et al. 2024 (arXiv:2407.01082).

Keeps      tokens at least ``min_p`` times as likely as the most likely one:
           fl32(z - zmax) >= fl32(T * ln(min_p)), T the pending temperature, the product in float64.
           If fewer than ``min_keep`` pass, the first ``min_keep`` of the order.
Equality   a token exactly at the bound stays.  1 keeps all that tie with the maximum; 0 keeps all.
Ties       equal logits stay or go together, except where ``min_keep`` cuts: lower ids first.
Masked     not candidates; ``min_keep`` does not revive them.
full       mass="full" keeps the same set, as the ratio of two masses does not depend on their total.
Elsewhere  llama.cpp compares z with zmax + logf(min_p), whose rounding differs by an ulp; its device form
           removes tokens at the bound and ignores ``min_keep``.
"""

from __future__ import annotations

import math

import numpy as np

from aleator.core.parameter import MIN_KEEP, Off, Parameter, declare
from aleator.samplers.base import Place, Row, Step, dataclass, host
from aleator.samplers.full_mass import MASS, MeasuredSampler, require_full_mass

MIN_P = Parameter(
    "min_p", float, 0.0,
    "keep tokens at least this fraction as likely as the best; 0 keeps all",
    low=0, high=1, off=(Off("below", ("llama.cpp",), 0.0, "keeps all tokens"),),
    flags=("--min-p",), metadata="min_p",
)  # fmt: skip


@dataclass(frozen=True)
class MinP(MeasuredSampler):
    """Keep tokens at least ``min_p`` times as likely as the most likely one."""

    name = "min_p"
    letter = "m"
    aliases = ("min-p", "minp")
    reads = "mass"
    switch = MIN_P
    kernel = host.MinP
    llama_kernel = host.LlamaMinP
    min_p: float = declare(MIN_P)
    min_keep: int = declare(MIN_KEEP)
    mass: str = declare(MASS)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        bound = np.float32(self.min_p)
        if self.mass == "full":
            require_full_mass(row, self.name)
        with np.errstate(over="ignore"):
            threshold = np.float32(row.temperature * math.log(float(bound)))
            kept = row.logits - row.top >= threshold
        if kept.sum() < self.min_keep:
            row.keep_first(self.min_keep)
        else:
            row.keep(kept)
