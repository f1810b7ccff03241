"""Samplers and chains: one file per sampler, ``SamplerChain`` to join them, ``SamplingParams`` to build one."""

from __future__ import annotations

from aleator.samplers.base import Sampler
from aleator.samplers.chain import Candidates, ReferenceChain, SamplerChain
from aleator.samplers.dist import Dist
from aleator.samplers.greedy import Greedy
from aleator.samplers.index import SAMPLERS
from aleator.samplers.logit_bias import LogitBias, parse_bias
from aleator.samplers.min_p import MinP
from aleator.samplers.params import PARAMETERS, SamplingParams, parse_letters, parse_names
from aleator.samplers.penalties import Penalties
from aleator.samplers.presets import DEFAULT_PRESET, PRESETS
from aleator.samplers.temperature import Temperature
from aleator.samplers.top_k import TopK
from aleator.samplers.top_p import TopP

__all__ = [
    "DEFAULT_PRESET",
    "PARAMETERS",
    "PRESETS",
    "SAMPLERS",
    "Candidates",
    "Dist",
    "Greedy",
    "LogitBias",
    "MinP",
    "Penalties",
    "ReferenceChain",
    "Sampler",
    "SamplerChain",
    "SamplingParams",
    "Temperature",
    "TopK",
    "TopP",
    "parse_bias",
    "parse_letters",
    "parse_names",
]
