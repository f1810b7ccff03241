"""Sampling parameters, each declared once.

A declaration holds the name, type, range, neutral value, other spellings, command-line flags and help of a
parameter.  ``SamplingParams``, the command line, the documentation tables and the range tests are all
made from it.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from aleator.core.errors import ParameterError


@dataclass(frozen=True)
class Parameter:
    """The declaration of one parameter.

    Parameters
    ----------
    name
        The word that Python, JSON and documentation use.
    type
        ``int`` or ``float`` for numbers; anything else is checked by its sampler.
    neutral
        The value that does nothing; also the library's default.
    choices
        For text: the words that are allowed.
    low, high
        Bounds, inclusive unless ``open_low`` or ``open_high`` is set; ``None`` is unbounded.
    aliases
        Other spellings that keyword arguments accept.
    flags
        Command-line flags, the first one shown in help.
    metadata
        Key under ``general.sampling.`` in a GGUF file, if it has one.
    help
        One sentence for ``--help`` and the documentation.

    """

    name: str
    type: type
    neutral: Any
    help: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False
    aliases: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    metadata: str | None = None

    @property
    def interval(self) -> str:
        """The range in mathematical notation, such as ``[0, 1)``."""
        low = "(-inf" if self.low is None else f"{'(' if self.open_low else '['}{self.low:g}"
        high = "inf)" if self.high is None else f"{self.high:g}{')' if self.open_high else ']'}"
        return f"{low}, {high}"

    def check(self, value: Any) -> Any:
        """Return ``value`` as this parameter's type, or raise :class:`ParameterError`.

        Integers are accepted for floats and integral floats for integers; booleans for neither.
        """
        if self.choices and value not in self.choices:
            raise ParameterError(
                self.name, f"{self.name}={value!r} must be one of {', '.join(self.choices)}"
            )
        if self.type not in (int, float):
            return value
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (numbers.Real, np.generic)):
            self._refuse(value, f"is of type {type(value).__name__}, not a number")
        number = float(value)
        if math.isnan(number):
            self._refuse(value, "is not a number")
        if self.type is int and (math.isinf(number) or number != math.floor(number)):
            self._refuse(value, "is not a whole number")
        below = self.low is not None and (
            number <= self.low if self.open_low else number < self.low
        )
        above = self.high is not None and (
            number >= self.high if self.open_high else number > self.high
        )
        if below or above or math.isinf(number):
            self._refuse(value, "is out of range")
        return int(value) if self.type is int else number

    def _refuse(self, value: Any, reason: str) -> None:
        kind = "a whole number" if self.type is int else "a number"
        raise ParameterError(
            self.name,
            f"{self.name}={value!r} {reason}: give {kind} in {self.interval} "
            f"({self.neutral!r} turns it off)",
        )


def single(value: float) -> float:
    """The float32 nearest to a value, which is what kernels make of most parameters."""
    return float(np.float32(value))


def declare(parameter: Parameter) -> Any:
    """Make a dataclass field whose default is the parameter's neutral value."""
    return dataclasses.field(default=parameter.neutral, metadata={"parameter": parameter})


def parameters_of(cls: type) -> tuple[Parameter, ...]:
    """The declarations of a sampler class, in order."""
    return tuple(
        f.metadata["parameter"] for f in dataclasses.fields(cls) if "parameter" in f.metadata
    )


def unique(parameters: Iterable[Parameter]) -> dict[str, Parameter]:
    """Index declarations by name; samplers share some, such as ``min_keep`` and ``seed``."""
    index: dict[str, Parameter] = {}
    for parameter in parameters:
        if index.setdefault(parameter.name, parameter) != parameter:
            raise ValueError(f"{parameter.name} is declared twice, differently")
    return index


# Declarations that several samplers share.
MIN_KEEP = Parameter(
    "min_keep", int, 0, "let truncating samplers keep at least this many tokens",
    low=0, high=2**31 - 1, flags=("--min-keep",),
)  # fmt: skip
SEED = Parameter(
    "seed", object, None,
    "seed of the random draws, 64 bits; -1 or none draws one from the system and reports it",
    flags=("-s", "--seed"),
)  # fmt: skip


def check_seed(seed: int | None) -> int | None:
    """Return a seed in [0, 2^64), or ``None`` where one is to be drawn from the system."""
    if seed is None:
        return None
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)):
        raise ParameterError("seed", f"seed={seed!r} must be an integer, -1 or None")
    seed = int(seed)
    if seed == -1:
        return None
    if not 0 <= seed < 2**64:
        raise ParameterError(
            "seed", f"seed={seed} is out of range: give 0 to 18446744073709551615, or -1 for random"
        )
    return seed
