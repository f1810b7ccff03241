"""Mirostat 2.0: truncate by surprise, so that the surprise of tokens stays near a target.

Selects    keeps the leading run of the order with surprise log2(Z) - log2(w) <= mu, at least one token; then
           draws, inverse.
State      mu starts at 2 * tau; accepting the drawn token moves it by -eta * (surprise - tau),
           surprise measured among the tokens kept.  Other accepted tokens do not change it.
           If mu is so large that a weight of 1 (2^-40 of the largest) would stay, nothing is cut.
Equality   a surprise exactly equal to mu stays; mu is floored to Q32.
Precision  logarithms are the contract's integers in Q32; mu is float64.
Ties       equal logits weigh the same, so they stay or go together.
Elsewhere  llama.cpp updates mu when the sampler is applied, not when a token is accepted.
"""

from __future__ import annotations

import math

from aleator.core.contract import Purpose
from aleator.core.numerics import Row, Step, ints, log2_q32
from aleator.samplers.base import Place, dataclass, host
from aleator.samplers.mirostat import MirostatSampler


@dataclass(frozen=True)
class MirostatV2(MirostatSampler):
    """Draw so that the surprise of tokens stays near ``mirostat_tau`` bits: version 2."""

    name = "mirostat_v2"
    purpose = Purpose.MIROSTAT_V2
    kernel = host.MirostatV2
    llama_kernel = host.LlamaMirostatV2

    def reference(self, row: Row, step: Step, place: Place) -> None:
        mu = min(max(self.mu(step, place), -100.0), 100.0)
        ranked = ints(row.weights()[row.order()])
        level = log2_q32(sum(ranked)) - math.floor(mu * 2**32)
        length = len(ranked) if level <= 0 else 0
        while length < len(ranked) and ranked[length] and log2_q32(ranked[length]) >= level:
            length += 1
        row.keep_first(length)
        self.select(row, step, place)
