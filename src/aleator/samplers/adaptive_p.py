"""Adaptive-p: favour tokens whose probability is near a target, so that the average stays there.

Selects    with p the float32 probability (w / Z in float64), wanted = fl32(clamp(2 * target - average, 0, 1)),
           each logit becomes 5 - 10 * d^2 / (1 + d), d = |p - wanted| / 0.3 in float32, each operation rounded;
           then draws, inverse.  A target below 0 draws from the distribution as it is.
State      the average is sum / weight, in float64, and starts at the target.  Accepting the token that was
           drawn makes sum p + adaptive_decay * sum, and weight 1 + adaptive_decay * weight.
Masked     not candidates.
Elsewhere  llama.cpp agrees except for its float32 softmax; its clone forgets the generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aleator.core.contract import Purpose
from aleator.core.errors import LogitsError
from aleator.core.numerics import Row, Step, draw, ints
from aleator.core.parameter import Off, Parameter, declare
from aleator.core.philox import stream
from aleator.samplers.base import Place, SeededSampler, dataclass, host

ADAPTIVE_TARGET = Parameter(
    "adaptive_target", float, -1.0, "probability that chosen tokens should have on average; -1 is off",
    low=0, high=1, beyond=-1.0,
    off=(Off("below", ("llama.cpp",), -1.0, "draws without a target"),),
    flags=("--adaptive-target",),
)  # fmt: skip
ADAPTIVE_DECAY = Parameter(
    "adaptive_decay", float, 0.9, "how slowly that average forgets",
    low=0, high=0.99, flags=("--adaptive-decay",),
)  # fmt: skip


@dataclass(frozen=True)
class AdaptiveP(SeededSampler):
    """Draw tokens whose probability is near a target."""

    name = "adaptive_p"
    letter = "a"
    aliases = ("adaptive-p", "adaptivep")
    reads = "mass"
    selects = True
    adapts = True
    kernel = host.AdaptiveP
    llama_kernel = host.LlamaAdaptiveP
    adaptive_target: float = declare(ADAPTIVE_TARGET)
    adaptive_decay: float = declare(ADAPTIVE_DECAY)

    @classmethod
    def asked_for(cls, values: Mapping[str, Any]) -> bool:
        return bool(values["adaptive_target"] >= 0)

    def state(self, kernel: Any, history: Sequence[int]) -> dict[str, float]:
        return {"average": kernel.average} if self.adaptive_target >= 0 else {}

    def state_history(self, kernel: Any) -> dict[str, list[float]]:
        """The sums of past probabilities and of their weights after each number of tokens."""
        return dict(zip(("total", "weight"), kernel.state_history, strict=True))

    def reference(self, row: Row, step: Step, place: Place) -> None:
        key = (self.name, place.ordinal)
        target, decay = self.adaptive_target, self.adaptive_decay
        start = (min(max(target, 0.0), 1.0) / (1 - decay), 1 / (1 - decay))
        total, weight = step.state.setdefault(key, start)
        word = stream(Purpose.ADAPTIVE_P, place.ordinal, step.completion)
        if target >= 0:
            w = row.weights()
            p = (w / np.float64(sum(ints(w)))).astype(np.float32)
            wanted = np.float32(min(max(2 * target - total / weight, 0.0), 1.0))
            count = len(row)
            row.materialise()
            if len(row) != count:
                raise LogitsError("adaptive_p: the temperature before it is too small")
            d = np.abs(p - wanted) / np.float32(0.3)
            above = np.float32(10) * (d * d)
            row.logits = np.float32(5) - above / (np.float32(1) + d)
            row.settle()
        row.selected = draw(row, self.seed_in(place), step.position, word)
        if target >= 0:
            chosen = float(p[row.ids.tolist().index(row.selected)])
            step.pending[key] = (row.selected, (chosen + decay * total, 1 + decay * weight))
