"""What both versions of mirostat share: target, learning rate, and mu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from aleator.core.contract import Purpose
from aleator.core.numerics import Row, Step, draw, ints, log2_q32
from aleator.core.parameter import Parameter, declare
from aleator.core.philox import stream
from aleator.core.records import dataclass
from aleator.samplers.base import Place, SeededSampler

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
        """The present bound on surprise, in bits."""
        return {"mu": kernel.mu}

    def course(self, kernel: Any) -> dict[str, list[float]]:
        """Mu after each number of tokens."""
        return {"mu": kernel.course}

    def mu(self, step: Step, place: Place) -> float:
        """The present bound on surprise: the reference keeps it in the step."""
        key = (self.name, place.ordinal)
        if key not in step.state:
            step.state[key] = 2 * self.mirostat_tau
        return float(step.state[key])

    def select(self, row: Row, step: Step, place: Place) -> None:
        """Draw, and leave word of how mu moves if the token is accepted."""
        word = stream(self.purpose, place.ordinal, step.completion)
        row.selected = draw(row, self.seed_in(place), step.position, word)
        weights = ints(row.weights())
        chosen = weights[row.ids.tolist().index(row.selected)]
        surprise = (log2_q32(sum(weights)) - log2_q32(chosen)) / 2**32
        mu = self.mu(step, place)
        moved = mu - self.mirostat_eta * (surprise - self.mirostat_tau)
        step.pending[(self.name, place.ordinal)] = (row.selected, moved)
