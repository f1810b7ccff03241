from __future__ import annotations

import math

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import ParameterError
from tests.samplers.steps import INF, NAN, applied, f32, kept, kept_by_llama, logits_after, logs


def test_logits_are_divided_when_they_are_shown() -> None:
    z = f32(3, -1, 0.3)
    for temperature in (0.1, 0.7, 2.0, 1e4):
        expected = (z / np.float32(temperature)).tolist()
        assert logits_after(S.Temperature(temperature=temperature), z) == expected


def test_temperatures_multiply_in_float64() -> None:
    z = f32(3, -1, 0.3)
    left = applied(z, S.Temperature(temperature=0.1), S.Temperature(temperature=0.7))
    assert left.logits.tolist() == (z / np.float32(0.1 * 0.7)).tolist()
    back = applied(z, S.Temperature(temperature=1e-3), S.Temperature(temperature=1e3))
    assert back.logits.tobytes() == z.tobytes()


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-5])
def test_zero_leaves_the_argmax_and_of_ties_the_lowest_id(temperature: float) -> None:
    for row, token in (
        (logs([0.2, 0.4, 0.4]), 1),
        (f32(-INF, NAN, 1, 1), 2),
        (f32(1, INF, INF), 1),
    ):
        assert kept(row, S.Temperature(temperature=temperature)) == [token]
    assert kept(f32(1, 2), S.Temperature(temperature=1.1e-5)) == [0, 1]
    assert kept_by_llama(f32(1, 3, 3, 2), S.Temperature(temperature=0)) == [1]


def test_products_below_the_bound_are_argmax_too() -> None:
    tenth = [S.Temperature(temperature=0.01)] * 2
    assert kept(f32(1, 2), *tenth) == [0, 1]
    assert kept(f32(1, 2), *tenth, S.Temperature(temperature=0.1)) == [1]


def test_a_product_that_is_not_finite_is_refused() -> None:
    hot = S.Temperature(temperature=1e300)
    chain = S.SamplerChain([hot, hot, S.Dist(1)])
    with pytest.raises(ParameterError, match="temperature"):
        chain.sample(f32(1, 2))
    assert chain.history == []


@pytest.mark.parametrize(
    ("probabilities", "temperature"), [([0.25] * 4, 1.3), ([1 - 3e-9, 1e-9, 1e-9, 1e-9], 0.3)]
)
def test_a_dynamic_temperature_spans_its_range(
    probabilities: list[float], temperature: float
) -> None:
    z = logs(probabilities)
    sampler = S.Temperature(temperature=0.8, dynatemp_range=0.5)
    np.testing.assert_allclose(logits_after(sampler, z), z / np.float32(temperature), rtol=1e-4)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 3.0])
def test_a_dynamic_temperature_is_its_formula(exponent: float) -> None:
    z = f32(0, 1, 2, 3)
    p = np.exp(z - 3.0)
    p /= p.sum()
    level = -(p * np.log(p)).sum() / math.log(4)
    sampler = S.Temperature(temperature=0.8, dynatemp_range=0.5, dynatemp_exponent=exponent)
    after = logits_after(sampler, z)
    np.testing.assert_allclose(after, z / (0.3 + level**exponent), rtol=1e-5)
    if exponent == 1:
        assert after[3] == pytest.approx(3.05031991, abs=1e-4)  # what llama.cpp computes


def test_a_dynamic_temperature_counts_candidates_only() -> None:
    sampler = S.Temperature(temperature=0.8, dynatemp_range=0.5)
    masked = logits_after(sampler, f32(0, -INF, 1, 2, NAN, 3))
    assert masked == logits_after(sampler, f32(0, 1, 2, 3))


def test_a_range_above_the_temperature_starts_at_zero() -> None:
    sure = f32(0, 50)  # entropy 0
    assert kept(sure, S.Temperature(temperature=0.4, dynatemp_range=0.5)) == [1]
    assert kept(f32(0, 0), S.Temperature(temperature=0.0, dynatemp_range=0.5)) == [0, 1]
