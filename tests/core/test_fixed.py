"""The contract's integer logarithm and exponential, against exact arithmetic."""

from __future__ import annotations

import math

import numpy as np

from aleator.core import numerics as N


def test_log2_is_the_floor_in_q32() -> None:
    assert N.log2_q32(1) == 0
    assert N.log2_q32(1 << 40) == 40 << 32
    rng = np.random.default_rng(0)
    for x in [3, 5, 2**64 - 1, 2**53 + 1, *(int(v) for v in rng.integers(1, 2**62, 300))]:
        assert abs(N.log2_q32(x) / 2**32 - math.log2(x)) < 2**-30


def test_log2_never_decreases() -> None:
    for start in (1, 2**20 - 50, 2**40 - 50, 2**63 - 50):
        values = [N.log2_q32(x) for x in range(start, start + 100)]
        assert values == sorted(values)


def test_exp2_inverts_log2() -> None:
    assert N.exp2_q62(0) == 1 << 62
    for y in np.linspace(-60, 60, 501):
        assert math.isclose(N.exp2_double(float(y)), 2.0**y, rel_tol=2e-9)
        assert abs(N.log2_double(N.exp2_double(float(y))) - y) < 2e-9
