"""Temperature: how flat or sharp the distribution is.

Keeps      everything; at a product of temperatures of 1e-5 or less the argmax alone.
Effect     multiplies the pending temperature T and changes no logit; T is used when mass is read.  Samplers
           that write or show logits later first materialise z = fl32(z / fl32(T)).
Dynamic    with a range above 0: T = low + (high - low) * level, low = max(0, T - range) and high = T + range.
           The level is min(1, H / log2(N)) for N > 1 candidates of entropy H (docs/numerics.md), else 0; to
           the power of the exponent by exp2(exponent * log2(level)) (kalomaze's dynatemp).
Ties       at temperature 0 the lowest token id stays.
Precision  T is float64; a product that is not finite is refused.
Elsewhere  llama.cpp divides the logits at once; other engines multiply by a rounded 1/T.
"""

from __future__ import annotations

import math

import numpy as np

from aleator.core.errors import ParameterError
from aleator.core.numerics import Row, Step, exp2_double, log2_double
from aleator.core.parameter import Off, Parameter, declare
from aleator.samplers.base import Place, Sampler, dataclass, host

TEMPERATURE = Parameter(
    "temperature", float, 1.0,
    "flatness of the distribution: below 1 sharper, above 1 flatter, 0 always the most likely token",
    low=0, off=(Off("below", ("llama.cpp",), 0.0, "always takes the most likely token"),),
    aliases=("temp",), flags=("--temp", "--temperature"), metadata="temp",
)  # fmt: skip
DYNATEMP_RANGE = Parameter(
    "dynatemp_range", float, 0.0, "let the temperature vary by this much with the entropy; 0 is off",
    low=0, high=1e6, off=(Off("below", ("llama.cpp",), 0.0, "keeps the temperature as it is"),),
    flags=("--dynatemp-range",),
)  # fmt: skip
DYNATEMP_EXPONENT = Parameter(
    "dynatemp_exponent", float, 1.0, "how the entropy maps onto the range: above 1 stays low longer",
    low=0, high=1e3, aliases=("dynatemp_exp",), flags=("--dynatemp-exp",),
)  # fmt: skip


@dataclass(frozen=True)
class Temperature(Sampler):
    """Divide the logits by a temperature, when their mass is next read."""

    name = "temperature"
    writes = True
    letter = "t"
    aliases = ("temp",)
    kernel = host.Temperature
    llama_kernel = host.LlamaTemperature
    temperature: float = declare(TEMPERATURE)
    dynatemp_range: float = declare(DYNATEMP_RANGE)
    dynatemp_exponent: float = declare(DYNATEMP_EXPONENT)

    @property
    def since(self) -> int:  # type: ignore[override]
        """The dynamic temperature changed with version 2."""
        return 2 if self.dynatemp_range > 0 else 1

    @property
    def neutral(self) -> bool:
        return self.temperature == 1 and self.dynatemp_range == 0

    def reference(self, row: Row, step: Step, place: Place) -> None:
        chosen = self._dynamic(row) if self.dynatemp_range > 0 else self.temperature
        if chosen == 1:
            return
        row.full_mass = 0
        product = row.temperature * chosen
        if not math.isfinite(product):
            raise ParameterError("temperature", "the product of temperatures is not finite")
        row.temperature = product
        if product <= 1e-5:
            row.keep(np.array([row.order()[0]]))
            row.temperature = 1.0

    def _dynamic(self, row: Row) -> float:
        low = max(0.0, self.temperature - self.dynatemp_range)
        high = self.temperature + self.dynatemp_range
        level = 0.0
        if len(row) > 1:
            level = min(1.0, row.entropy().bits / log2_double(len(row)))
            if level > 0 and self.dynatemp_exponent != 1:
                level = exp2_double(self.dynatemp_exponent * log2_double(level))
            if self.dynatemp_exponent == 0:
                level = 1.0
        return low + (high - low) * level
