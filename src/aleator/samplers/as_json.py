"""Write sampling parameters as JSON, and read them back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from aleator.core.errors import AleatorError, ParameterError
from aleator.core.parameter import ENGINES
from aleator.samplers.constrained import ConstraintSampler
from aleator.samplers.lark import Lark
from aleator.samplers.params import ALL, CONSTRAINTS, in_range
from aleator.samplers.sampling_params import SamplingParams

RECORDED = CONSTRAINTS | {Lark.name: Lark}
"""The constraints that a record can hold, by name."""


def params_as_json(params: SamplingParams) -> dict[str, object]:
    """Return the parameters that are not neutral, without the seed, ready for JSON."""
    return {
        name: _as_json(value)
        for name, value in params.values().items()
        if name != "seed" and (value != ALL[name].neutral or name == "samplers")
    }


def params_from_json(values: Mapping[str, object], seed: int) -> SamplingParams:
    """Return the parameters that :func:`params_as_json` wrote.

    Older versions accepted other engines' values for "off"; such a value keeps the effect that it had.
    """
    read = {name: _from_json(v) for name, v in values.items()}
    return SamplingParams(**{**in_range(read, ENGINES, lambda _: None), "seed": seed})


def constraint_as_json(value: ConstraintSampler) -> dict[str, object]:
    """Return a constraint without its vocabulary, ready for JSON; ParameterError if its class is the user's."""
    if RECORDED.get(value.name) is not type(value):
        raise ParameterError(
            "grammar",
            f"a {type(value).__name__} cannot be written into a record: give the grammar as text",
        )
    names = (each.name for each in dataclasses.fields(RECORDED[value.name]))
    fields = {name: _as_json(getattr(value, name)) for name in names if name != "vocabulary"}
    return {"constraint": value.name, **fields}


def constraint_from_json(value: Mapping[str, Any]) -> ConstraintSampler:
    """Return the constraint that :func:`constraint_as_json` wrote, without a vocabulary."""
    fields = {name: _from_json(v) for name, v in value.items() if name != "constraint"}
    return RECORDED[value["constraint"]](**fields)


def _as_json(value: Any) -> object:
    if isinstance(value, ConstraintSampler):
        return constraint_as_json(value)
    if isinstance(value, float) and math.isinf(value):
        return {"float": str(value)}
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        try:
            return constraint_from_json(value) if "constraint" in value else float(value["float"])
        except AleatorError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError):
            raise ParameterError(
                "params", f"{value!r:.80} is damaged: it stands for no number and for no constraint"
            ) from None
    if isinstance(value, list):
        return tuple(_from_json(each) for each in value)
    return value
