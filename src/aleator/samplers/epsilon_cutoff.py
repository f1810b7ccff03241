"""Epsilon cut-off, Hewitt et al. 2022 (arXiv:2210.15191).

Keeps      tokens with a probability of at least ``epsilon_cutoff``: the leading run of the order with w >=
           ceil(epsilon_cutoff * Z), ``epsilon_cutoff`` the exact fraction that its float32 stands for.  If
           fewer than ``min_keep`` pass, or none, the first ``min_keep`` (at least one) and all that tie with
           the last of them.
Equality   a weight exactly equal to the bound stays.  0 keeps all.
Ties       equal logits stay or go together.
Masked     not candidates; ``min_keep`` does not revive them.
Precision  integers.
Elsewhere  transformers agrees except for its float32 softmax; text-generation-webui gives ``epsilon_cutoff`` in
           units of 1e-4; llama.cpp and vLLM do not have it.
"""

from __future__ import annotations

import math

import numpy as np

from aleator.core.numerics import Row, Step, exact, ints, run_length
from aleator.core.parameter import MIN_KEEP, Off, Parameter, declare
from aleator.samplers.base import Place, Sampler, dataclass, host


def keep_probable(row: Row, bound: int, min_keep: int) -> None:
    """Keep the run of weights that reach ``bound``: the reference of the epsilon and eta cut-offs.

    If the run is shorter than ``min_keep``, or empty, the first ``min_keep`` of the order stay, at least one,
    with all that tie with the last of them.
    """
    length, least = run_length(row, bound), min(max(1, min_keep), len(row))
    if length < least:
        last = row.logits[row.order()[least - 1]]
        length = int(np.count_nonzero(row.logits >= last))
    row.keep_first(length)


EPSILON_CUTOFF = Parameter(
    "epsilon_cutoff", float, 0.0, "keep tokens of at least this probability; 0 is off",
    low=0, high=1, off=(
        Off("below", ("transformers",), 0.0, "keeps all tokens"),
        Off("above", ("transformers",), 0.0, "keeps all tokens"),
    ),
    flags=("--epsilon-cutoff",),
)  # fmt: skip


@dataclass(frozen=True)
class EpsilonCutoff(Sampler):
    """Keep tokens whose probability is at least ``epsilon_cutoff``."""

    name = "epsilon_cutoff"
    aliases = ("epsilon", "epsilon-cutoff")
    reads = "mass"
    switch = EPSILON_CUTOFF
    kernel = host.EpsilonCutoff
    epsilon_cutoff: float = declare(EPSILON_CUTOFF)
    min_keep: int = declare(MIN_KEEP)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        bound = math.ceil(exact(self.epsilon_cutoff) * sum(ints(row.weights())))
        keep_probable(row, bound, self.min_keep)
