"""Entropy in portable numerics, against decimal arithmetic of 300 digits."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal, localcontext

import numpy as np
import pytest
from numpy.typing import NDArray

import aleator
from aleator import samplers as S

FAMILIES = ("peaked", "flat", "model-like", "masked", "two values", "one value", "huge", "tiny")


def row_of(family: str, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """A row of n logits."""
    if family == "peaked":
        row = rng.normal(0, rng.uniform(0.1, 10), n)
        row[rng.integers(n)] += rng.uniform(5, 60)
    elif family == "flat":
        row = rng.normal(0, rng.uniform(1e-6, 0.1), n)
    elif family == "model-like":
        row = rng.normal(0, 2, n)
        some = rng.choice(n, min(n, 300), replace=False)
        row[some] += rng.exponential(3, len(some)) + 6
    elif family == "masked":
        row = np.where(rng.random(n) < 0.5, rng.normal(0, 3, n), -np.inf)
        row[0] = 0
    elif family == "two values":
        low, high = rng.normal(0, 10, 2)
        row = np.where(rng.random(n) < rng.random(), low, high)
    elif family == "one value":
        row = np.full(n, rng.normal())
    else:
        powers = (1, 30) if family == "huge" else (-30, -3)
        row = rng.normal(0, 10 ** rng.uniform(*powers), n)
    return row.astype(np.float32)


def exact_entropy(row: NDArray[np.float32], temperature: float) -> Decimal:
    """In bits, with 300 digits: also what is far below the top counts."""
    counted = Counter(row[row > -np.inf].tolist())
    with localcontext() as context:
        context.prec, context.Emin = 300, -(10**9)
        top = Decimal(max(counted))
        total = weighted = Decimal(0)
        for logit, count in counted.items():
            depth = (top - Decimal(logit)) / Decimal(temperature)
            weight = (-depth).exp() * count
            total += weight
            weighted += weight * depth
        return (total.ln() + weighted / total) / Decimal(2).ln()


@pytest.mark.parametrize("family", FAMILIES)
def test_entropy_is_exact_to_a_millionth(family: str) -> None:
    rng = np.random.default_rng(FAMILIES.index(family))
    for n in (1, 2, 3, 40, 700):
        for temperature in (1.0, 0.7, 3.3):
            row = row_of(family, n, rng)
            candidates = aleator.Candidates(row)
            aleator.SamplerChain([S.Temperature(temperature=temperature)]).apply(candidates)
            exact = float(exact_entropy(row, temperature))
            # Below 2^-900 bits the gap to the top is clamped.
            assert candidates.entropy == pytest.approx(exact, rel=1e-6, abs=1e-250)


def test_wide_rows_keep_what_exact_arithmetic_keeps() -> None:
    """A good part of the entropy lies 20 bits and more below the top."""
    rng = np.random.default_rng(3)
    row = rng.normal(0, 1, 128_256).astype(np.float32)
    row[:20] = np.linspace(14.5, 8, 20)
    p = np.exp(row.astype(np.float64) - 14.5)
    p /= p.sum()
    surprise = -np.log2(p)
    entropy = float((p * surprise).sum())
    ranked = np.argsort(np.abs(surprise - entropy), kind="stable")
    count = int(np.searchsorted(np.cumsum(p[ranked]), 0.5)) + 1

    candidates = aleator.Candidates(row)
    assert candidates.entropy == pytest.approx(entropy, rel=1e-6)
    aleator.SamplerChain([S.TypicalP(typical_p=0.5)]).apply(candidates)
    assert len(candidates) == count == 6


def test_llama_numerics_have_an_entropy_too() -> None:
    candidates = aleator.Candidates(np.zeros(8, np.float32))
    aleator.SamplerChain([S.TopK(top_k=4)], numerics="llama.cpp").apply(candidates)
    assert candidates.entropy == pytest.approx(2.0 if len(candidates) == 4 else 3.0)
