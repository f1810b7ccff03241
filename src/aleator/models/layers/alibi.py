"""Attention with linear biases (Press et al. 2022, arXiv:2108.12409): scores fall with the distance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def slopes(n_heads: int, largest: float) -> npt.NDArray[np.float32]:
    """How fast the scores of each head fall with the distance, float32 [n_heads].

    Powers of two with exponents in equal steps up to ``largest``, 8 in the paper; where the heads are no
    power of two, those beyond it take the steps between.
    """
    whole = 1 << (n_heads.bit_length() - 1)
    exponents = [largest * (head + 1) / whole for head in range(whole)]
    exponents += [largest / 2 * (2 * head + 1) / whole for head in range(n_heads - whole)]
    return np.array([2.0**-exponent for exponent in exponents]).astype(np.float32)
