"""Softmax: records the mass of the whole row, for samplers that measure against it.

Effect     keeps everything and changes no logit.  Records Z, the current mass, which ``TopP(mass="full")`` and
           ``MinP(mass="full")`` later in the chain use instead of the mass that is left.  A later
           temperature or change of logits clears the record.
Elsewhere  llama.cpp's `softmax` sampler, removed since, sorted the candidates and filled in probabilities; here
           probabilities are always available.  Akunu's pipeline computes it before top-k, min-p and
           top-p, which therefore act on un-renormalised mass.
"""

from __future__ import annotations

from aleator.core.numerics import Row, Step, ints
from aleator.samplers.base import Place, Sampler, dataclass, host


@dataclass(frozen=True)
class Softmax(Sampler):
    """Record the mass of the whole row."""

    name = "softmax"
    reads = "mass"
    kernel = host.Softmax
    llama_kernel = host.LlamaSoftmax

    def reference(self, row: Row, step: Step, place: Place) -> None:
        row.full_mass = sum(ints(row.weights()))
