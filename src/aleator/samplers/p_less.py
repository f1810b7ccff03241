"""P-less truncation, Tan, Wu and Howard 2025 (arXiv:2509.23234).

Keeps      tokens with p >= sum of p^2, the probability that two draws agree: the leading run of the order
           with w >= b = ceil(sum of w^2 / Z), in integers.  "normalized", p-less-norm in the paper, uses the
           bound (N * sum of p^2 - 1) / (N - 1) instead and keeps more: w >= ceil((N * b - Z) / (N - 1)), N the
           number of candidates.  The first token always passes.
Equality   a weight exactly at the bound stays.  "off" keeps all.
Ties       equal logits weigh the same, so they stay or go together.
Masked     not candidates; they do not count in N.
Precision  integers: sums do not depend on their order.  Equally likely tokens all stay.
Temperature counts if it comes before, as in the paper.
Elsewhere  the authors' code agrees, except that it computes in float32 and N is its whole vocabulary;
           llama.cpp's proposal lowers the bound by 1e-5.
"""

from __future__ import annotations

from typing import Any

from aleator.core.numerics import Row, Step, ints, run_length
from aleator.samplers.base import Parameter, Place, Sampler, dataclass, declare, host

P_LESS = Parameter(
    "p_less", str, "off",
    "keep tokens at least as likely as two draws are to agree; normalized keeps more; off keeps all",
    choices=("off", "on", "normalized"), flags=("--p-less",),
)  # fmt: skip


@dataclass(frozen=True)
class PLess(Sampler):
    """Keep tokens whose probability reaches the sum of all squared probabilities."""

    name = "p_less"
    aliases = ("p-less", "pless")
    reads = "mass"
    switch = P_LESS
    kernel = host.PLess
    p_less: str = declare(P_LESS)

    def arguments(self, place: Place) -> tuple[Any, ...]:
        """Whether the sampler does anything, and whether the bound is normalised."""
        return not self.neutral, self.p_less == "normalized"

    def reference(self, row: Row, step: Step, place: Place) -> None:
        w, n = ints(row.weights()), len(row)
        bound = -(-sum(x * x for x in w) // sum(w))
        if self.p_less == "normalized" and n > 1:
            bound = -(-(n * bound - sum(w)) // (n - 1))
        row.keep_first(run_length(row, bound))
