"""Members of a chain: how they are described, seeds that chains draw, and chains that were edited."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import ParameterError
from aleator.samplers import chain_members
from aleator.samplers.base import MAX_LLAMA_SEED, Place, check_llama_seed, llama_seed
from tests.samplers.test_phases import VOCAB, rows


@pytest.mark.parametrize(
    ("sampler", "described"),
    [
        (S.TopK(), "top_k"),
        (S.TopK(5), "top_k=5"),
        (S.TopK(5, 9), "top_k(top_k=5, top_k_limit=9)"),
        (S.TopK(top_k_limit=9), "top_k_limit=9"),
        (S.TopP(0.5, min_keep=2), "top_p(top_p=0.5, min_keep=2)"),
        (S.Penalties(presence_penalty=1), "penalties(presence_penalty=1.0)"),
        (S.Dist(draw="gumbel"), "dist(draw=gumbel)"),
        (S.LogitBias({1: 2.0, 3: 1.0}), "logit_bias(2)"),
        (S.DRY(0.5, dry_sequence_breakers=[]), "dry(dry_multiplier=0.5, dry_sequence_breakers(0))"),
        (S.TokenMask([1]), "token_mask"),
        (S.Grammar('root ::= "a"'), "grammar"),
    ],
)
def test_samplers_are_described_by_what_is_not_neutral(sampler: S.Sampler, described: str) -> None:
    assert sampler.describe() == described


@pytest.mark.parametrize(
    ("numerics", "largest"), [("portable", 2**64 - 1), ("llama.cpp", 2**32 - 2)]
)
def test_seeds_are_drawn_from_all_there_are(
    numerics: str, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_members, "fresh_seed", lambda n: n - 1)
    random = (None, -1) if numerics == "portable" else (None, -1, 2**32 - 1)
    for seed in random:
        assert chain_members.effective_seed(seed, numerics) == largest
        assert S.SamplerChain([S.Dist()], numerics, seed=seed).seed == largest


def test_seeds_of_llama_s_numbers_are_counted_up_by_completions() -> None:
    assert MAX_LLAMA_SEED == 2**32 - 2
    for own, of_chain, completion, seed in (
        (None, 5, 0, 5), (None, 5, 7, 12), (3, 5, 7, 10), (2**32 - 1, 5, 7, 12), (0, 5, 0, 0),
        (2**32 - 2, 5, 1, 2**32 - 1), (2**32 - 2, 5, 3, 1), (None, 2**32 - 2, 2, 0),
    ):  # fmt: skip
        assert llama_seed(own, Place(of_chain, 0, completion)) == seed
    assert check_llama_seed(2**32 - 2) == 2**32 - 2
    with pytest.raises(ParameterError, match="give 0 to 4294967294, or -1 for random"):
        check_llama_seed(2**32 - 1)


def drawn(chain: S.SamplerChain, n: int = 20) -> list[int]:
    return [chain.sample(row) for row in rows(n)]


def kinds(chain: S.SamplerChain) -> list[str]:
    return [type(kernel).__name__ for kernel in chain.kernels.samplers]


@pytest.mark.parametrize("grammar", [True, False])
def test_a_chain_that_was_edited_is_as_one_made_so(grammar: bool) -> None:
    """Samplers of a kind are counted anew, and a grammar stays before all others."""
    own = S.Grammar("root ::= [ab<>t/]*", vocabulary=VOCAB) if grammar else None
    half, third = (S.XTC(xtc_probability=0.5, xtc_threshold=t) for t in (0.01, 0.05))

    def made(*samplers: Any) -> S.SamplerChain:
        return S.SamplerChain(samplers, seed=4, grammar=own)

    chain = made(third, S.Dist())
    for edit, wanted in (
        (lambda: chain.insert(0, half), (half, third, S.Dist())),
        (
            lambda: chain.insert(1, S.SamplerChain([half, S.MinP(0.01)])),
            (half, half, S.MinP(0.01), third, S.Dist()),
        ),
        (lambda: chain.remove(0), (half, S.MinP(0.01), third, S.Dist())),
        (lambda: chain.remove(-2), (half, S.MinP(0.01), S.Dist())),
        (lambda: chain.insert(-2, third), (half, S.MinP(0.01), third, S.Dist())),
    ):
        edit()
        other = made(*wanted)
        assert list(chain) == list(other)
        assert kinds(chain) == kinds(other)
        assert drawn(chain.clone()) == drawn(other)
    assert [place.ordinal for _, place in chain.samplers_with_places] == [0, 0, 1, 0]
    assert len(chain.all_with_places) == len(chain) + grammar


def test_what_a_plan_knows_of_a_chain() -> None:
    grammar = S.Grammar('root ::= "a"', vocabulary=VOCAB)
    for own in (None, grammar):
        chain = S.SamplerChain([S.TopK(5), S.MinP(0.0), S.Dist()], grammar=own)
        assert (
            chain.describe() == f"logits -> {'grammar -> ' if own else ''}top_k -> ?min_p -> dist"
        )
        plan = chain.plan("cuda")
        told = plan.where, plan.device, plan.grammar
        assert told == ("cuda", ("top_k", "dist"), own is not None)
    llama = S.SamplerChain([S.TopK(5), S.Dist()], "llama.cpp").plan("cuda")
    assert (llama.device, llama.host) == ((), ("top_k", "dist"))


@pytest.mark.parametrize(
    ("given", "says"),
    [({"allowed_token_ids": [3, 12]}, "allowed_token_ids names token 12: the vocabulary has 0 to 11"),
     ({"stop_token_ids": [12]}, "stop_token_ids names token 12: the vocabulary has 0 to 11")],
)  # fmt: skip
def test_tokens_lie_within_the_vocabulary(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        S.SamplingParams(**given).chain(VOCAB)
    inside: dict[str, Any] = {name: [11] for name in given}
    assert S.SamplingParams(**inside, temperature=0).chain(VOCAB)
    assert S.SamplingParams(**given, temperature=0).chain()  # without one nobody knows


def test_the_entropy_of_llama_s_candidates() -> None:
    for probabilities, bits in (
        ([0.25, 0.0, 0.75], 0.8112781),
        ([1.0, 0.0], 0.0),
        ([0.25] * 4, 2.0),
    ):
        with np.errstate(divide="ignore"):
            row = np.log(np.array(probabilities)).astype(np.float32)
        for numerics in ("portable", "llama.cpp"):
            candidates = S.Candidates(row, numerics)
            S.SamplerChain([S.Softmax()], numerics).apply(candidates)
            assert candidates.entropy == pytest.approx(bits, abs=1e-5)


def test_portable_candidates_are_sorted_only_where_there_is_one() -> None:
    assert [S.Candidates(np.zeros(n, np.float32)).sorted for n in (1, 2, 3)] == [True, False, False]
