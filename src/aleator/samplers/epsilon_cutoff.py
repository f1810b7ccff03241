"""Epsilon cut-off, Hewitt et al. 2022 (arXiv:2210.15191).

Keeps      tokens with a probability of at least ``epsilon_cutoff``: the leading run of the order with w >=
           ceil(epsilon_cutoff * Z), ``epsilon_cutoff`` the exact fraction that its float32 stands for.  Where
           fewer than ``min_keep`` pass, or none, the first ``min_keep`` (at least one) and all that tie with
           the last of them.
Equality   a weight exactly equal to the bound stays.  0 keeps all.
Ties       equal logits stay or go together.
Masked     not candidates; ``min_keep`` does not revive them.
Precision  integers.
Elsewhere  transformers agrees but for float32 softmax; text-generation-webui counts ``epsilon_cutoff`` in units
           of 1e-4; llama.cpp and vLLM do not have it.
"""

from __future__ import annotations

import math

from aleator.core import host
from aleator.core.numerics import Row, Step, exact, ints
from aleator.core.parameter import MIN_KEEP, Off, Parameter, declare, single
from aleator.core.records import dataclass
from aleator.samplers.base import Place, Sampler
from aleator.samplers.probable import keep_probable

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
    kernel = host.EpsilonCutoff
    epsilon_cutoff: float = declare(EPSILON_CUTOFF)
    min_keep: int = declare(MIN_KEEP)

    @property
    def neutral(self) -> bool:
        """True at 0."""
        return single(self.epsilon_cutoff) == 0

    def reference(self, row: Row, step: Step, place: Place) -> None:
        """NumPy reference."""
        if not self.neutral:
            bound = math.ceil(exact(self.epsilon_cutoff) * sum(ints(row.weights())))
            keep_probable(row, bound, self.min_keep)
