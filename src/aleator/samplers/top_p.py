"""Top-p (nucleus) truncation, Holtzman et al. 2019 (arXiv:1904.09751).

Keeps      the shortest prefix of the order (logit descending, then token id ascending) whose Q40 mass is at
           least ceil(top_p * Z), where Z is the mass of the current candidates and ``top_p`` is the exact
           fraction that its float32 stands for; at least one token, and at least ``min_keep``.
Equality   a mass exactly equal to the bound ends the prefix.  1 keeps all, whatever their weight.
Ties       equal logits rank by lower token id.
full       with mass="full", Z is the mass that a Softmax earlier in the chain recorded.
Masked     not candidates; ``min_keep`` does not revive them.
Precision  integers: any order of summation gives the same set.
Elsewhere  llama.cpp sums float32 probabilities in order.  Of probabilities 0.50, 0.25, 0.25 are kept, at p =
           0.50, 0.60 and 0.75, by
           1, 2, 2: this one; llama.cpp (stop when the sum >= p); mlx-lm (ascending sum > 1 - p)
           2, 2, 3: llama2.c (stop when the sum > p); gemma_pytorch (drop when (sum - prob) > p); FlashInfer's
           trace reference (sum > p, shifted)
           1, 1, 2: exllamav3 eager (keep sum <= p)
           1, 3, 3: gemma in JAX (keep logits >= the cut-off logit, so all ties)
"""

from __future__ import annotations

import math

from aleator.core.numerics import Row, Step, exact, ints, prefix_of_mass
from aleator.core.parameter import MIN_KEEP, Off, Parameter, declare
from aleator.samplers.base import Place, dataclass, host
from aleator.samplers.full_mass import MASS, MeasuredSampler, require_full_mass

TOP_P = Parameter(
    "top_p", float, 1.0, "keep the most likely tokens that together hold this probability; 1 keeps all",
    low=0, high=1, off=(
        Off("above", ("llama.cpp", "transformers", "mlx-lm"), 1.0, "keeps all tokens"),
        Off("below", ("mlx-lm",), 1.0, "keeps all tokens"),
        Off(0.0, ("mlx-lm",), 1.0, "keeps all tokens"),
    ),
    aliases=("nucleus",), flags=("--top-p",), metadata="top_p",
)  # fmt: skip


@dataclass(frozen=True)
class TopP(MeasuredSampler):
    """Keep the most likely tokens that together hold ``top_p`` of the mass."""

    name = "top_p"
    letter = "p"
    aliases = ("top-p", "topp", "nucleus")
    reads = "mass"
    switch = TOP_P
    kernel = host.TopP
    llama_kernel = host.LlamaTopP
    top_p: float = declare(TOP_P)
    min_keep: int = declare(MIN_KEEP)
    mass: str = declare(MASS)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        ranked = ints(row.weights()[row.order()])
        total = require_full_mass(row, self.name) if self.mass == "full" else sum(ranked)
        length = prefix_of_mass(ranked, math.ceil(exact(self.top_p) * total))
        row.keep_first(max(length, self.min_keep))
