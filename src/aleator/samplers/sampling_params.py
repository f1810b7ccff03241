"""``SamplingParams``: all sampling parameters in one frozen object that builds a chain.

The class is made from the declarations; sampling_params.pyi has its types, made by tools/stubs.py.
"""

from __future__ import annotations

from typing import Any

from aleator.core.records import dataclass
from aleator.samplers.params import ALL, Methods, document

SamplingParams = dataclass(frozen=True)(
    type(
        "SamplingParams",
        (Methods,),
        {
            "__doc__": document(),
            "__module__": __name__,
            "__annotations__": {p.name: p.type for p in ALL.values()},
            "__init__": Methods.__init__,
            **{p.name: p.neutral for p in ALL.values()},
        },
    )
)


def preset(name: str, **changes: Any) -> SamplingParams:
    """Return the sampling parameters of a named preset, with changes, as ``SamplingParams.preset``.

    Args:
        name: one of ``aleator.samplers.PRESETS``.
        changes: sampling parameters that differ from the preset, by name.

    Raises:
        ParameterError: there is no such preset or parameter, or a value is out of range.
    """
    return SamplingParams.preset(name, **changes)
