"""Samplers and chains: one file per sampler, ``SamplerChain`` to join them, ``SamplingParams`` to set all."""

from __future__ import annotations

from aleator.samplers.adaptive_p import AdaptiveP
from aleator.samplers.base import Sampler
from aleator.samplers.batch import sample_batch
from aleator.samplers.chain import Candidates, ReferenceChain, SamplerChain
from aleator.samplers.dist import Dist
from aleator.samplers.dry import DRY
from aleator.samplers.greedy import Greedy
from aleator.samplers.index import SAMPLERS
from aleator.samplers.infill import Infill
from aleator.samplers.logit_bias import LogitBias, parse_bias
from aleator.samplers.min_p import MinP
from aleator.samplers.mirostat import Mirostat
from aleator.samplers.mirostat_v2 import MirostatV2
from aleator.samplers.params import PARAMETERS, SamplingParams, parse_letters, parse_names
from aleator.samplers.penalties import Penalties
from aleator.samplers.presets import DEFAULT_PRESET, PRESETS
from aleator.samplers.softmax import Softmax
from aleator.samplers.tail_free import TailFree
from aleator.samplers.temperature import Temperature
from aleator.samplers.token_mask import TokenMask
from aleator.samplers.top_a import TopA
from aleator.samplers.top_k import TopK
from aleator.samplers.top_n_sigma import TopNSigma
from aleator.samplers.top_p import TopP
from aleator.samplers.typical_p import TypicalP
from aleator.samplers.xtc import XTC

__all__ = [
    "DEFAULT_PRESET",
    "DRY",
    "PARAMETERS",
    "PRESETS",
    "SAMPLERS",
    "XTC",
    "AdaptiveP",
    "Candidates",
    "Dist",
    "Greedy",
    "Infill",
    "LogitBias",
    "MinP",
    "Mirostat",
    "MirostatV2",
    "Penalties",
    "ReferenceChain",
    "Sampler",
    "SamplerChain",
    "SamplingParams",
    "Softmax",
    "TailFree",
    "Temperature",
    "TokenMask",
    "TopA",
    "TopK",
    "TopNSigma",
    "TopP",
    "TypicalP",
    "parse_bias",
    "parse_letters",
    "parse_names",
    "sample_batch",
]
