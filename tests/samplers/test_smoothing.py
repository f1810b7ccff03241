from __future__ import annotations

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import ParameterError
from tests.samplers.steps import INF, NAN, applied, f32, kept, logits_after


def test_a_parabola() -> None:
    row = f32(5, 4, 3, 1)
    assert logits_after(S.Smoothing(smoothing_factor=0.5), row) == [5, 4.5, 3, -3]
    assert logits_after(S.Smoothing(smoothing_factor=0.25), row) == [5, 4.75, 4, 1]


def test_a_curve_adds_the_cube() -> None:
    """Curve 2 halves the square: 5 - 0.5 * f * d^2 + 0.5 * f * d^3."""
    assert logits_after(S.Smoothing(smoothing_factor=1, smoothing_curve=2), f32(5, 4, 3)) == [
        5,
        4,
        -1,
    ]
    assert logits_after(S.Smoothing(smoothing_factor=1, smoothing_curve=3), f32(5, 4, 3)) == [
        5,
        4,
        -3,
    ]
    over = logits_after(S.Smoothing(smoothing_factor=1, smoothing_curve=9), f32(5, 4.75))
    assert over[1] > over[0] == 5  # 5 + 3 / 16 - 4 / 64


def test_the_temperature_comes_first() -> None:
    halved = applied(f32(10, 8, 6), S.Temperature(temperature=2), S.Smoothing(smoothing_factor=0.5))
    assert halved.logits.tolist() == [5, 4.5, 3]
    params = S.SamplingParams.preset("vllm", temperature=2, smoothing_factor=0.5)
    assert params.samplers == ("penalties", "temperature", "smoothing", "min_p", "top_k", "top_p")
    assert S.SamplingParams(smoothing_factor=1).samplers[-2:] == ("temperature", "smoothing")


def test_masked_and_overflowing_tokens() -> None:
    assert kept(f32(-INF, 1, NAN, 0), S.Smoothing(smoothing_factor=0.5)) == [1, 3]
    for curve in (1, 2, 3, 5, 10):
        wide = S.Smoothing(smoothing_factor=1e6, smoothing_curve=curve)
        assert kept(f32(3e38, -3e38, 0), wide) == [0]


def test_the_mass_that_softmax_saw_is_forgotten() -> None:
    full = S.TopP(top_p=0.5, mass="full")
    with pytest.raises(ParameterError, match="Softmax"):
        S.SamplerChain([S.Softmax(), S.Smoothing(smoothing_factor=0.1), full, S.Dist()])


def test_text_generation_webuis_formula() -> None:
    row = np.random.default_rng(2).normal(size=200).astype(np.float64) * 3
    for factor, curve in ((0.3, 1.0), (0.7, 2.2), (1.5, 4.0)):
        d, k, s = row - row.max(), (3 - curve) / 2, (curve - 1) / 2
        expected = -(k * factor * d**2) + s * factor * d**3 + row.max()
        ours = applied(
            row.astype(np.float32), S.Smoothing(smoothing_factor=factor, smoothing_curve=curve)
        ).logits
        np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-5)
