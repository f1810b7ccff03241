"""Mirostat, Basu et al. 2020 (arXiv:2007.14966): truncate so that surprise stays near a target.

Selects    keeps the first k of the order, k from the paper's equation for a Zipf distribution whose exponent is
           estimated on the ``mirostat_m`` most likely tokens; then draws, inverse.
State      mu starts at 2 * tau; accepting the drawn token moves it by -eta * (surprise - tau),
           surprise = log2(Z) - log2(w) among the k kept.  Other accepted tokens do not change it.
Precision  logarithms are the contract's integers; sums are integers; the equation is float64, with
           exp2 and log2 of the contract.  |s - 1| < 2^-20 takes the limit.
Edges      s below 2^-10 (flat): no cut.  k is from 1 to the number of candidates.
Elsewhere  llama.cpp updates mu when the sampler is applied, not when a token is accepted, and an overflowing k
           becomes 1 there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from aleator.core.contract import Purpose
from aleator.core.numerics import LOG2_E, Row, Step, draw, exp2_double, ints, log2_double, log2_q32
from aleator.core.philox import stream
from aleator.samplers.base import Parameter, Place, SeededSampler, dataclass, declare, host

MIROSTAT_TAU = Parameter(
    "mirostat_tau", float, 5.0, "surprise per token that mirostat aims at, in bits",
    low=0, high=1e3, flags=("--mirostat-ent",), metadata="mirostat_tau",
)  # fmt: skip
MIROSTAT_ETA = Parameter(
    "mirostat_eta", float, 0.1, "how fast mirostat corrects itself",
    low=0, high=1e3, flags=("--mirostat-lr",), metadata="mirostat_eta",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MirostatSampler(SeededSampler):
    """Parameters and reference state of mirostat."""

    reads = "mass"
    selects = True
    adapts = True
    purpose: ClassVar[Purpose]
    mirostat_tau: float = declare(MIROSTAT_TAU)
    mirostat_eta: float = declare(MIROSTAT_ETA)

    def state(self, kernel: Any, history: Sequence[int]) -> dict[str, float]:
        return {"mu": kernel.mu}

    def state_history(self, kernel: Any) -> dict[str, list[float]]:
        return {"mu": kernel.state_history[0]}

    def mu(self, step: Step, place: Place) -> float:
        """The current bound on surprise, which the reference keeps in the step."""
        key = (self.name, place.ordinal)
        if key not in step.state:
            step.state[key] = 2 * self.mirostat_tau
        return float(step.state[key])

    def select(self, row: Row, step: Step, place: Place) -> None:
        """Draw, and record how mu moves if the token is accepted."""
        word = stream(self.purpose, place.ordinal, step.completion)
        row.selected = draw(row, self.seed_in(place), step.position, word)
        weights = ints(row.weights())
        chosen = weights[row.ids.tolist().index(row.selected)]
        surprise = (log2_q32(sum(weights)) - log2_q32(chosen)) / 2**32
        mu = self.mu(step, place)
        moved = mu - self.mirostat_eta * (surprise - self.mirostat_tau)
        step.pending[(self.name, place.ordinal)] = (row.selected, moved)


MIROSTAT_M = Parameter(
    "mirostat_m", int, 100, "candidates that mirostat 1 estimates the distribution's shape on",
    low=2, high=2**20, flags=("--mirostat-m",),
)  # fmt: skip


@dataclass(frozen=True)
class Mirostat(MirostatSampler):
    """Draw so that the surprise of tokens stays near ``mirostat_tau`` bits: version 1."""

    name = "mirostat"
    purpose = Purpose.MIROSTAT
    kernel = host.Mirostat
    llama_kernel = host.LlamaMirostat
    mirostat_m: int = declare(MIROSTAT_M)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        row.keep_first(self._bound(row, self.mu(step, place), step.n_vocab))
        self.select(row, step, place)

    def _bound(self, row: Row, mu: float, n_vocab: int) -> int:
        w = ints(row.weights()[row.order()])[: self.mirostat_m]
        numerator = denominator = 0
        for i in range(len(w) - 1):
            if not w[i + 1]:
                break
            t = log2_q32(i + 2) - log2_q32(i + 1)
            numerator += t * (log2_q32(w[i]) - log2_q32(w[i + 1]))
            denominator += t * t
        if not denominator:
            return 1
        s = float(numerator) / float(denominator)
        if s < 2**-10:
            return len(row)
        e, vocabulary = s - 1, log2_double(float(n_vocab))
        if abs(e) < 2**-20:
            log_k = mu - log2_double(vocabulary / LOG2_E)
        else:
            log_k = log2_double(abs(e)) + mu - log2_double(abs(1 - exp2_double(-e * vocabulary)))
        k = exp2_double(min(max(log_k / s, -1.0), 40.0))
        return min(max(math.floor(k), 1), len(row))
