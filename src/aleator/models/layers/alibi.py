"""Attention with linear biases (Press et al. 2022, arXiv:2108.12409): scores fall with the distance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def slopes(n_heads: int, largest: float) -> npt.NDArray[np.float32]:
    """How fast the scores of each head fall with the distance.

    Powers of two with exponents in equal steps; where the heads are no power of two, those beyond it take the
    steps between.

    Args:
        n_heads: query heads.
        largest: the largest exponent, 8 in the paper.

    Returns:
        float32 [n_heads].
    """
    whole = 1 << (n_heads.bit_length() - 1)
    exponents = [largest * (head + 1) / whole for head in range(whole)]
    exponents += [largest / 2 * (2 * head + 1) / whole for head in range(n_heads - whole)]
    return np.array([2.0**-exponent for exponent in exponents]).astype(np.float32)
