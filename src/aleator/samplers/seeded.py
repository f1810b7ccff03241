"""What samplers that draw share: a seed of their own, or the chain's."""

from __future__ import annotations

from aleator.core.parameter import SEED, check_seed, declare
from aleator.core.records import dataclass
from aleator.samplers.base import Place, Sampler


@dataclass(frozen=True, kw_only=True)
class SeededSampler(Sampler):
    """A sampler with a stream of random numbers.

    Args:
        seed: 64 bits.  ``None`` and -1 take the chain's.
    """

    seed: int | None = declare(SEED)

    def __post_init__(self) -> None:
        """Check the parameters and the seed."""
        super().__post_init__()
        object.__setattr__(self, "seed", check_seed(self.seed))

    def seed_in(self, place: Place) -> int:
        """The seed in use."""
        return place.seed if self.seed is None else self.seed
