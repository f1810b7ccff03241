"""Entropy in portable numerics, against arithmetic of 200 digits."""

from __future__ import annotations

from collections import Counter

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

import aleator
from aleator import samplers as S
from aleator.core.numerics import Row
from tests.samplers.steps import applied

FAMILIES = ("peaked", "flat", "model-like", "masked", "two values", "one value", "huge", "tiny")
Logits = NDArray[np.float32]


def row_of(family: str, n: int, rng: np.random.Generator) -> Logits:
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
        row = np.where(rng.random(n) < rng.random(), rng.normal(0, 3, n), -np.inf)
        row[rng.integers(n)] = 0
    elif family == "two values":
        low, high = rng.normal(0, 10, 2)
        row = np.where(rng.random(n) < rng.random(), low, high)
    elif family == "one value":
        row = np.full(n, rng.normal())
    else:
        powers = (1, 30) if family == "huge" else (-30, -3)
        row = rng.normal(0, 10 ** rng.uniform(*powers), n)
    return row.astype(np.float32)


def exact_entropy(row: Logits, temperature: float) -> float:
    """Entropy in bits; at this precision even logits far below the top count."""
    counted = Counter(row[row > -np.inf].tolist())
    with mpmath.workdps(200):
        top = mpmath.mpf(max(counted))
        others = mpmath.mpf(0)
        weighted = mpmath.mpf(0)
        for logit, count in counted.items():
            depth = (top - mpmath.mpf(logit)) / mpmath.mpf(temperature)
            if depth:
                weight = mpmath.exp(-depth) * count
                others += weight
                weighted += weight * depth
        n = counted[float(top)]
        nats = mpmath.log(n) + mpmath.log1p(others / n) + weighted / (n + others)
        return float(nats / mpmath.log(2))


@pytest.mark.parametrize("family", FAMILIES)
def test_entropy_is_exact_to_a_millionth(family: str) -> None:
    rng = np.random.default_rng(FAMILIES.index(family))
    for n in (1, 2, 3, 40, 700):
        for temperature in (1.0, 0.7, 3.3):
            row = row_of(family, n, rng)
            candidates = aleator.Candidates(row)
            aleator.SamplerChain([S.Temperature(temperature=temperature)]).apply(candidates)
            exact = exact_entropy(row, temperature)
            assert candidates.entropy == pytest.approx(exact, rel=1e-6, abs=1e-250)


@pytest.mark.parametrize("n", [2, 40, 700])
@pytest.mark.parametrize("temperature", [1e30, 1e45, 1e300])
def test_a_temperature_too_large_for_float32_makes_all_equal(n: int, temperature: float) -> None:
    candidates = aleator.Candidates(np.linspace(-3, 3, n).astype(np.float32))
    aleator.SamplerChain([S.Temperature(temperature=temperature)]).apply(candidates)
    assert candidates.entropy == pytest.approx(np.log2(n), rel=1e-6)


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


def test_sums_over_whole_tiles_of_one_weight_do_not_overflow() -> None:
    """Kernels add weights in fewer bits where a tile lies deep enough: every depth there is a bound."""
    for bits in np.arange(8.75, 21, 0.25):
        row = np.full(700, -bits * np.log(2), np.float32)
        row[5] = 2**-10
        row[6] = 0
        for sampler in (S.TypicalP(typical_p=0.9), S.EtaCutoff(eta_cutoff=0.01), S.PLess("on")):
            applied(row, sampler, S.Dist())
        applied(row, S.Dist())
        assert aleator.Candidates(row).entropy == Row.load(row).entropy().bits


def test_sums_of_squares_over_whole_tiles_of_one_weight_do_not_overflow() -> None:
    """A token lies between p-less's threshold and what this would be if a tile's sum lost 2^64."""
    n = 8192
    for bits in np.arange(11, 12.25, 0.125):
        row = np.full(n + 128, -bits * np.log(2), np.float32)
        row[n:], row[n + 1] = -np.inf, 0
        weights = [int(w) for w in Row.load(row).weights()]
        squares, mass = sum(w * w for w in weights), sum(weights)
        for lost, kept in ((-(2**69), 2), (2**69, 1)):
            row[n + 2] = np.log((squares - lost) / mass / 2**40)
            assert len(applied(row, S.PLess("on"))) == kept, (bits, lost)


def test_llama_numerics_have_an_entropy_too() -> None:
    candidates = aleator.Candidates(np.zeros(8, np.float32))
    aleator.SamplerChain([S.TopK(top_k=4)], numerics="llama.cpp").apply(candidates)
    assert candidates.entropy == pytest.approx(2.0 if len(candidates) == 4 else 3.0)
