from __future__ import annotations

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import ParameterError
from tests.samplers.steps import INF, NAN, applied, f32, kept, logs

ROW = logs([0.4, 0.3, 0.2, 0.1])
FULL = S.TopP(top_p=0.75, mass="full")


def test_it_changes_nothing() -> None:
    row = f32(3, -INF, NAN, 1, 2)
    left, plain = applied(row, S.Softmax()), applied(row)
    assert left.ids.tolist() == [0, 3, 4]
    assert left.logits.tobytes() == plain.logits.tobytes()


def test_the_mass_it_noted_is_what_full_measures_against() -> None:
    # 0.9 is left, so 0.75 of all of it takes three, of what is left two.
    assert kept(ROW, S.Softmax(), S.TopK(top_k=3), FULL) == [0, 1, 2]
    assert kept(ROW, S.TopK(top_k=3), S.TopP(top_p=0.75)) == [0, 1]


def test_the_last_one_counts() -> None:
    assert kept(ROW, S.Softmax(), S.TopK(top_k=3), S.Softmax(), FULL) == [0, 1]


def test_a_temperature_before_it_belongs_to_the_mass() -> None:
    cold = S.Temperature(temperature=0.5)  # 16, 9, 4, 1 thirtieths
    assert kept(ROW, cold, S.Softmax(), S.TopP(top_p=0.8, mass="full")) == [0, 1]
    assert kept(ROW, cold, S.Softmax(), S.TopP(top_p=0.85, mass="full")) == [0, 1, 2]


@pytest.mark.parametrize(
    "write",
    [S.LogitBias({0: 1.0}), S.Temperature(temperature=2), S.Penalties(presence_penalty=1)],
    ids=lambda sampler: sampler.name,
)
def test_a_write_to_logits_forgets_it(write: S.Sampler) -> None:
    with pytest.raises(ParameterError, match="Softmax before it"):
        S.SamplerChain([S.Softmax(), write, FULL])
    chain = S.SamplerChain([S.Softmax(), FULL, S.Dist(1)], seed=1)
    with pytest.raises(ParameterError, match="Softmax before it"):
        chain.insert(1, write)
    with pytest.raises(ParameterError, match="Softmax before it"):
        chain.remove(0)
    assert chain.describe() == "logits -> softmax -> top_p -> dist"
    chain.insert(0, write)
    chain.sample(ROW)


class Writes:
    def apply(self, candidates: S.Candidates) -> None:
        candidates.logits = candidates.logits * np.float32(2)


def test_what_a_users_sampler_writes_shows_when_it_runs() -> None:
    chain = S.SamplerChain([S.Softmax(), Writes(), FULL, S.Dist(1)])
    with pytest.raises(ParameterError, match="Softmax before it"):
        chain.sample(ROW)
    assert chain.history == []


def test_params_without_a_softmax_are_refused_when_the_chain_is_made() -> None:
    params = S.SamplingParams(top_p=0.5, mass="full", samplers="temperature;softmax;top_k;top_p")
    assert params.chain().sample(ROW) in range(4)
    with pytest.raises(ParameterError, match="Softmax before it"):
        params.replace(samplers="top_k;top_p").chain()


def test_with_llama_cpps_numbers_it_sorts_and_fills_in_probabilities() -> None:
    candidates = S.Candidates(f32(1, 3, 2))
    S.SamplerChain([S.Softmax()], numerics="llama.cpp").apply(candidates)
    assert (candidates.ids.tolist(), candidates.sorted) == ([1, 2, 0], True)
    np.testing.assert_allclose(
        candidates.probs, np.exp([0, -1, -2]) / np.exp([0, -1, -2]).sum(), rtol=1e-6
    )
