"""A sampler used by itself is a chain of itself: for every one in the index, with both numerics."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aleator import samplers as S
from aleator.core.errors import LogitsError, ParameterError
from aleator.core.parameter import NUMERICS
from tests.samplers.steps import Row, f32, logs
from tests.samplers.test_conformance import BIASES, VOCABULARY
from tests.samplers.test_properties import HISTORIES, ROWS, SAMPLERS, attempt, examples

Step = tuple[list[tuple[int, bool]], Row]


def left(sampler: S.Sampler | S.SamplerChain, row: Row, numerics: str) -> Any:
    """What is left of a row: tokens, logits to the bit, the choice."""
    candidates = S.Candidates(row, numerics)
    sampler.apply(candidates)
    return candidates.ids.tolist(), candidates.logits.tobytes(), candidates.selected


def after(sampler: S.Sampler | S.SamplerChain, steps: list[Step], numerics: str) -> list[Any]:
    """What steps leave; what is chosen is accepted."""
    seen = []
    for history, row in steps:
        for token, generated in history:
            sampler.accept(token, generated)
        found = attempt(lambda row=row: left(sampler, row, numerics))  # type: ignore[misc]
        if not isinstance(found, str) and found[2] is not None:
            sampler.accept(found[2], generated=True)
        seen.append(found)
    return seen


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("cls", SAMPLERS, ids=lambda cls: cls.name)
def test_equal_to_a_chain_of_itself(cls: type[S.Sampler], numerics: str) -> None:
    @examples(25)
    @given(SAMPLERS[cls], st.lists(st.tuples(HISTORIES, ROWS), min_size=1, max_size=4))
    def check(sampler: S.Sampler, steps: list[Step]) -> None:
        sampler = sampler.clone()  # examples may share the object, which stays without a state so
        made = attempt(lambda: sampler.own_chain(numerics))
        if isinstance(made, str):
            assert attempt(lambda: S.SamplerChain([sampler], numerics)) == made
            return
        chain = S.SamplerChain([sampler], numerics, seed=made._chain_seed)
        expected = after(chain, steps, numerics)
        assert after(sampler, steps, numerics) == expected
        assert (made.history, made.position) == (chain.history, chain.position)
        clone, again = sampler.clone(), chain.clone()
        assert clone == sampler
        assert after(clone, steps, numerics) == after(again, steps, numerics)
        if steps[-1][0]:
            sampler.rollback(1)
            chain.rollback(1)
        assert after(sampler, steps, numerics) == after(chain, steps, numerics)
        sampler.reset()
        assert after(sampler, steps, numerics) == expected

    check()


ROW = logs([0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize("numerics", NUMERICS)
def test_one_after_the_other_is_a_chain(numerics: str) -> None:
    samplers = [
        S.LogitBias({k: v for k, v in BIASES.items() if k < 4}),
        S.Penalties(presence_penalty=1),
        S.DRY(dry_multiplier=1, dry_allowed_length=1, dry_sequence_breakers=()),
        S.TopK(top_k=3),
        S.Infill(VOCABULARY),
        S.Temperature(temperature=1.5),
        S.Dist(seed=5),
    ]
    chain = S.SamplerChain(samplers, numerics)
    for _ in range(20):
        candidates = S.Candidates(ROW, numerics)
        for sampler in samplers:
            sampler.apply(candidates)
        token = candidates.selected
        assert token == chain.sample(ROW)
        for sampler in samplers:
            sampler.accept(token, generated=True)


def test_candidates_decide_the_numerics_and_both_have_the_history() -> None:
    sampler = S.Penalties(repetition_penalty=2.0)
    sampler.accept(3)
    assert S.Candidates(ROW).numerics is None
    ours = S.Candidates(f32(1, 2, 3, 4))
    sampler.apply(ours)
    assert (ours.numerics, ours.logits.tolist()) == ("portable", [1, 2, 3, 2])
    sampler.accept(0, generated=True)
    theirs = S.Candidates(f32(1, 2, -np.inf, 4), numerics="llama.cpp")
    assert theirs.numerics == "llama.cpp"
    sampler.apply(theirs)
    assert theirs.logits.tolist() == [0.5, 2, -np.inf, 2]
    for numerics in NUMERICS:
        chain = sampler.own_chain(numerics)
        assert (chain.numerics, chain.history, chain.position) == (numerics, [3, 0], 1)
    with pytest.raises(ParameterError, match="numerics='llama' is not known"):
        S.Candidates(ROW, "llama")
    with pytest.raises(ParameterError, match="numerics='llama' is not known"):
        sampler.own_chain("llama")
    with pytest.raises(ParameterError, match=r"not one of llama\.cpp's samplers"):
        S.TopA(top_a=0.1).apply(theirs)


def test_the_state_is_the_samplers_own() -> None:
    sampler = S.MirostatV2(mirostat_tau=0.5, seed=3)
    for _ in range(4):
        left(sampler, ROW, "portable")
        sampler.accept(1, generated=True)
    alone = sampler.own_chain()
    assert sampler.own_chain() is alone
    # Neither chains that it is put into, nor equal samplers, know of it.
    assert S.SamplerChain([sampler]).history == []
    equal = S.MirostatV2(mirostat_tau=0.5, seed=3)
    assert equal == sampler
    assert hash(equal) == hash(sampler)
    assert equal.own_chain().history == []
    # A pickle is of the parameters.
    received = pickle.loads(pickle.dumps(sampler))
    assert (received, received.own_chain().history) == (sampler, [])
    for made in (sampler.clone(), copy.copy(sampler), copy.deepcopy(sampler)):
        assert made is not sampler
        assert made.own_chain().history == [1] * 4
        made.accept(2)
    assert alone.history == [1] * 4
    assert copy.copy(fresh := S.TopK(top_k=2)) is fresh  # without a state there is nothing to copy


def test_a_seed_that_was_drawn_stays() -> None:
    sampler = S.Dist()
    row = np.zeros(1000, np.float32)
    first = left(sampler, row, "portable")
    assert left(sampler, row, "portable") == first  # the position has not moved
    assert left(sampler.clone(), row, "portable") == first
    sampler.accept(first[2], generated=True)
    sampler.reset()
    assert left(sampler, row, "portable") == first
    seed = sampler.own_chain().seed
    assert left(S.Dist(seed=seed), row, "portable") == first


def test_in_a_samplers_apply() -> None:
    class Half:
        """Top-k where the best token is not clear; a user's sampler made of a built-in one."""

        top_k = S.TopK(top_k=2)

        def apply(self, candidates: S.Candidates) -> None:
            if candidates.probs.max() < 0.5:
                self.top_k.apply(candidates)

    for numerics in NUMERICS:
        candidates = S.Candidates(ROW)
        S.SamplerChain([Half()], numerics).apply(candidates)
        assert candidates.ids.tolist() == [0, 1]


def test_errors_change_nothing() -> None:
    sampler = S.Penalties(presence_penalty=1)
    for wrong in (-1, 2**24, 1.5, True):
        with pytest.raises(ParameterError, match="token"):
            sampler.accept(wrong)  # type: ignore[arg-type]
    sampler.accept(2)
    with pytest.raises(ParameterError, match="give Candidates"):
        sampler.apply(ROW)  # type: ignore[arg-type]
    with pytest.raises(LogitsError):
        sampler.apply(S.Candidates(f32(-np.inf, -np.inf)))
    with pytest.raises(ParameterError, match="2 tokens"):
        sampler.rollback(2)
    assert sampler.own_chain().history == [2]
    sampler.rollback(1)
    assert sampler.own_chain().history == []
    with pytest.raises(ParameterError, match="Softmax"):
        S.TopP(top_p=0.5, mass="full").apply(S.Candidates(ROW))
