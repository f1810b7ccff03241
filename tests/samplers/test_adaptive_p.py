from __future__ import annotations

import numpy as np
import pytest

from aleator import samplers as S
from tests.samplers.steps import applied, draws, logs

ROW = logs([0.5, 0.3, 0.15, 0.05])


def test_probabilities_move_toward_the_target() -> None:
    left = applied(ROW, S.AdaptiveP(adaptive_target=0.3))
    np.testing.assert_allclose(left.logits, [2.333333, 5, 3.333333, 1.212121], rtol=2e-6)
    np.testing.assert_allclose(
        left.probs, [0.0542414, 0.7806385, 0.1474436, 0.0176765], rtol=3e-6
    )  # what llama.cpp gives


def test_below_zero_it_is_the_plain_draw() -> None:
    off = S.AdaptiveP(adaptive_target=-1.0)
    left = applied(ROW, off)
    assert left.logits.tobytes() == applied(ROW).logits.tobytes()
    n = 20_000
    counts = np.bincount(draws(ROW, off, n=n), minlength=4)
    expected = n * np.array([0.5, 0.3, 0.15, 0.05])
    assert float(((counts - expected) ** 2 / expected).sum()) < 21.1  # 3 degrees, alpha = 1e-4


def test_the_average_comes_to_the_target() -> None:
    p = np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05])
    row = logs(p.tolist())
    for target in (0.1, 0.15):
        tokens = draws(row, S.AdaptiveP(adaptive_target=target), n=4000)
        assert abs(p[tokens].mean() - target) < 0.02
    assert abs(p[draws(row, S.Dist(), n=4000)].mean() - (p**2).sum()) < 0.01


def average(chain: S.SamplerChain) -> float:
    kernel = chain._native.samplers[-1]
    return float(kernel.average)  # type: ignore[union-attr]


def test_only_the_token_that_was_drawn_counts() -> None:
    chain = S.SamplerChain([S.AdaptiveP(adaptive_target=0.3, adaptive_decay=0.5)], seed=1)
    assert average(chain) == pytest.approx(0.3)
    for token in (0, 1, 2, 3):
        chain.accept(token)  # a prompt
    assert average(chain) == pytest.approx(0.3)
    token = chain.sample(ROW)
    p = [0.5, 0.3, 0.15, 0.05][token]
    # The start weighs 1 / (1 - decay) = 2 tokens, and decays with them.
    assert average(chain) == pytest.approx((0.3 * 2 * 0.5 + p) / 2, rel=1e-6)
    chain.rollback(1)
    assert average(chain) == pytest.approx(0.3)
