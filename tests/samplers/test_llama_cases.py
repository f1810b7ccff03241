"""Twenty-five cases of llama.cpp 0.5.0, each with the values that it gave when they were recorded.

G(n, q) is golden_rows' "spread"; L(p, ...) are logits that are the float32 logarithms of probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from golden_rows import row
from numpy.typing import NDArray

from aleator import samplers as S
from aleator.core.errors import LogitsError

Logits = NDArray[np.float32]
A1, A2, A3 = (row("spread", n, q) for n, q in ((1000, 4), (32000, 8), (151936, 8)))
ZEROS = np.zeros(1000, np.float32)
UNIFORM_42 = [796, 183, 779, 596, 445, 99, 459, 333, 142, 650, 56, 721]


def L(*p: float) -> Logits:
    return np.array([math.log(x) for x in p], np.float32)


def f32(*x: float) -> Logits:
    return np.array(x, np.float32)


def chain(*samplers: S.Sampler) -> S.SamplerChain:
    return S.SamplerChain(samplers, numerics="llama.cpp")


def applied(c: S.SamplerChain, logits: Logits) -> S.Candidates:
    candidates = S.Candidates(logits)
    c.apply(candidates)
    return candidates


def draws(logits: Logits, n: int, *samplers: S.Sampler, accept: bool = False) -> list[Any]:
    c = chain(*samplers)
    tokens = []
    for _ in range(n):
        tokens.append(applied(c, logits).selected)
        if accept:
            c.accept(tokens[-1] or 0, generated=True)
    return tokens


def size(logits: Logits, *samplers: S.Sampler) -> int:
    return len(applied(chain(*samplers), logits))


def after(logits: Logits, sampler: S.Sampler, history: Iterable[int]) -> list[float]:
    c = chain(sampler)
    for token in history:
        c.accept(token)
    penalised: list[float] = applied(c, logits).logits.tolist()
    return penalised


def test_01_uniform_draws() -> None:
    assert draws(ZEROS, 12, S.Dist(42)) == UNIFORM_42
    assert draws(ZEROS, 8, S.Dist(0)) == [592, 844, 857, 847, 623, 384, 297, 56]
    assert draws(ZEROS, 8, S.Dist(1234)) == [497, 817, 612, 771, 860, 150, 198, 815]


def test_02_a_single_candidate_consumes_a_draw_of_dist_only() -> None:
    one = np.zeros(1, np.float32)
    for sampler, place in (
        (S.Dist(42), 183),
        (S.MirostatV2(mirostat_tau=20, seed=42), 796),
        (S.AdaptiveP(adaptive_target=-1, seed=42), 796),
    ):
        c = chain(sampler)
        assert applied(c, one).selected == 0
        drawn = applied(c, ZEROS)
        assert drawn.selected == drawn.ids[place]  # mirostat sorts, which shuffles equal logits
    c = chain(S.Dist(42))
    with pytest.raises(LogitsError, match="empty"):
        c.sample(np.zeros(0, np.float32))
    assert applied(c, ZEROS).selected == 796


def test_03_dist_a1() -> None:
    assert draws(A1, 10, S.Dist(42)) == [987, 377, 987, 754, 521, 144, 665, 377, 377, 953]


def test_04_dist_a3() -> None:
    expected = [39603, 50549, 151647, 75025, 50549, 44771, 17711, 68260]
    assert draws(A3, 8, S.Dist(7)) == expected


def test_05_the_order_of_candidates_matters() -> None:
    cut = [20295, 28657, 31241, 13530, 6765, 28657, 6765, 17711, 28657, 13530]
    assert draws(A2, 10, S.TopK(top_k=40), S.Dist(42)) == cut
    whole = [28657, 6765, 28657, 20295, 17711, 5168, 17711, 13530, 6765, 24476]
    assert draws(A2, 10, S.Dist(42)) == whole


def test_06_top_k() -> None:
    c = applied(chain(S.TopK(top_k=40)), A2)
    expected = [28657, 17711, 6765, 24476, 13530, 2584, 31241, 20295, 9349, 27060]
    assert c.ids[:10].tolist() == expected
    assert (c.ids[-1], c.sorted, len(c)) == (18088, True, 40)


def test_07_top_k_by_buckets() -> None:
    c = applied(chain(S.TopK(top_k=200)), A3)
    assert c.ids[:7].tolist() == [50549, 101098, 151647, 39603, 90152, 140701, 28657]
    assert c.ids[-5:].tolist() == [46745, 97294, 147843, 35799, 86348]
    assert len(c) == 200


def test_08_an_infinite_logit_is_first_also_where_llama_cpp_loses_it() -> None:
    logits = A3.copy()
    logits[5] = np.inf
    for k in (40, 200):
        c = applied(chain(S.TopK(top_k=k)), logits)
        assert (c.ids[0], len(c)) == (5, k)
    assert draws(logits, 20, S.TopK(top_k=200), S.Dist(1)) == [5] * 20


@pytest.mark.parametrize(
    ("logits", "sizes"), [(A1, (2, 6, 11)), (A2, (4, 11, 22)), (A3, (15, 50, 103))]
)
def test_09_top_p(logits: Logits, sizes: tuple[int, ...]) -> None:
    assert tuple(size(logits, S.TopP(top_p=p)) for p in (0.5, 0.9, 0.99)) == sizes
    if logits is A2:
        assert size(logits, S.TopP(top_p=0.5, min_keep=300)) == 300


def test_10_top_p_boundaries() -> None:
    logits = L(0.1, 0.2, 0.3, 0.4)
    assert [size(logits, S.TopP(top_p=p)) for p in (0, 0.4, 0.7)] == [1, 1, 2]
    assert size(logits, S.TopP(top_p=0, min_keep=3)) == 3


def test_11_min_p() -> None:
    assert [size(A2, S.MinP(min_p=p)) for p in (0.05, 0.1, 0.5)] == [15, 12, 3]
    c = applied(chain(S.MinP(min_p=0.5)), A2)
    assert (c.ids.tolist(), c.sorted) == ([6765, 17711, 28657], False)
    c = applied(chain(S.MinP(min_p=0.5, min_keep=50)), A2)
    assert (len(c), c.sorted, c.ids[0]) == (50, True, 28657)


def test_12_min_p_boundaries() -> None:
    assert size(L(1, 0.5), S.MinP(min_p=0.5)) == 2
    assert size(L(0.1, 0.2, 0.3, 0.4), S.MinP(min_p=1)) == 1
    with pytest.raises(LogitsError, match="finite"):
        applied(chain(S.MinP(min_p=0.5)), np.full(4, -np.inf, np.float32))


def test_13_typical_p() -> None:
    assert [size(A1, S.TypicalP(typical_p=p)) for p in (0.2, 0.5, 0.9)] == [2, 4, 6]
    c = applied(chain(S.TypicalP(typical_p=0.9)), A1)
    assert (c.ids[:4].tolist(), c.sorted) == ([754, 377, 144, 987], False)
    assert size(A1, S.TypicalP(typical_p=0.5, min_keep=100)) == 100


def test_14_typical_p_never_keeps_a_masked_token() -> None:
    logits = f32(*np.arange(20) / 4, -np.inf)
    c = applied(chain(S.TypicalP(typical_p=0.5)), logits)
    without = applied(chain(S.TypicalP(typical_p=0.5)), logits[:20])
    assert 20 not in c.ids
    assert c.ids.tolist() == without.ids.tolist()
    assert size(logits, S.TypicalP(typical_p=0.5, min_keep=21)) == 20


def test_15_temperature_zero_keeps_the_first_maximum_and_consumes_a_draw() -> None:
    logits = f32(1, 3, 3, 2)
    assert np.isfinite(applied(chain(S.Temperature(temperature=0)), logits).logits).tolist() == [
        False, True, False, False,
    ]  # fmt: skip
    c = chain(S.Temperature(temperature=0), S.Dist(3))
    assert applied(c, logits).selected == 1
    d = S.Dist(3)
    assert draws(ZEROS, 2, d)[1] == 839


def test_16_dynamic_temperature() -> None:
    logits = f32(0, 1, 2, 3)
    c = applied(chain(S.Temperature(temperature=0.8, dynatemp_range=0.5)), logits)
    np.testing.assert_array_equal(c.probs, f32(0.649361312, 0.2349132, 0.084982276, 0.0307432171))
    assert c.logits[0] == np.float32(3.05031991)
    assert (c.sorted, c.ids.tolist()) == (True, [3, 2, 1, 0])
    c = applied(chain(S.Temperature(temperature=0, dynatemp_range=0.5)), logits)
    np.testing.assert_array_equal(
        c.probs, f32(0.946402133, 0.0507325046, 0.00271954923, 0.000145783211)
    )


def test_17_xtc() -> None:
    always: dict[str, Any] = {"xtc_probability": 1.0, "seed": 0}
    c = applied(chain(S.XTC(xtc_threshold=0.1, **always)), A1)
    assert (len(c), c.ids[0]) == (997, 144)
    c = applied(chain(S.XTC(xtc_threshold=0.02, **always)), A1)
    assert (len(c), c.ids[0]) == (994, 288)
    xtc = S.XTC(xtc_probability=0.5, xtc_threshold=0.02, seed=7)
    repeated = chain(xtc)
    sizes = [len(applied(repeated, A1)) for _ in range(12)]
    assert sizes == [994, 994, 1000, 994, 994, 1000, 1000, 994, 1000, 994, 1000, 994]
    expected = [288, 288, 987, 665, 288, 377, 144, 665, 144, 665, 987, 288]
    assert draws(A1, 12, xtc, S.Dist(7)) == expected


def test_18_top_n_sigma() -> None:
    c = applied(chain(S.TopNSigma(top_n_sigma=1)), f32(0, 1, 2, 3, 4))
    assert c.ids[np.isfinite(c.logits)].tolist() == [3, 4]
    for n, finite in ((1, 6), (2, 12)):
        c = applied(chain(S.TopNSigma(top_n_sigma=n)), A2)
        assert (int(np.isfinite(c.logits).sum()), len(c)) == (finite, 32000)
        assert c.ids.tolist() == list(range(32000))
        assert not c.sorted


def test_19_mirostat_v2() -> None:
    c = chain(S.MirostatV2(mirostat_tau=3, mirostat_eta=0.1, seed=42))
    seen = [applied(c, A2) for _ in range(12)]
    assert [s.selected for s in seen] == [
        31241, 28657, 2584, 24476, 6765, 28657, 6765, 17711, 28657, 13530, 28657, 2584,
    ]  # fmt: skip
    assert {len(s) for s in seen} == {12}


def test_20_mirostat() -> None:
    c = chain(S.Mirostat(mirostat_tau=3, mirostat_eta=0.1, mirostat_m=100, seed=42))
    seen = [applied(c, A2) for _ in range(12)]
    assert [s.selected for s in seen] == [
        6765, 28657, 24476, 6765, 17711, 28657, 17711, 17711, 28657, 24476, 28657, 13530,
    ]  # fmt: skip
    assert [len(s) for s in seen] == [4, 4, 5, 5, 5, 5, 6, 6, 7, 7, 7, 8]


def test_20b_mirostat_with_a_high_target_cuts_nothing_where_llama_cpp_turns_greedy() -> None:
    c = chain(S.Mirostat(mirostat_tau=20, mirostat_eta=0.1, mirostat_m=100, seed=42))
    seen = [applied(c, ZEROS) for _ in range(4)]
    assert {len(s) for s in seen} == {1000}
    assert len({s.selected for s in seen}) == 4


def test_21_penalties() -> None:
    logits = f32(2, -2, 1, 0, 0)
    repeat = S.Penalties(repetition_penalty=1.5)
    assert after(logits, repeat, [0, 1, 4, 4]) == f32(1.3333334, -3, 1, 0, 0).tolist()
    all_three = S.Penalties(repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.25)
    assert after(logits, all_three, [0, 1, 1]) == f32(0.5833334, -4.25, 1, 0, 0).tolist()
    window = S.Penalties(penalty_last_n=3, repetition_penalty=2)
    assert after(np.ones(5, np.float32), window, [1, 2, 3, 4]) == [1, 1, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("values", "history", "breakers", "expected"),
    [
        ((1, 1.1, 2, 5), (0, 1, 2, 0, 1), (), {2: -1.0}),
        ((0.8, 1.75, 2, 64), (0, 1, 2, 3, 4, 0, 1, 2, 3), (), {4: float(np.float32(-2.45))}),
        ((1, 2, 2, 64), (5,) * 6, (), {5: -8.0}),
        ((1, 1.1, 2, 5), (0, 1, 2, 0, 1), ((2,),), {}),
        ((1, 1.1, 2, 4), (0, 1, 2, 0, 1), (), {}),
    ],
)
def test_22_dry(values: Any, history: Any, breakers: Any, expected: dict[int, float]) -> None:
    names = ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n")
    dry = S.DRY(**dict(zip(names, values, strict=True)), dry_sequence_breakers=breakers)
    logits = after(np.zeros(8, np.float32), dry, history)
    assert {i: x for i, x in enumerate(logits) if x} == expected


def test_23_adaptive_p() -> None:
    adaptive = S.AdaptiveP(adaptive_target=0.3, adaptive_decay=0.9, seed=5)
    accepted = [69, 987, 377, 987, 125, 468, 498, 975, 987, 987, 987, 987]
    assert draws(A1, 12, adaptive, accept=True) == accepted
    repeated = [69, 904, 377, 987, 113, 380, 377, 494, 988, 876, 697, 890]
    assert draws(A1, 12, adaptive) == repeated
    cut = [144, 898, 377, 898, 144, 377, 288, 521, 898, 754, 754, 898]
    low = S.AdaptiveP(adaptive_target=0.1, adaptive_decay=0.5, seed=5)
    assert draws(A1, 12, S.MinP(min_p=0.05), low, accept=True) == cut


CUT = (S.TopK(top_k=40), S.TopP(top_p=0.95), S.MinP(min_p=0.05))
DEFAULT = (*CUT, S.Temperature(temperature=0.8), S.Dist(1234))


def test_24_the_default_chain() -> None:
    assert draws(A2, 16, *DEFAULT) == [
        6765, 2584, 24476, 2584, 31241, 28657, 28657, 2584, 28657, 28657, 28657, 6765, 17711, 2584, 28657,
        28657,
    ]  # fmt: skip
    assert draws(A3, 16, *DEFAULT) == [
        17711, 136520, 6765, 35422, 125574, 151647, 39603, 136520, 151647, 101098, 50549, 17711, 140701, 136520,
        101098, 50549,
    ]  # fmt: skip
    assert [size(a, *DEFAULT) for a in (A2, A3, A1)] == [14, 35, 7]
    penalties = S.Penalties(repetition_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1)
    dry = S.DRY(dry_multiplier=0.8, dry_sequence_breakers=())
    assert draws(A2, 24, penalties, dry, *DEFAULT, accept=True) == [
        6765, 31241, 24476, 2584, 9349, 28657, 17711, 5168, 13530, 20295, 27060, 11933, 16114, 25463, 22879,
        987, 18698, 29644, 7752, 3571, 23866, 6765, 4558, 14517,
    ]  # fmt: skip


def test_25_order_clone_and_reset() -> None:
    hot, cut, dist = S.Temperature(temperature=2), S.MinP(min_p=0.1), S.Dist(9)
    assert draws(A2, 8, hot, cut, dist) == [13530, 17711, 987, 11933, 987, 28657, 5168, 5168]
    assert draws(A2, 8, cut, hot, dist) == [13530, 17711, 2584, 13530, 2584, 28657, 6765, 6765]
    assert (size(A2, hot, cut), size(A2, cut, hot)) == (22, 12)
    c = chain(S.Dist(42))
    assert applied(c, ZEROS).selected == 796
    clone = c.clone()
    assert applied(c, ZEROS).selected == applied(clone, ZEROS).selected == 183
    c.reset()
    assert applied(c, ZEROS).selected == 796
