"""``SamplingParams``: all sampling parameters in one frozen object, and the chain they stand for.

The class is made from the declarations; sampling_params.pyi has its types, made by tools/stubs.py.
"""

from __future__ import annotations

from aleator.core.records import dataclass
from aleator.samplers.params import Methods, document, field_defaults, field_types

SamplingParams = dataclass(frozen=True)(
    type(
        "SamplingParams",
        (Methods,),
        {
            "__doc__": document(),
            "__module__": __name__,
            "__annotations__": field_types(),
            "__init__": Methods.__init__,
            **field_defaults(),
        },
    )
)

preset = SamplingParams.preset
