"""``SamplingParams``: all sampling parameters in one frozen object, and the chain they stand for.

The class is made from the declarations; sampling_params.pyi has its types, made by tools/stubs.py.
"""

from __future__ import annotations

import dataclasses

from aleator.samplers.params import Methods, document, fields

SamplingParams = dataclasses.make_dataclass(
    "SamplingParams",
    fields(),
    bases=(Methods,),
    init=False,
    frozen=True,
    namespace={"__doc__": document(), "__module__": __name__},
)
