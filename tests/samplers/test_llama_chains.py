"""Chains with llama.cpp's numerics: rollback, rows, and what may be called when."""

from __future__ import annotations

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import ParameterError
from tests.samplers.test_llama_departures import (
    ROW,
    applied,
    chain,
    full_chain,
    run,
    run_on,
)


@pytest.mark.parametrize("own", [True, False])
def test_seeds_have_32_bits(own: bool) -> None:
    with pytest.raises(ParameterError, match=r"seed=4294967296.*32 bits|0 to 4294967294"):
        chain(S.Dist(2**32)) if own else chain(S.Dist(), seed=2**32)


def test_a_completion_adds_to_the_seed() -> None:
    hot = S.Temperature(temperature=2)
    for i in (0, 1, 7):
        assert run(chain(hot, S.Dist(), seed=100, completion=i), 9) == run(
            chain(hot, S.Dist(100 + i)), 9
        )
        assert run(chain(hot, S.Dist(100), completion=i), 9) == run(chain(hot, S.Dist(100 + i)), 9)


def test_rollback_far_back_finds_the_generators_place() -> None:
    c = chain(S.Temperature(temperature=2), S.Dist(4))
    small = ROW[:50]
    tokens = [c.sample(small) for _ in range(5000)]
    for depth in (4999, 3000, 1500, 600, 10):
        c.rollback(depth)
        assert [c.sample(small) for _ in range(depth)] == tokens[5000 - depth :]


def test_reset_starts_again() -> None:
    c = full_chain()
    first = run(c, 40)
    c.reset()
    assert (c.position, c.history) == (0, [])
    assert run(c, 40) == first


def test_apply_draws_anew_and_sample_is_apply_and_accept() -> None:
    c, d = chain(S.Dist(42)), chain(S.Dist(42))
    zeros = np.zeros(1000, np.float32)
    assert run_on(c, zeros, 3) == [d.sample(zeros) for _ in range(3)] == [796, 183, 779]
    assert c.history == []
    assert d.history == [796, 183, 779]
    assert (d.n_sampled, d.position) == (3, 3)
    assert d.seconds > 0


def test_the_position_cannot_be_set() -> None:
    with pytest.raises(ParameterError, match="position cannot be set"):
        chain(S.Dist(1)).position = 3


def test_a_row_is_read_only_and_reused() -> None:
    before = ROW.copy()
    c = full_chain()
    for n in (3000, 100, 1, 2999, 3000):
        c.sample(ROW[:n])
    chain(S.Temperature(temperature=0.3), S.TopNSigma(top_n_sigma=1), S.Greedy()).sample(ROW)
    assert ROW.tobytes() == before.tobytes()


def test_a_chain_without_selection_says_so() -> None:
    c = chain(S.XTC(xtc_probability=0.5, xtc_threshold=0.01, seed=3))
    expected = [len(applied(c, ROW)) for _ in range(10)]
    c.reset()
    for _ in range(5):
        with pytest.raises(ParameterError, match="end it with Dist or Greedy"):
            c.sample(ROW)
    assert [len(applied(c, ROW)) for _ in range(10)] == expected
