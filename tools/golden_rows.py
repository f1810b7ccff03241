"""Rows of logits from integer formulas, exact in IEEE double: golden files name a row instead of holding it.

``row("spread", n, q, step)``: u_i = ((i + 977 * step) * 2654435761 mod 2^32) / 2^32, squared q times, each
square rounded; then 30 * u - 5 in float64, rounded to float32.  The other families start from that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def uniforms(n: int, q: int, step: int = 0) -> NDArray[np.float64]:
    """Values in [0, 1), squared q times."""
    i = np.arange(n, dtype=np.uint64) + np.uint64(977 * step)
    u = (i * np.uint64(2654435761) % np.uint64(2**32)).astype(np.float64) / 2.0**32
    for _ in range(q):
        u = u * u
    return u


def row(family: str, n: int, q: int = 4, step: int = 0) -> NDArray[np.float32]:
    """One row, shape [n], float32.

    spread    the formula above
    ties      multiples of 1/2, so that most logits have equals
    equal     all zero
    narrow    within 0.01
    shifted   spread - 1000
    short     spread with the low 16 bits cleared: bfloat16 values
    rising    ascending, so that every token beats all before it
    masked    spread, nine of ten tokens at -inf
    lonely    all -inf but one
    """
    u = uniforms(n, q, step)
    logits = (30 * u - 5).astype(np.float32)
    if family == "ties":
        return (np.floor(16 * u) / 2).astype(np.float32)
    if family == "equal":
        return np.zeros(n, np.float32)
    if family == "narrow":
        return (u / 100).astype(np.float32)
    if family == "shifted":
        return (30 * u - 1005).astype(np.float32)
    if family == "short":
        return (logits.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    if family == "rising":
        return (np.arange(n) * 8.0 / n).astype(np.float32)
    if family == "masked":
        kept = (np.arange(n, dtype=np.uint64) + np.uint64(step)) * np.uint64(40503) % np.uint64(10)
        return np.where(kept == 0, logits, np.float32(-np.inf)).astype(np.float32)
    if family == "lonely":
        logits = np.full(n, -np.inf, np.float32)
        logits[(977 * step + n // 3) % n] = 1
        return logits
    if family != "spread":
        raise ValueError(f"there is no family {family!r}")
    return logits
