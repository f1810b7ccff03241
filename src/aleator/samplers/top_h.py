"""Top-H truncation, Baghaei Potraghloo et al. 2025 (arXiv:2509.02510).

Keeps      the longest prefix of the order whose entropy, with its probabilities renormalised, is at most
           ``top_h`` times that of the candidates: H(q) <= top_h * H(p), the paper's formula.  The product is
           in float64, of the float32 of ``top_h``.  The length is found bit by bit, from 2^20 down: a bit is
           set if there are that many candidates and the prefix of that length passes.
Equality   an entropy exactly equal to the bound passes.  1 keeps all, 0 the first token.
Ties       by lower token id.
Masked     not candidates; they do not enter the entropy.
Precision  both entropies are those of docs/numerics.md; that of the prefix ignores all other tokens.
Temperature counts if it comes before, as in the paper.
Elsewhere  the authors' code and transformers add up -p * log(p) without making the prefix's probabilities sum
           to 1, and look at 100 tokens, which gives other and mostly larger sets.
"""

from __future__ import annotations

from aleator.core.contract import MAX_VOCAB
from aleator.core.parameter import Parameter, declare, single
from aleator.samplers.base import Place, Row, Sampler, Step, dataclass, host

TOP_H = Parameter(
    "top_h", float, 1.0,
    "keep the most likely tokens whose entropy is at most this share of the row's; 1 keeps all",
    low=0, high=1, flags=("--top-h",),
)  # fmt: skip


@dataclass(frozen=True)
class TopH(Sampler):
    """Keep the most likely tokens whose entropy is at most ``top_h`` times that of all."""

    name = "top_h"
    aliases = ("top-h", "toph")
    reads = "mass"
    switch = TOP_H
    kernel = host.TopH
    top_h: float = declare(TOP_H)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        most, order = single(self.top_h) * row.entropy().bits, row.order()
        kept, bit = 0, MAX_VOCAB
        while bit:
            first = order[: kept + bit]
            prefix = Row(row.ids[first], row.logits[first], row.temperature)
            if len(prefix) == kept + bit and prefix.entropy().bits <= most:
                kept += bit
            bit //= 2
        row.keep_first(kept)
