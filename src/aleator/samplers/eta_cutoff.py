"""Eta cut-off, Hewitt et al. 2022 (arXiv:2210.15191): an epsilon cut-off that is lower where entropy is high.

Keeps      tokens with a probability of at least eta = fl32(min(e, sqrt(e) * 2^-H)), e the float32 of
           ``eta_cutoff``, H the entropy of the candidates in bits: the leading run of the order with w >=
           ceil(eta * Z).  If fewer than ``min_keep`` pass, or none, the first ``min_keep`` (at least one)
           and all that tie with the last of them.
Equality   a weight exactly equal to the bound stays.  0 keeps all.
Ties       equal logits stay or go together.
Masked     not candidates; they do not enter the entropy; ``min_keep`` does not revive them.
Precision  H and Z are those of the entropy (docs/numerics.md), H to 1e-6 of itself; 2^-H by exp2; the square
           root and the product in float64, each correctly rounded.
Elsewhere  transformers agrees except for its float32; text-generation-webui gives ``eta_cutoff`` in units of
           1e-4; llama.cpp and vLLM do not have it.
"""

from __future__ import annotations

import math

from aleator.core.numerics import Row, Step, exact, exp2_double
from aleator.core.parameter import MIN_KEEP, Parameter, declare, single
from aleator.samplers.base import Place, Sampler, dataclass, host
from aleator.samplers.epsilon_cutoff import EPSILON_CUTOFF, keep_probable

ETA_CUTOFF = Parameter(
    "eta_cutoff", float, 0.0,
    "keep tokens of at least this probability, or less where the entropy is high; 0 is off",
    low=0, high=1, off=EPSILON_CUTOFF.off, flags=("--eta-cutoff",),
)  # fmt: skip


@dataclass(frozen=True)
class EtaCutoff(Sampler):
    """Keep tokens whose probability reaches ``eta_cutoff``, or less where the entropy is high."""

    name = "eta_cutoff"
    aliases = ("eta", "eta-cutoff")
    reads = "mass"
    since = 2
    switch = ETA_CUTOFF
    kernel = host.EtaCutoff
    eta_cutoff: float = declare(ETA_CUTOFF)
    min_keep: int = declare(MIN_KEEP)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        e, entropy = single(self.eta_cutoff), row.entropy()
        eta = min(e, math.sqrt(e) * exp2_double(-entropy.bits))
        keep_probable(row, math.ceil(exact(eta) * entropy.mass), self.min_keep)
