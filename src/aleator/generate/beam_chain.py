"""The chain of a beam search: which samplers it may have, its probabilities, and the best candidates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from aleator.core.arrays import Doubles, Int32s
from aleator.core.errors import ParameterError
from aleator.generate.logprobs import log_softmax
from aleator.samplers import SamplerChain
from aleator.samplers.candidates import Candidates

COLDEST = 1e-5
"""A temperature up to this leaves a single token."""
DRAWING = {
    "xtc": "xtc_probability",
    "mirostat": "mirostat",
    "mirostat_v2": "mirostat",
    "adaptive_p": "adaptive_target",
}
"""Samplers that draw, or adapt to what was drawn, and the parameter that turns each on."""
PLAIN = ("inverse", "mt19937")
"""Draws that ask for nothing; a preset has the second."""


def check_chain(chain: SamplerChain, temperature: float) -> None:
    """Refuse a chain with samplers that draw, or one that leaves a single token."""
    if chain.numerics != "portable":
        raise ParameterError(
            f"numerics={chain.numerics!r} draws whenever it is applied, and beams need probabilities: give "
            "'portable'",
        )
    for sampler in chain.members:
        draw = getattr(sampler, "draw", PLAIN[0])
        if draw not in PLAIN:
            raise ParameterError(
                f"draw={draw!r} says how tokens are drawn, and beams draw none: leave it out",
            )
        if sampler.name in DRAWING and not sampler.neutral:
            raise ParameterError(
                DRAWING[sampler.name],
                f"{DRAWING[sampler.name]}: {sampler.name} draws, or adapts to what was drawn, so beams have no "
                "probabilities under it: leave it out",
            )
    if temperature <= COLDEST:
        raise ParameterError(
            f"temperature={temperature:g} leaves one token, and beams nothing to choose from: leave it out, or "
            f"give more than {COLDEST:g} (default: 1)",
        )


def distribution(chain: SamplerChain, row: Any) -> tuple[Int32s, Doubles]:
    """The ids that a chain keeps of logits [V], ascending, and their natural-log probabilities."""
    candidates = Candidates(row)
    chain.apply(candidates)
    return candidates.ids, log_softmax(candidates.logits)


def ranked(scores: Doubles, first: int) -> Iterator[int]:
    """Indices of scores [n] above -inf, best first, ties in order; the first ``first`` are found at once."""
    bound, n = math.inf, first
    while True:
        n = min(n, len(scores))
        least = float(np.partition(scores, len(scores) - n)[len(scores) - n])
        places = np.flatnonzero((scores >= least) & (scores < bound) & (scores > -math.inf))
        yield from places[np.argsort(-scores[places], kind="stable")].tolist()
        if n == len(scores):
            return
        bound, n = least, 4 * n
