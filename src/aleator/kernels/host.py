"""The native host kernels, by the names that sampler modules use."""

from __future__ import annotations

from aleator._native import (
    Candidates,
    Chain,
    Dist,
    Greedy,
    LogitBias,
    MinP,
    Penalties,
    Sampler,
    Temperature,
    TopK,
    TopP,
    isa,
)

__all__ = [
    "Candidates",
    "Chain",
    "Dist",
    "Greedy",
    "LogitBias",
    "MinP",
    "Penalties",
    "Sampler",
    "Temperature",
    "TopK",
    "TopP",
    "isa",
]
