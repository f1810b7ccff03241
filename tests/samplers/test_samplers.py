"""What each sampler does, on rows small enough to check by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import LogitsError, ParameterError


def kept(sampler: S.Sampler, probabilities: list[float], *before: S.Sampler) -> list[int]:
    row = np.log(np.array(probabilities)).astype(np.float32)
    candidates = S.Candidates(row)
    S.SamplerChain([*before, sampler], seed=1).apply(candidates)
    return [int(i) for i in candidates.ids]


P4 = [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    ("sampler", "probabilities", "expected"),
    [
        (S.TopK(top_k=2), P4, [2, 3]),
        (S.TopK(top_k=9), P4, [0, 1, 2, 3]),
        (S.TopK(top_k=2), [0.25] * 4, [0, 1]),
        (S.TopP(top_p=0.6), P4, [2, 3]),
        (S.TopP(top_p=0.5), [0.5, 0.25, 0.25], [0]),  # equality ends the prefix
        (S.TopP(top_p=0.6), [0.5, 0.25, 0.25], [0, 1]),
        (S.TopP(top_p=0.0), P4, [3]),
        (S.TopP(top_p=0.0, min_keep=3), P4, [1, 2, 3]),
        (S.MinP(min_p=0.5), [0.5, 0.25, 0.125, 0.125], [0, 1]),  # equality stays
        (S.MinP(min_p=1.0), [0.3, 0.3, 0.4], [2]),
        (S.MinP(min_p=0.9, min_keep=2), P4, [2, 3]),
        (S.TopA(top_a=0.5), [0.5, 0.25, 0.125, 0.0625, 0.0625], [0, 1, 2]),  # bound 0.125
        (S.TopNSigma(top_n_sigma=1.0), [math.exp(x) for x in range(5)], [3, 4]),
        # entropy 1.75 bits: surprises 1, 2, 3, 3 lie 0.75, 0.25, 1.25, 1.25 away
        (S.TypicalP(typical_p=0.25), [0.5, 0.25, 0.125, 0.125], [1]),
        (S.TypicalP(typical_p=0.75), [0.5, 0.25, 0.125, 0.125], [0, 1]),
        (S.TypicalP(typical_p=0.8), [0.5, 0.25, 0.125, 0.125], [0, 1, 2]),
        (S.XTC(xtc_probability=1.0, xtc_threshold=0.15), P4, [0, 1]),
        (S.XTC(xtc_probability=1.0, xtc_threshold=0.15, min_keep=3), P4, [0, 1, 2, 3]),
        (S.XTC(xtc_probability=1.0, xtc_threshold=0.35), P4, [0, 1, 2, 3]),
        (S.XTC(xtc_probability=1.0, xtc_threshold=0.25), [0.25] * 4, [3]),
        (S.TailFree(tfs_z=0.5), [0.5, 0.25, 0.125, 0.125], [0]),
        (S.TokenMask([1, 3]), P4, [1, 3]),
        (S.Temperature(temperature=0), [0.2, 0.4, 0.4], [1]),
    ],
)
def test_kept_sets(sampler: S.Sampler, probabilities: list[float], expected: list[int]) -> None:
    assert kept(sampler, probabilities) == expected


def test_full_mass_counts_what_was_cut_before() -> None:
    row = [0.4, 0.3, 0.2, 0.1]
    after = S.TopP(top_p=0.7, mass="full")
    assert kept(after, row, S.Softmax(), S.TopK(top_k=3)) == [0, 1]
    renormalised = S.TopP(top_p=0.75)
    assert kept(renormalised, row, S.TopK(top_k=3)) == [0, 1]
    assert kept(S.TopP(top_p=0.75, mass="full"), row, S.Softmax(), S.TopK(top_k=3)) == [0, 1, 2]
    with pytest.raises(ParameterError, match="Softmax before it"):
        kept(after, row)
    with pytest.raises(ParameterError, match="Softmax before it"):
        kept(after, row, S.Softmax(), S.Temperature(temperature=0.5))


def logits_after(sampler: S.Sampler, row: list[float], history: list[int]) -> list[float]:
    chain = S.SamplerChain([sampler])
    for token in history:
        chain.accept(token)
    candidates = S.Candidates(np.array(row, np.float32))
    chain.apply(candidates)
    return [float(z) for z in candidates.logits]


def test_penalties_as_llama_cpp_documents_them() -> None:
    after = logits_after(S.Penalties(repetition_penalty=1.5), [2, -2, 1, 0, 0], [0, 1, 4, 4])
    assert after == [float(np.float32(2) / np.float32(1.5)), -3, 1, 0, 0]
    three = S.Penalties(repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.25)
    after = logits_after(three, [2, -2, 1, 0, 0], [0, 1, 1])
    np.testing.assert_allclose(after, [0.5833334, -4.25, 1, 0, 0], rtol=1e-6)
    window = S.Penalties(penalty_last_n=3, repetition_penalty=2.0)
    assert logits_after(window, [1] * 5, [1, 2, 3, 4]) == [1, 1, 0.5, 0.5, 0.5]


def test_penalty_scopes() -> None:
    chain_history = [(0, False), (1, True)]
    for scope, expected in {"all": [-2, -2], "generated": [0, -2], "mixed": [0, -2]}.items():
        chain = S.SamplerChain([S.Penalties(presence_penalty=2, penalty_scope=scope)])
        for token, generated in chain_history:
            chain.accept(token, generated)
        candidates = S.Candidates(np.zeros(2, np.float32))
        chain.apply(candidates)
        assert candidates.logits.tolist() == expected
    mixed = S.Penalties(repetition_penalty=2, penalty_scope="mixed")
    assert logits_after(mixed, [4, 4], [0]) == [2, 4]


@pytest.mark.parametrize(
    ("parameters", "history", "changed"),
    [
        ((1, 1.1, 2, 5, []), [0, 1, 2, 0, 1], {2: -1}),
        ((0.8, 1.75, 2, 64, []), [0, 1, 2, 3, 4, 0, 1, 2, 3], {4: -2.45}),
        ((1, 2, 2, 64, []), [5] * 6, {5: -8}),
        ((1, 1.1, 2, 5, [(2,)]), [0, 1, 2, 0, 1], {}),
        ((1, 1.1, 2, 4, []), [0, 1, 2, 0, 1], {}),
        ((1, 2, 2, 64, [(3, 0)]), [0, 1, 2, 3, 0, 1], {}),  # the breaker is the join itself
        ((1, 2, 0, 64, []), [0, 1, 0], {0: -1, 1: -2}),
    ],
)
def test_dry(parameters: tuple[Any, ...], history: list[int], changed: dict[int, float]) -> None:
    multiplier, base, allowed, window, breakers = parameters
    sampler = S.DRY(multiplier, base, allowed, window, breakers)
    after = logits_after(sampler, [0] * 6, history)
    np.testing.assert_allclose(after, [changed.get(i, 0) for i in range(6)], rtol=1e-6)


def test_dry_penalty_stays_finite() -> None:
    sampler = S.DRY(1.0, 1.75, 2, -1, [])
    after = logits_after(sampler, [0.0] * 6, [5] * 3000)
    assert after[5] == float(np.float32(-3e38))


class Tokenizer:
    """Bytes as tokens, plus two that straddle a breaker."""

    pieces = (*(bytes([i]) for i in range(128)), b"x\n", b"-=")

    class vocab:
        pass

    def __init__(self) -> None:
        outer = self

        class Vocabulary:
            def __len__(self) -> int:
                return len(outer.pieces)

            def token_bytes(self, token: int) -> bytes:
                return outer.pieces[token]

        self.vocab = Vocabulary()  # type: ignore[assignment,misc]

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return list(text.encode())


def test_dry_breakers_from_text_cover_tokens_that_straddle_them() -> None:
    sampler = S.DRY(1.0, 2.0, 2, 64, ["\n", "=="], tokenizer=Tokenizer())
    assert set(sampler.breakers) == {(10,), (128,), (61, 61), (129, 61)}
    with pytest.raises(ParameterError, match="need a tokenizer"):
        S.DRY(dry_multiplier=1.0)
    assert S.DRY().breakers == ()  # off: nothing to prepare
    for bad in ("\n", [()], [(-1,)], [1.5], 7):
        with pytest.raises(ParameterError, match="dry_sequence_breakers"):
            S.DRY(dry_sequence_breakers=bad)


def test_dynamic_temperature_spans_its_range() -> None:
    flat, peaked = [0.25] * 4, [1 - 3e-9, 1e-9, 1e-9, 1e-9]
    for row, temperature in ((flat, 1.3), (peaked, 0.3)):
        z = np.log(np.array(row)).astype(np.float32)
        candidates = S.Candidates(z)
        sampler = S.Temperature(temperature=0.8, dynatemp_range=0.5)
        S.SamplerChain([sampler]).apply(candidates)
        np.testing.assert_allclose(candidates.logits, z / np.float32(temperature), rtol=1e-4)


def test_dynamic_temperature_matches_its_formula() -> None:
    z = np.array([0, 1, 2, 3], np.float32)
    p = np.exp(z - 3.0)
    p /= p.sum()
    level = -(p * np.log(p)).sum() / math.log(4)
    candidates = S.Candidates(z)
    sampler = S.Temperature(temperature=0.8, dynatemp_range=0.5, dynatemp_exponent=1.0)
    S.SamplerChain([sampler]).apply(candidates)
    np.testing.assert_allclose(candidates.logits, z / (0.3 + 1.0 * level), rtol=1e-5)
    assert abs(float(candidates.logits[3]) - 3.05031991) < 1e-4  # what llama.cpp computes


@pytest.mark.parametrize("sampler", [S.Mirostat(mirostat_tau=2.5), S.MirostatV2(mirostat_tau=2.5)])
def test_mirostat_holds_the_average_surprise(sampler: S.Sampler) -> None:
    ranks = np.arange(1, 2001, dtype=np.float64)
    row = (-1.1 * np.log(ranks)).astype(np.float32)  # Zipf, as the paper assumes
    p = np.exp(row.astype(np.float64))
    p /= p.sum()
    chain = S.SamplerChain([sampler], seed=5)
    surprises = []
    for _ in range(1500):
        candidates = S.Candidates(row)
        chain.apply(candidates)
        mass = p[candidates.ids].sum()
        token = candidates.selected
        assert token is not None
        surprises.append(-math.log2(p[token] / mass))
        chain.accept(token, generated=True)
    assert abs(float(np.mean(surprises[200:])) - 2.5) < 0.2


def test_mirostat_ignores_tokens_that_were_not_drawn() -> None:
    row = np.random.default_rng(0).normal(size=300).astype(np.float32) * 3
    plain, fed = S.SamplerChain([S.MirostatV2()], seed=2), S.SamplerChain([S.MirostatV2()], seed=2)
    for token in (1, 2, 3):
        fed.accept(token)
    assert [plain.sample(row) for _ in range(20)] == [fed.sample(row) for _ in range(20)]


def test_adaptive_p_moves_probabilities_toward_the_target() -> None:
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05])).astype(np.float32)
    candidates = S.Candidates(row)
    S.SamplerChain([S.AdaptiveP(adaptive_target=0.3)], seed=1).apply(candidates)
    np.testing.assert_allclose(candidates.logits, [2.333333, 5, 3.333333, 1.212121], rtol=2e-6)
    np.testing.assert_allclose(
        candidates.probs, [0.0542414, 0.7806385, 0.1474436, 0.0176765], rtol=3e-6
    )


def test_token_mask_forms_agree() -> None:
    allowed = [0, 5, 31, 32, 40]
    flags = np.zeros(50, np.bool_)
    flags[allowed] = True
    words = np.array([1 | 1 << 5 | 1 << 31, 1 | 1 << 8], np.uint32)
    for form in (allowed, set(allowed), flags, words, words.view(np.int32), np.array(allowed)):
        candidates = S.Candidates(np.zeros(60, np.float32))
        S.SamplerChain([S.TokenMask(form)]).apply(candidates)
        assert candidates.ids.tolist() == allowed
    for bad in ([], [[1]], [-1], [0.5], [2**24]):
        with pytest.raises(ParameterError, match="allowed"):
            S.TokenMask(bad)
    with pytest.raises(LogitsError, match="finite"):
        S.SamplerChain([S.TokenMask([70]), S.Greedy()]).sample(np.zeros(60, np.float32))


def test_gumbel_draws_follow_the_probabilities() -> None:
    probabilities = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])
    row = np.log(probabilities).astype(np.float32)
    chain = S.SamplerChain([S.Dist(99, draw="gumbel")])
    n = 40_000
    counts = np.bincount([chain.sample(row) for _ in range(n)], minlength=5)
    chi_square = float(((counts - n * probabilities) ** 2 / (n * probabilities)).sum())
    assert chi_square < 23.5  # 4 degrees of freedom, alpha = 1e-4
    with pytest.raises(ParameterError, match="draw"):
        S.Dist(draw="coin")


def test_xtc_fires_with_its_probability() -> None:
    row = np.log(np.array([0.4, 0.4, 0.2])).astype(np.float32)
    chain = S.SamplerChain([S.XTC(xtc_probability=0.3, xtc_threshold=0.1)], seed=8)
    fired = 0
    for position in range(10_000):
        chain.position = position
        candidates = S.Candidates(row)
        chain.apply(candidates)
        fired += len(candidates) < 3
    assert abs(fired - 3000) < 4 * math.sqrt(10_000 * 0.3 * 0.7)


class Pieces:
    """A vocabulary for infill: texts, the last two of which end generation."""

    eot: int | None
    eos: int | None

    def __init__(self, *texts: str) -> None:
        self.texts = [t.encode() for t in texts]
        self.eot, self.eos = len(texts) - 2, len(texts) - 1
        self.eog = frozenset({self.eot, self.eos})

    def __len__(self) -> int:
        return len(self.texts)

    def token_bytes(self, token: int) -> bytes:
        return self.texts[token]


@pytest.mark.parametrize(
    ("texts", "probabilities", "expected"),
    [
        (("hel", "hell", "hello", "dummy"), [0.5, 0.2, 0.1, 0.1, 0.02, 0.02], [0, 4, 5]),
        (("a", "b", "c", "d", "e", "f"), [0.165] * 6 + [1e-4, 1e-4], [6]),  # nothing clear: the end
        (("a", "b", "c"), [0.45, 0.4, 0.149, 1e-4, 1e-4], [0, 1, 3, 4]),
        (("a", "b"), [0.3, 0.3, 0.2, 0.2], [2, 3]),  # likely enough to end
    ],
)
def test_infill(texts: tuple[str, ...], probabilities: list[float], expected: list[int]) -> None:
    assert kept(S.Infill(Pieces(*texts, "<eot>", "<eos>")), probabilities) == expected


def test_infill_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ParameterError, match="vocabulary"):
        S.SamplingParams(samplers="top_k;infill").chain()
    endless = Pieces("a", "b", "c")
    endless.eot = endless.eos = None
    with pytest.raises(ParameterError, match="EOT or EOS"):
        S.Infill(endless)
    with pytest.raises(LogitsError, match="4,096"):
        S.SamplerChain([S.Infill(Pieces("a", "b", "c"))]).apply(
            S.Candidates(np.zeros(5000, np.float32))
        )
