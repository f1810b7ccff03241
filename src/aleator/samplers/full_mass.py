"""Samplers that can measure against the mass of the whole row instead of the mass that is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aleator.core.errors import ParameterError
from aleator.core.numerics import Row
from aleator.core.parameter import Parameter
from aleator.samplers.base import Place, Sampler, only_portable

MASS = Parameter(
    "mass", str, "current", "measure against the current candidates, or the full row that Softmax saw",
    choices=("current", "full"), flags=("--mass",),
)  # fmt: skip


def check_full_mass(samplers: Sequence[Sampler]) -> None:
    """Refuse a chain in which ``mass="full"`` has nothing to measure against.

    Whether a user's sampler changes logits only shows in a step.
    """
    noted = False
    for sampler in samplers:
        if sampler.neutral:
            continue
        if getattr(sampler, "mass", "current") == "full" and not noted:
            raise _nothing_noted(sampler.name)
        noted = sampler.name == "softmax" or (noted and not sampler.writes)


def require_full_mass(row: Row, sampler: str) -> int:
    """The mass that Softmax recorded."""
    if not row.full_mass:
        raise _nothing_noted(sampler)
    return row.full_mass


def _nothing_noted(sampler: str) -> ParameterError:
    return ParameterError(
        "mass",
        f"{sampler} with mass='full' needs a Softmax before it, and nothing between them that changes "
        "logits or temperature",
    )


class MeasuredSampler(Sampler):
    """A sampler whose last parameter says which mass it measures against."""

    mass: str

    def arguments(self, place: Place) -> tuple[Any, ...]:
        return (*super().arguments(place)[:-1], self.mass == "full")

    def llama_arguments(self, place: Place) -> tuple[Any, ...]:
        if self.mass == "full":
            raise only_portable("mass", self.mass, "current")
        return super().arguments(place)[:-1]
