"""Rows made so that a weight or a draw lies exactly at a bound, or just beside it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aleator import samplers as S
from aleator.core.contract import Purpose
from aleator.core.errors import LogitsError, ParameterError
from aleator.core.numerics import exact, weights
from aleator.core.philox import stream, uniform64
from tests.samplers.steps import texts_and_ends
from tests.samplers.test_conformance import check_step, family

ALMOST_NEUTRAL = [
    S.TopP(top_p=1 - 1e-9), S.TypicalP(typical_p=1 - 1e-9), S.TailFree(tfs_z=1 - 1e-9),
    S.MinP(min_p=1e-60), S.TopA(top_a=1e-60), S.TopNSigma(top_n_sigma=1e-60),
    S.XTC(xtc_probability=1e-60), S.Penalties(repetition_penalty=1 + 1e-9),
]  # fmt: skip


@pytest.mark.parametrize("sampler", ALMOST_NEUTRAL, ids=lambda sampler: sampler.name)
def test_what_float32_rounds_to_neutral_is_neutral(sampler: S.Sampler) -> None:
    assert sampler.neutral
    chain = S.SamplerChain([S.Temperature(temperature=0.7), sampler, S.Dist()], seed=4)
    reference = S.ReferenceChain(chain)
    for token in (3, 3):
        chain.accept(token)
        reference.accept(token)
    for kind in ("normal", "wide"):  # in a wide row some tokens weigh nothing, and stay
        check_step(chain, reference, family(kind, 300, 3), sampler.name)


def logit_of(weight: int) -> np.float32:
    """The largest logit below 0 that weighs at most so much where the top is 0; exactly, below 2^22."""
    low, high = (
        0,
        int(np.float32(100).view(np.int32)),
    )  # of -z, as integers: weights fall as they grow
    while low < high:
        middle = (low + high) // 2
        z = -np.array([middle], np.int32).view(np.float32)
        if int(weights(z, np.float32(0), 1.0)[0]) <= weight:
            high = middle
        else:
            low = middle + 1
    return np.float32(-np.array([high], np.int32).view(np.float32)[0])


def row_that_weighs(*wanted: int) -> tuple[NDArray[np.float32], list[int]]:
    """Logits of these weights, as near from below as there are, and the weights they have."""
    z = np.array([0.0 if w == 1 << 40 else logit_of(w) for w in wanted], np.float32)
    return z, [int(w) for w in weights(z, np.float32(0), 1.0)]


PADS = ((0, 0), (0, 500), (130, 0))  # masked tokens before and after the first: other tiles


@pytest.mark.parametrize("top_p", [0.7, 0.51, 0.9])
@pytest.mark.parametrize("pad", PADS)
def test_a_mass_just_below_the_bound_does_not_end_the_prefix(
    top_p: float, pad: tuple[int, int]
) -> None:
    # The first token weighs 2^40, and p * Z lies between that and one more.
    rest = math.ceil((1 << 40) / exact(top_p)) - (1 << 40)
    _, (most,) = row_that_weighs(rest - (1 << 20))
    row, (_, second, third) = row_that_weighs(1 << 40, most, rest - most)
    assert 1 << 40 < exact(top_p) * ((1 << 40) + second + third) < (1 << 40) + 1
    masked = np.full(pad[0], -np.inf, np.float32), np.full(pad[1], -np.inf, np.float32)
    logits = np.concatenate([row[:1], masked[0], row[1:], masked[1]])
    for before in ([], [S.TopK(top_k=50)]):
        chain = S.SamplerChain([*before, S.TopP(top_p=top_p), S.Dist()], seed=1)
        row_left = S.ReferenceChain(chain).apply(logits)
        assert len(row_left) == 2
        check_step(chain, S.ReferenceChain(chain), logits, str(pad))


@pytest.mark.parametrize("pad", PADS)
def test_a_draw_exactly_at_a_boundary_takes_the_next_token(pad: tuple[int, int]) -> None:
    seed = 17
    u = uniform64(seed, 0, 0, stream(Purpose.DIST))
    # Cumulative mass c before the last token, with floor(u * (c + 2^40) / 2^64) = c.
    c = (u << 40) // (2**64 - u)
    assert c < 1 << 40
    _, (most,) = row_that_weighs(c - (1 << 20))
    c = next(c for c in range(c - 2, c + 3) if u * (c + (1 << 40)) >> 64 == c)
    row, (first, second, _) = row_that_weighs(most, c - most, 1 << 40)
    assert first + second == c
    masked = np.full(pad[0], -np.inf, np.float32), np.full(pad[1], -np.inf, np.float32)
    logits = np.concatenate([row[:2], masked[0], row[2:], masked[1]])
    for before in ([], [S.TopK(top_k=50)]):
        chain = S.SamplerChain([*before, S.Dist()], seed=seed)
        assert S.ReferenceChain(chain).apply(logits).selected == 2 + pad[0]
        check_step(chain, S.ReferenceChain(chain), logits, str(pad))


@pytest.mark.parametrize("before", [[], [S.TopK(top_k=50)]], ids=["all", "part"])
def test_min_p_keeps_what_is_exactly_at_its_bound(before: list[S.Sampler]) -> None:
    for temperature, min_p in itertools.product(
        (1.0, 0.3, 0.7, 1.3, 2.9), (0.05, 0.1, 0.3, 0.9, 1.0)
    ):
        bound = np.float32(temperature * math.log(float(np.float32(min_p))))
        above, below = np.nextafter(bound, np.float32(9)), np.nextafter(bound, np.float32(-99))
        row = np.array([0, min(above, np.float32(0)), bound, below], np.float32)
        middle = [S.Temperature(temperature=temperature), S.MinP(min_p=min_p)]
        chain = S.SamplerChain([*before, *middle, S.Dist()], seed=1)
        assert S.ReferenceChain(chain).apply(row).ids.tolist() == [0, 1, 2]
        check_step(chain, S.ReferenceChain(chain), row, f"{temperature} {min_p}")


def test_top_n_sigma_near_its_bound() -> None:
    for seed in range(30):
        row = family("normal", 60, seed)
        below = row.max() - row
        bound = np.float32(np.sort(below)[seed % 20 + 1] / row.std(dtype=np.float64))
        for n in np.linspace(bound * (1 - 3e-5), bound * (1 + 3e-5), 7):
            chain = S.SamplerChain([S.TopNSigma(top_n_sigma=float(n)), S.Dist()], seed=1)
            check_step(chain, S.ReferenceChain(chain), row, f"{seed} {n}")


HOT = S.Temperature(temperature=1e300)
PIECES = texts_and_ends("a", "b", "c")


@pytest.mark.parametrize(
    ("samplers", "n", "error", "says"),
    [
        ([HOT, HOT], 4, ParameterError, "product of .*temperatures is not finite"),
        ([S.Temperature(temperature=2e-5), S.AdaptiveP(adaptive_target=0.5)], 2, LogitsError,
         "temperature before it is too small"),
        ([S.Infill(PIECES)], 4097, LogitsError, "compares every pair"),
    ],
)  # fmt: skip
def test_references_refuse_what_chains_refuse(
    samplers: list[Any], n: int, error: type[Exception], says: str
) -> None:
    chain, logits = S.SamplerChain(samplers, seed=1), np.zeros(n, np.float32)
    logits[0] = 1e38
    with pytest.raises(error, match=says):
        chain.apply(S.Candidates(logits))
    with pytest.raises(error, match=says):
        S.ReferenceChain(chain).apply(logits)
