"""The index of samplers: one line each, in the recommended order of a chain.

That order is llama.cpp's default chain, with top-a and tail-free where llama.cpp and KoboldCpp had them.  It
decides where samplers/order.py puts samplers that an order does not name.  ``aleator.samplers`` exports what
is imported here, and ``SAMPLERS`` holds it in this order.
"""

# ruff: noqa: I001
from __future__ import annotations

from aleator.samplers.base import Sampler

from aleator.samplers.logit_bias import LogitBias as LogitBias
from aleator.samplers.token_mask import TokenMask as TokenMask
from aleator.samplers.min_tokens import MinTokens as MinTokens
from aleator.samplers.bad_words import BadWords as BadWords
from aleator.samplers.no_repeat_ngram import NoRepeatNgram as NoRepeatNgram
from aleator.samplers.penalties import Penalties as Penalties
from aleator.samplers.dry import DRY as DRY
from aleator.samplers.top_n_sigma import TopNSigma as TopNSigma
from aleator.samplers.min_k import MinK as MinK
from aleator.samplers.top_k import TopK as TopK
from aleator.samplers.top_a import TopA as TopA
from aleator.samplers.tail_free import TailFree as TailFree
from aleator.samplers.typical_p import TypicalP as TypicalP
from aleator.samplers.top_p import TopP as TopP
from aleator.samplers.min_p import MinP as MinP
from aleator.samplers.epsilon_cutoff import EpsilonCutoff as EpsilonCutoff
from aleator.samplers.eta_cutoff import EtaCutoff as EtaCutoff
from aleator.samplers.p_less import PLess as PLess
from aleator.samplers.top_h import TopH as TopH
from aleator.samplers.xtc import XTC as XTC
from aleator.samplers.temperature import Temperature as Temperature
from aleator.samplers.smoothing import Smoothing as Smoothing
from aleator.samplers.infill import Infill as Infill
from aleator.samplers.softmax import Softmax as Softmax
from aleator.samplers.mirostat import Mirostat as Mirostat
from aleator.samplers.mirostat_v2 import MirostatV2 as MirostatV2
from aleator.samplers.adaptive_p import AdaptiveP as AdaptiveP
from aleator.samplers.greedy import Greedy as Greedy
from aleator.samplers.dist import Dist as Dist

SAMPLERS: tuple[type[Sampler], ...] = tuple(
    value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Sampler) and value is not Sampler
)

# The samplers that SamplingParams puts before the order: masks, then biases.
FIRST: tuple[type[Sampler], ...] = (TokenMask, MinTokens, BadWords, NoRepeatNgram, LogitBias)
# The samplers that an order may name: neither those above nor those that select, which always end a chain.
# adaptive_p replaces the final draw, wherever it is named.
ORDERED: dict[str, type[Sampler]] = {
    cls.name: cls for cls in SAMPLERS if cls is AdaptiveP or not (cls.selects or cls in FIRST)
}
BY_NAME = {spelling: name for name, cls in ORDERED.items() for spelling in (name, *cls.aliases)}
BY_LETTER = {cls.letter: name for name, cls in ORDERED.items() if cls.letter}
