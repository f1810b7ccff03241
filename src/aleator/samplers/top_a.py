"""Top-a truncation (BlinkDL, 2021).

Keeps      the leading run of the order with p >= top_a * pmax^2: w >= ceil(top_a * 2^80 / Z), in integers.  The
           first token always stays.
Equality   a weight exactly at the bound stays.  0 keeps all.
Ties       equal logits weigh the same, so they stay or go together.
Masked     not candidates.
Elsewhere  llama.cpp does not have it; KoboldAI and text-generation-webui compare float probabilities.
"""

from __future__ import annotations

import math

from aleator.core.numerics import Row, Step, exact, ints, run_length
from aleator.samplers.base import Parameter, Place, Sampler, dataclass, declare, host

TOP_A = Parameter(
    "top_a", float, 0.0, "keep tokens at least this times the square of the best probability; 0 is off",
    low=0, high=1, flags=("--top-a",),
)  # fmt: skip


@dataclass(frozen=True)
class TopA(Sampler):
    """Keep tokens whose probability reaches ``top_a`` times the square of the largest."""

    name = "top_a"
    aliases = ("top-a", "topa")
    reads = "mass"
    switch = TOP_A
    kernel = host.TopA
    top_a: float = declare(TOP_A)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        bound = math.ceil(exact(self.top_a) * 2**80 / sum(ints(row.weights())))
        row.keep_first(run_length(row, bound))
