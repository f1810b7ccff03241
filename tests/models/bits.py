"""Numbers for tests of bits, and how these are compared."""

from __future__ import annotations

from typing import Any

import numpy as np
from decoder_numerics.blocks import Floats


def numbers(*shape: int, seed: int = 0, spread: int = 6) -> Floats:
    """Normal numbers of many magnitudes."""
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread, shape)
    return x.astype(np.float32)


def equal(got: Any, expected: Any) -> bool:
    """Whether float32 arrays or tensors on the CPU have one shape and equal bits; any NaN equals any other."""
    a, b = np.ascontiguousarray(got), np.ascontiguousarray(expected)
    if a.shape != b.shape:
        return False
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())
