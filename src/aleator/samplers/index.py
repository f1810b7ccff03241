"""The index of samplers: one line each.  The first ten are llama.cpp's default chain, in its order."""

from __future__ import annotations

from aleator.samplers.adaptive_p import AdaptiveP
from aleator.samplers.base import Sampler
from aleator.samplers.dist import Dist
from aleator.samplers.dry import DRY
from aleator.samplers.greedy import Greedy
from aleator.samplers.infill import Infill
from aleator.samplers.logit_bias import LogitBias
from aleator.samplers.min_p import MinP
from aleator.samplers.mirostat import Mirostat
from aleator.samplers.mirostat_v2 import MirostatV2
from aleator.samplers.penalties import Penalties
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

SAMPLERS: tuple[type[Sampler], ...] = (
    LogitBias,
    TokenMask,
    Penalties,
    DRY,
    TopNSigma,
    TopK,
    TypicalP,
    TopP,
    MinP,
    XTC,
    Temperature,
    TailFree,
    TopA,
    Infill,
    Softmax,
    Mirostat,
    MirostatV2,
    AdaptiveP,
    Greedy,
    Dist,
)

# What an order may name: not the samplers that select, which end a chain by themselves, nor those that
# SamplingParams places itself or that take arrays.  adaptive_p replaces the final draw, wherever it is named.
_ALL = {cls.name: cls for cls in SAMPLERS if not cls.selects or cls is AdaptiveP}
for _cls in (LogitBias, TokenMask):
    del _ALL[_cls.name]
ORDERED = tuple(_ALL)
BY_NAME = {spelling: name for name, cls in _ALL.items() for spelling in (name, *cls.aliases)}
BY_LETTER = {cls.letter: name for name, cls in _ALL.items() if cls.letter}
