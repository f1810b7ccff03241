"""Measuring against the mass of the whole row instead of what is left of it."""

from __future__ import annotations

from aleator.core.errors import ParameterError
from aleator.core.numerics import Row
from aleator.core.parameter import Parameter
from aleator.samplers.base import only_portable

MASS = Parameter(
    "mass", str, "current", "measure against the current candidates, or the full row that Softmax saw",
    choices=("current", "full"), flags=("--mass",),
)  # fmt: skip


def require_full_mass(row: Row, sampler: str) -> int:
    """The mass that Softmax recorded."""
    if not row.full_mass:
        raise ParameterError(
            "mass",
            f"{sampler} with mass='full' needs a Softmax before it, and nothing between them that changes "
            "logits or temperature",
        )
    return row.full_mass


def refuse_full_mass(mass: str, sampler: str) -> None:
    """Refuse what llama.cpp does not have."""
    if mass == "full":
        raise only_portable(f"mass of {sampler}", mass, "current")
