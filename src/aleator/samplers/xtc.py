"""XTC, exclude top choices (p-e-w, 2024).

Effect     with probability ``xtc_probability``: of the leading run of the order with weight at least
           ceil(xtc_threshold * Z), remove all but the last.  The run ends at the first smaller weight.
           If fewer than ``min_keep`` would be left, nothing is removed.
Coin       u < xtc_probability * 2^64, u one 64-bit Philox output of its own stream, independent of the final
           draw.
Equality   a weight exactly at the bound belongs to the run.  A threshold of 1 turns it off.
Ties       by token id: of equal logits the highest id is the last of the run.
Masked     not candidates.
Elsewhere  llama.cpp throws its coin with the same seed as the final draw, so that the two are correlated, and
           throws none for a single candidate; text-generation-webui protects newline and EOS.
"""

from __future__ import annotations

import math

from aleator.core.contract import Purpose
from aleator.core.numerics import Row, Step, exact, ints, run_length
from aleator.core.parameter import MIN_KEEP, Off, Parameter, declare, single
from aleator.core.philox import stream, uniform64
from aleator.samplers.base import Place, SeededSampler, dataclass, host

XTC_PROBABILITY = Parameter(
    "xtc_probability", float, 0.0, "chance that the top choices are excluded at a step; 0 is off",
    low=0, high=1, off=(Off("below", ("llama.cpp", "mlx-lm"), 0.0, "never excludes a token"),),
    flags=("--xtc-probability",), metadata="xtc_probability",
)  # fmt: skip
XTC_THRESHOLD = Parameter(
    "xtc_threshold", float, 0.1, "probability from which a token is a top choice; 1 is off",
    low=0, high=0.5, beyond=1.0, off=(Off("above", ("llama.cpp",), 1.0, "never excludes a token"),),
    flags=("--xtc-threshold",), metadata="xtc_threshold",
)  # fmt: skip


@dataclass(frozen=True)
class XTC(SeededSampler):
    """Sometimes remove all tokens above a threshold except the least likely of them."""

    name = "xtc"
    letter = "x"
    reads = "mass"
    kernel = host.XTC
    llama_kernel = host.LlamaXTC
    xtc_probability: float = declare(XTC_PROBABILITY)
    xtc_threshold: float = declare(XTC_THRESHOLD)
    min_keep: int = declare(MIN_KEEP)

    @property
    def neutral(self) -> bool:
        return single(self.xtc_probability) == 0 or single(self.xtc_threshold) > 0.5

    def reference(self, row: Row, step: Step, place: Place) -> None:
        word = stream(Purpose.XTC, place.ordinal, step.completion)
        u = uniform64(self.seed_in(place), 0, step.position, word)
        if u >= exact(self.xtc_probability) * 2**64:
            return
        length = run_length(row, math.ceil(exact(self.xtc_threshold) * sum(ints(row.weights()))))
        if length >= 2 and len(row) - (length - 1) >= self.min_keep:
            row.keep(row.order()[length - 1 :])
