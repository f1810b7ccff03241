"""Temperature: how flat or sharp the distribution is.

Keeps      everything; at a product of temperatures of 1e-5 or less, the argmax alone.
Effect     multiplies the pending temperature T and touches no logit; T enters where mass is read.  What
           writes or shows logits later first materialises z = fl32(z / fl32(T)).
Ties       at temperature 0 the lowest token id stays.
Precision  T is float64; a product that is not finite is refused.
Elsewhere  llama.cpp divides the logits at once; other engines multiply by a rounded 1/T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from aleator.core.errors import ParameterError
from aleator.core.numerics import Row, Step
from aleator.core.parameter import Parameter, declare
from aleator.kernels import host
from aleator.samplers.base import Place, Sampler

TEMPERATURE = Parameter(
    "temperature", float, 1.0,
    "flatness of the distribution: below 1 sharper, above 1 flatter, 0 always the most likely token",
    low=0, aliases=("temp",), flags=("--temp", "--temperature"), metadata="temp",
)  # fmt: skip


@dataclass(frozen=True)
class Temperature(Sampler):
    """Divide the logits by a temperature, when their mass is next read."""

    name = "temperature"
    letter = "t"
    aliases = ("temp",)
    temperature: float = declare(TEMPERATURE)

    @property
    def neutral(self) -> bool:
        """True at 1."""
        return self.temperature == 1

    def native(self, place: Place) -> host.Sampler:
        """Host kernel: native/samplers/temperature.cpp."""
        return host.Temperature(self.temperature)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        """NumPy reference."""
        product = row.temperature * self.temperature
        if not math.isfinite(product):
            raise ParameterError("temperature", "the product of temperatures is not finite")
        row.temperature = product
        if product <= 1e-5:
            row.keep(np.array([row.order()[0]]))
            row.temperature = 1.0
