"""Drawing from the distribution, by inverse cumulative mass.

Keeps      nothing: it selects.
Draw       u is one 64-bit Philox output; the token is the first in id order whose cumulative Q40 mass
           exceeds floor(u * Z / 2^64).  Exact to 2^-64.
Key        seed, position, the sampler's ordinal among the chain's Dists, and the completion index.
Masked     never selected; nor is a token whose weight rounds to zero (below 2^-41 of the largest).
Elsewhere  llama.cpp draws from mt19937, in the order that the candidates happen to have, with float32
           weights; a draw there depends on how many came before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from aleator.core.numerics import Row, Step, draw
from aleator.core.parameter import SEED, check_seed, declare
from aleator.core.philox import Purpose, stream
from aleator.kernels import host
from aleator.samplers.base import Place, Sampler


@dataclass(frozen=True)
class Dist(Sampler):
    """Draw a token in proportion to its weight.

    Parameters
    ----------
    seed
        64 bits.  ``None`` takes the chain's; -1 does too.

    """

    name = "dist"
    reads = "mass"
    selects = True
    seed: int | None = declare(SEED)

    def __post_init__(self) -> None:
        """Check the seed."""
        object.__setattr__(self, "seed", check_seed(self.seed))

    def _seed(self, place: Place) -> int:
        return place.seed if self.seed is None else self.seed

    def native(self, place: Place) -> host.Sampler:
        """Host kernel: native/samplers/dist.cpp."""
        return host.Dist(self._seed(place), place.ordinal)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        """NumPy reference."""
        word = stream(Purpose.DIST, place.ordinal, step.completion)
        row.selected = draw(row, self._seed(place), step.position, word)
