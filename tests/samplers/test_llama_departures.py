"""Where numerics="llama.cpp" departs from llama.cpp on purpose (docs/llama-cpp.md), and its own rules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from golden_rows import row
from numpy.typing import NDArray

from aleator import LanguageModel
from aleator import samplers as S
from aleator.core import host
from aleator.core.errors import LogitsError, ParameterError
from aleator.text import Tokenizer, Vocabulary
from tests.samplers.steps import texts_and_ends
from tests.text.vocabularies import sentencepiece

Logits = NDArray[np.float32]
INF = np.float32(np.inf)
ROW = row("spread", 3000, 3)


def chain(*samplers: S.Sampler, **options: Any) -> S.SamplerChain:
    return S.SamplerChain(samplers, numerics="llama.cpp", **options)


def applied(c: S.SamplerChain, logits: Logits) -> S.Candidates:
    candidates = S.Candidates(logits)
    c.apply(candidates)
    return candidates


def run(c: S.SamplerChain, n: int) -> list[int]:
    return [c.sample(ROW) for _ in range(n)]


def full_chain(seed: int = 5, **changes: Any) -> S.SamplerChain:
    params = S.SamplingParams.preset(
        "llama.cpp", seed=seed, numerics="llama.cpp", repetition_penalty=1.2, dry_multiplier=0.8,
        dry_sequence_breakers=(), xtc_probability=0.5, xtc_threshold=0.05, top_p=0.999, **changes,
    )  # fmt: skip
    built: S.SamplerChain = params.chain()
    return built


SELECTING: list[list[S.Sampler]] = [
    [S.Temperature(temperature=1.5), S.Dist(7)],
    [S.Mirostat(mirostat_tau=3.0, seed=7)],
    [S.MirostatV2(mirostat_tau=3.0, seed=7)],
    [S.AdaptiveP(adaptive_target=0.2, seed=7)],
    [S.XTC(xtc_probability=0.5, xtc_threshold=0.01, seed=7), S.Dist(7)],
]


def test_nan_is_masked() -> None:
    logits = ROW.copy()
    logits[[3, 700, 2999]] = np.nan
    masked = np.where(np.isnan(logits), -INF, logits)
    for samplers in SELECTING:
        c, d = chain(*samplers), chain(*samplers)
        assert [c.sample(logits) for _ in range(5)] == [d.sample(masked) for _ in range(5)]


def test_a_single_candidate_consumes_a_draw_of_dist_only() -> None:
    one, zeros = np.zeros(1, np.float32), np.zeros(1000, np.float32)
    for sampler, place in (
        (S.Dist(42), 183),
        (S.MirostatV2(mirostat_tau=20, seed=42), 796),
        (S.AdaptiveP(adaptive_target=-1, seed=42), 796),
    ):
        c = chain(sampler)
        assert applied(c, one).selected == 0
        drawn = applied(c, zeros)
        assert drawn.selected == drawn.ids[place]  # mirostat sorts, which shuffles equal logits
    c = chain(S.Dist(42))
    with pytest.raises(LogitsError, match="empty"):
        c.sample(np.zeros(0, np.float32))
    assert applied(c, zeros).selected == 796


@pytest.mark.parametrize("samplers", [*SELECTING, [S.Greedy()], [S.MinP(min_p=0.5), S.Dist(7)]])
@pytest.mark.parametrize("bad", [np.full(300, -np.inf), np.full(300, np.nan), np.zeros(0)])
def test_nothing_finite_is_an_error_that_draws_nothing(samplers: Any, bad: Any) -> None:
    c, d = chain(*samplers), chain(*samplers)
    assert run(c, 3) == run(d, 3)
    with pytest.raises(LogitsError):
        c.sample(bad.astype(np.float32))
    assert run(c, 3) == run(d, 3)
    assert c.history == d.history


@pytest.mark.parametrize(
    "select",
    [
        S.Dist(1),
        S.Greedy(),
        S.MirostatV2(seed=1),
        S.Mirostat(seed=1),
        S.AdaptiveP(adaptive_target=0.3, seed=1),
    ],
)
def test_a_step_that_fails_half_way_draws_nothing(select: S.Sampler) -> None:
    coin = S.XTC(xtc_probability=0.5, xtc_threshold=0.02, seed=9)
    lethal = S.LogitBias([(i, -math.inf) for i in range(20)])
    c, d = chain(coin, lethal, select), chain(coin, lethal, select)
    c.sample(ROW), d.sample(ROW)
    for _ in range(3):
        with pytest.raises(LogitsError, match="finite"):
            c.sample(ROW[:20])
    assert run(c, 20) == run(d, 20)


@pytest.mark.parametrize("k", [3, 128, 129, 2000])
@pytest.mark.parametrize("high", [np.inf, 1e9, 3e38])
def test_the_highest_logit_survives_the_buckets(k: int, high: float) -> None:
    logits = ROW.copy()
    logits[1234] = high
    c = applied(chain(S.TopK(top_k=k)), logits)
    assert (c.ids[0], len(c)) == (1234, k)
    c = applied(chain(S.TopP(top_p=0.5)), logits)
    assert c.ids.tolist() == [1234]


def test_infinite_logits_share_everything() -> None:
    logits = ROW.copy()
    logits[[10, 20]] = np.inf
    for samplers in SELECTING:
        if isinstance(samplers[-1], S.AdaptiveP):
            continue  # there a probability above the target is no advantage
        c = chain(*samplers)
        assert set(run_on(c, logits, 30)) <= {10, 20}
    kept = applied(chain(S.TopP(top_p=0.9999)), logits)
    assert sorted(kept.ids.tolist()) == [10, 20]
    assert kept.probs.tolist() == [0.5, 0.5]


def run_on(c: S.SamplerChain, logits: Logits, n: int) -> list[int | None]:
    return [applied(c, logits).selected for _ in range(n)]


def test_a_bias_after_sorting_may_be_large() -> None:
    logits = np.arange(10, dtype=np.float32)
    c = chain(S.TopK(top_k=5), S.LogitBias({6: 500.0}), S.Dist(1))
    assert run_on(c, logits, 20) == [6] * 20
    c = chain(S.TopK(top_k=5), S.LogitBias({9: -math.inf}), S.Dist(1))
    seen = run_on(c, logits, 60)
    assert set(seen) <= {5, 6, 7, 8}
    assert len(set(seen)) > 1


def test_opposite_infinities_mask() -> None:
    logits = ROW.copy()
    logits[3] = np.inf
    for c in (
        chain(S.LogitBias({3: -math.inf}), S.Dist(1)),
        chain(S.TopK(top_k=9), S.LogitBias({3: -math.inf}), S.Dist(1)),
    ):
        assert 3 not in run_on(c, logits, 20)


@pytest.mark.parametrize("min_keep", [0, 5, 1000])
@pytest.mark.parametrize("typical_p", [0.0, 0.3, 0.9, 0.999999])
def test_typical_p_leaves_out_what_has_no_probability(typical_p: float, min_keep: int) -> None:
    logits = row("masked", 500, 2)
    logits[np.argmax(logits)] += 200  # the others underflow: their probability is 0 as well
    sampler = S.TypicalP(typical_p=typical_p, min_keep=min_keep)
    assert applied(chain(sampler), logits).ids.tolist() == [int(np.argmax(logits))]
    c = applied(chain(sampler), row("masked", 500, 2))
    assert np.isfinite(c.logits).all()


def test_typical_p_leaves_them_out_wherever_they_are() -> None:
    """A row stays sorted by its flag where a bias masked its first token."""
    logits = np.arange(10, dtype=np.float32)
    masked = S.LogitBias({9: -math.inf, 7: -math.inf})
    for typical_p, kept in ((0.5, [8]), (0.999, [8, 6, 5])):
        c = applied(chain(S.TopK(top_k=5), masked, S.TypicalP(typical_p=typical_p)), logits)
        assert sorted(c.ids.tolist(), reverse=True) == kept
        assert np.isfinite(c.logits).all()


def test_xtc_without_a_threshold_stops_before_masked_tokens() -> None:
    logits = row("masked", 500, 2)
    c = applied(chain(S.XTC(xtc_probability=1, xtc_threshold=0, seed=1)), logits)
    assert np.isfinite(c.logits[0])
    assert not np.isfinite(c.logits[1:]).any()
    finite = row("spread", 500, 2)
    assert len(applied(chain(S.XTC(xtc_probability=1, xtc_threshold=0, seed=1)), finite)) == 1


def test_mirostat_whose_estimate_overflows_cuts_nothing() -> None:
    equal = np.zeros(64, np.float32)
    assert len(applied(chain(S.Mirostat(mirostat_tau=10, seed=3)), equal)) == 64
    assert len(applied(chain(S.Mirostat(mirostat_tau=2, seed=3)), ROW)) < 64


def test_tail_free_never_removes_everything() -> None:
    logits = np.array([5, 0, 0, 0], np.float32)
    assert len(applied(chain(S.TailFree(tfs_z=0.0)), logits)) == 1
    gentle = ROW[:50] / np.float32(8)
    p = np.exp(np.sort(gentle)[::-1].astype(np.float64))
    p /= p.sum()
    curvature = np.abs(np.diff(np.diff(p)))
    expected = int(np.argmax(np.cumsum(curvature / curvature.sum()) > 0.9))
    c = applied(chain(S.TailFree(tfs_z=0.9)), gentle)
    assert len(c) == expected > 1
    assert c.sorted


def test_a_window_of_minus_one_is_the_whole_history() -> None:
    whole = chain(
        S.Penalties(penalty_last_n=-1, repetition_penalty=1.5, presence_penalty=1.0), S.Dist(1)
    )
    wide = chain(
        S.Penalties(penalty_last_n=500, repetition_penalty=1.5, presence_penalty=1.0), S.Dist(1)
    )
    assert run(whole, 100) == run(wide, 100)
    dry: dict[str, Any] = {"dry_multiplier": 2.0, "dry_sequence_breakers": ()}
    past = [1, 2, 3, *range(10, 300), 1, 2]
    logits = []
    for n in (-1, 1000, 64):
        c = chain(S.DRY(dry_penalty_last_n=n, **dry))
        for token in past:
            c.accept(token)
        logits.append(applied(c, np.zeros(8, np.float32)).logits.tolist())
    assert logits[0] == logits[1] != logits[2] == [0.0] * 8
    assert logits[0][3] == -2


def test_a_breaker_that_begins_with_a_space_is_in_tokens_that_do() -> None:
    tokenizer = Tokenizer(Vocabulary.from_metadata(sentencepiece()))
    values: dict[str, Any] = {"dry_multiplier": 1.0, "dry_allowed_length": 1}
    dry = S.DRY(**values, dry_sequence_breakers=(" ab",), tokenizer=tokenizer)
    c = chain(dry)
    for token in (260, 263, 260):  # "a", " ab", "a": the repetition would go on with the breaker
        c.accept(token)
    assert not applied(c, np.zeros(264, np.float32)).logits.any()
    without = chain(S.DRY(**values, dry_sequence_breakers=()))
    without.accept_many([260, 263, 260])
    assert applied(without, np.zeros(264, np.float32)).logits[263] == -1


def test_unknown_tokens_have_no_bias() -> None:
    c = chain(S.LogitBias({3000: 1.0}), S.Dist(1))
    with pytest.raises(ParameterError, match=r"names token 3000.*3000 values"):
        c.sample(ROW)


@pytest.mark.parametrize("mirostat", [1, 2])
@pytest.mark.parametrize(
    ("dropped", "named"),
    [
        ({"repetition_penalty": 1.1}, "penalties"),
        ({"dry_multiplier": 1.0, "dry_sequence_breakers": ()}, "dry"),
        ({"xtc_probability": 0.5}, "xtc"),
        ({"top_k": 40}, "top_k"),
        ({"dynatemp_range": 0.5}, "dynatemp_range"),
    ],
)
def test_what_mirostat_would_drop_is_refused(mirostat: int, dropped: Any, named: str) -> None:
    params = S.SamplingParams(mirostat=mirostat, numerics="llama.cpp", **dropped)
    with pytest.raises(ParameterError, match=f"drops {named}"):
        params.chain()


@pytest.mark.parametrize(("mirostat", "name"), [(1, "mirostat"), (2, "mirostat_v2")])
def test_mirostat_replaces_the_list(mirostat: int, name: str) -> None:
    params = S.SamplingParams.preset(
        "llama.cpp", mirostat=mirostat, numerics="llama.cpp", logit_bias={3: 1.0}, temperature=0.7, seed=3
    )  # fmt: skip
    assert params.chain().describe() == f"logits -> logit_bias -> temperature -> {name}"


def test_adaptive_p_replaces_the_draw() -> None:
    params = S.SamplingParams(
        samplers="adaptive_p;min_p", adaptive_target=0.3, min_p=0.1, numerics="llama.cpp", seed=3
    )
    assert params.chain().describe() == "logits -> min_p -> adaptive_p"


@pytest.mark.parametrize("seed", [None, -1, 2**32 - 1])
def test_a_random_seed_is_reported_and_kept(seed: int | None) -> None:
    c = chain(S.Temperature(temperature=2), S.Dist(), seed=seed)
    first = run(c, 30)
    assert 0 <= c.seed <= 2**32 - 2
    c.reset()
    assert run(c, 30) == first
    assert run(chain(S.Temperature(temperature=2), S.Dist(c.seed)), 30) == first
    assert run(chain(S.Temperature(temperature=2), S.Dist(), seed=seed), 30) != first


def test_an_own_random_seed_is_the_chains() -> None:
    random = chain(S.Temperature(temperature=2), S.Dist(2**32 - 1), seed=8)
    assert run(random, 20) == run(chain(S.Temperature(temperature=2), S.Dist(8)), 20)


@pytest.mark.parametrize(
    ("sampler", "named"),
    [
        (S.TopA(top_a=0.1), "top_a"),
        (S.TokenMask(allowed=[1, 2]), "token_mask"),
        (S.Dist(1, draw="gumbel"), "draw"),
        (S.TopP(top_p=0.5, mass="full"), "mass"),
        (S.MinP(min_p=0.5, mass="full"), "mass"),
        (S.Penalties(repetition_penalty=2, penalty_scope="generated"), "penalty_scope"),
    ],
)
def test_what_llama_cpp_does_not_have_is_refused(sampler: S.Sampler, named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        chain(sampler)


def test_what_does_nothing_is_left_out() -> None:
    c = chain(S.TopA(), S.TokenMask(), S.TopK(), S.Temperature(), S.MinP(min_p=0.1))
    assert c.describe() == "logits -> ?top_a -> ?token_mask -> ?top_k -> ?temperature -> min_p"
    assert not applied(c, ROW).sorted


def test_candidates_belong_to_one_numerics() -> None:
    portable = S.SamplerChain([S.TopK(top_k=3)])
    candidates = applied(chain(S.TopK(top_k=3)), ROW)
    with pytest.raises(ParameterError, match="make new Candidates"):
        portable.apply(candidates)
    candidates = S.Candidates(ROW)
    portable.apply(candidates)
    with pytest.raises(ParameterError, match="make new Candidates"):
        chain(S.TopK(top_k=3)).apply(candidates)


def test_probabilities_are_of_the_present_candidates() -> None:
    c = S.Candidates(ROW)
    chain(S.TopK(top_k=3)).apply(c)
    expected = np.exp(c.logits.astype(np.float64) - c.logits.max())
    np.testing.assert_allclose(c.probs, expected / expected.sum(), rtol=1e-6)
    before = c.logits.copy()
    chain(S.TopP(top_p=0.5), S.Temperature(temperature=0.5)).apply(c)
    np.testing.assert_array_equal(c.logits, before[: len(c)] / np.float32(0.5))
    assert c.probs.sum() == pytest.approx(1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_widened(dtype: str) -> None:
    torch = pytest.importorskip("torch")

    low = torch.from_numpy(ROW).to(getattr(torch, dtype))
    wide = low.float().numpy()
    for c, d in ((full_chain(), full_chain()), (chain(S.Dist(3)), chain(S.Dist(3)))):
        assert [c.sample(low) for _ in range(10)] == [d.sample(wide) for _ in range(10)]


def test_infill_that_leaves_one_end_token_is_sure_of_it() -> None:
    for ends in ((0.002, 0.001), (0, 0)):  # no text token has a fifth of the mass
        with np.errstate(divide="ignore"):
            logits = np.log(np.array([*[0.16] * 6, *ends], np.float32))
        left = applied(chain(S.Infill(texts_and_ends(*"abcdef", "", ""))), logits)
        assert (left.ids.tolist(), left.logits.tolist(), left.probs.tolist()) == ([6], [1], [1])
        assert left.p.tolist() == pytest.approx([ends[0] / (0.96 + sum(ends))])  # as it was


def test_an_infill_vocabulary_is_checked() -> None:
    with pytest.raises(ParameterError, match="end-of-generation token is 3"):
        host.InfillVocabulary([b"a", b"b"], [3], 0)
    with pytest.raises(ParameterError, match="end-of-turn token is -1"):
        host.InfillVocabulary([b"a", b"b"], [1], -1)


def test_references_are_portable() -> None:
    with pytest.raises(ParameterError, match="portable"):
        S.ReferenceChain(chain(S.Dist(1)))
    with pytest.raises(ParameterError, match="numerics"):
        S.SamplerChain([S.Dist(1)], numerics="exact")
    with pytest.raises(ParameterError, match="numerics"):
        S.SamplingParams(numerics="exact")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_h", 0.4),
        ("p_less", "on"),
        ("min_k_tau", 3.0),
        ("top_a", 0.2),
        ("epsilon_cutoff", 0.1),
        ("eta_cutoff", 0.1),
        ("smoothing_factor", 0.3),
        ("min_tokens", 2),
        ("no_repeat_ngram_size", 2),
        ("bad_words", [[1, 2]]),
        ("allowed_token_ids", [1, 2]),
        ("draw", "gumbel"),
        ("draw", "mt19937"),
        ("top_k_limit", 5),
        ("repetition_per", "occurrence"),
        ("mass", "full"),
    ],
)
def test_what_llama_cpp_lacks_is_named(model: LanguageModel, name: str, value: Any) -> None:
    more: dict[str, Any] = {"top_p": 0.5, "top_k": 9, "repetition_penalty": 1.5, "min_keep": 2}
    params = S.SamplingParams(**{**more, name: value}, numerics="llama.cpp")
    with pytest.raises(ParameterError, match="numerics='portable'") as refused:
        params.chain(model.tokenizer)
    assert refused.value.parameter == name
