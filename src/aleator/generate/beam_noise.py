"""The noise of stochastic beams.

Kool, van Hoof and Welling, "Stochastic Beams and Where to Find Them" (2019, arXiv:1903.06059), the stable form
of appendix B.3.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aleator.core.arrays import Doubles
from aleator.core.contract import Purpose
from aleator.core.digests import new_digest
from aleator.core.philox import stream, uniform64


def follower(key: int, token: int = 0) -> int:
    """The key of a text extended by one token."""
    data = key.to_bytes(8, "little") + token.to_bytes(8, "little")
    return int.from_bytes(new_digest(8, data).digest(), "little")


def gumbel(key: int, ids: Any, position: int = 0) -> Doubles:
    """Standard Gumbel noise of token ids, float64: -ln(-ln u), u the middle of one of 2^52 parts of (0, 1)."""
    # Computed for whole rows, with the same arithmetic on the words.
    word = stream(Purpose.GUMBEL)
    bits: Any = uniform64(key, np.asarray(ids).astype(np.uint64), position, word)  # type: ignore[arg-type]
    noise: Doubles = -np.log(-np.log(((bits >> 12).astype(np.float64) + 0.5) * 2.0**-52))
    return noise


def with_maximum(perturbed: Doubles, largest: float) -> Doubles:
    """Gumbel variables [n], conditioned on their maximum being ``largest``.

    Kool et al., appendix B.3: with v = T - g + log1mexp(g - Z), g becomes T - max(0, v) - log1p(exp(-|v|)),
    where Z is the maximum of g and T is ``largest``.
    """
    below = perturbed - perturbed.max()
    with np.errstate(divide="ignore"):
        near = np.log(-np.expm1(np.maximum(below, -1.0)))
        v = largest - perturbed + np.where(below > -1.0, near, np.log1p(-np.exp(below)))
    made: Doubles = largest - np.maximum(0.0, v) - np.log1p(np.exp(-np.abs(v)))
    return made
