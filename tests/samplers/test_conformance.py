"""Every native sampler against its NumPy reference, bit for bit, over families of rows and chains."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

import aleator
from aleator import samplers as S
from aleator.core import host
from aleator.core.errors import LogitsError, ParameterError
from aleator.core.numerics import Row
from tests.samplers.steps import Texts

SIZES = (1, 2, 3, 127, 128, 129, 1000, 2048, 5001)


def family(name: str, n: int, seed: int) -> NDArray[np.float32]:
    rng = np.random.default_rng([seed, n])
    x = rng.normal(size=n).astype(np.float32)
    if name == "normal":
        return x * np.float32(3)
    if name == "flat":
        return x * np.float32(1e-3)
    if name == "equal":
        return np.full(n, np.float32(-1.5))
    if name == "peaked":
        x[rng.integers(n)] += 40
        return x
    if name == "masked":
        x[rng.random(n) < 0.9] = -np.inf
        x[rng.integers(n)] = 0.25
        return x
    if name == "ties":
        return np.round(x).astype(np.float32)
    if name == "one":
        y = np.full(n, -np.inf, np.float32)
        y[rng.integers(n)] = -3
        return y
    if name == "bfloat16":
        return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) * np.float32(4)
    if name == "dirty":
        y = x * np.float32(2)
        y[rng.integers(n, size=n // 10)] = np.nan
        y[rng.integers(n, size=n // 10)] = -0.0
        y[rng.integers(n)] = 1.0
        return y
    if name == "infinite":
        y = x.copy()
        y[rng.integers(n, size=3)] = np.inf
        return y
    if name == "model":  # a wide bulk, and some tokens that stand out
        top = rng.integers(n, size=max(1, n // 100))
        x *= np.float32(2)
        x[top] += rng.exponential(3, len(top)).astype(np.float32) + np.float32(6)
        return x
    if name == "wide":
        return np.clip(x, -3, 3) * np.float32(1e38)
    raise AssertionError(name)


FAMILIES = ("normal", "flat", "equal", "peaked", "masked", "ties", "one", "bfloat16", "dirty",
            "infinite", "wide", "model")  # fmt: skip

BIASES = {0: 1.5, 1: -np.inf, 100: 3.0, 126: -2.0}


VOCABULARY = Texts(
    [b"" if token % 37 == 3 else bin(token % 61)[2:].encode() for token in range(1000)],
    frozenset({0, 5, 50, 900}),
    eot=5,
    eos=0,
)
"""Texts of which some begin others, and four tokens that end generation."""
CHAINS: dict[str, list[S.Sampler]] = {
    "greedy": [S.Greedy()],
    "dist": [S.Dist()],
    "top_k": [S.TopK(top_k=5), S.Dist()],
    "top_k_limit": [S.TopK(top_k_limit=100), S.Dist()],
    "top_k_limit_large": [S.TopK(top_k=130, top_k_limit=3), S.Dist()],
    "top_k_large": [S.TopK(top_k=700), S.Dist()],
    "top_p": [S.TopP(top_p=0.7), S.Dist()],
    "top_p_half": [S.TopP(top_p=0.5), S.Dist()],
    "top_p_nearly_all": [S.TopP(top_p=0.9999), S.Dist()],
    "top_p_zero": [S.TopP(top_p=0.0), S.Dist()],
    "top_p_tiny": [S.TopP(top_p=1e-40), S.Dist()],
    "top_p_min_keep": [S.TopP(top_p=0.01, min_keep=9), S.Dist()],
    "min_p": [S.MinP(min_p=0.1), S.Dist()],
    "min_p_one": [S.MinP(min_p=1.0), S.Dist()],
    "min_p_min_keep": [S.MinP(min_p=0.9, min_keep=200), S.Dist()],
    "hot": [S.Temperature(temperature=3.0), S.TopP(top_p=0.8), S.Dist()],
    "cold": [S.Temperature(temperature=0.05), S.MinP(min_p=0.02), S.Dist()],
    "zero": [S.Temperature(temperature=0.0), S.Dist()],
    "tiny": [S.Temperature(temperature=1e-3), S.Temperature(temperature=5e-3), S.Dist()],
    "scorching": [S.Temperature(temperature=1e39), S.TopP(top_p=0.5), S.Dist()],
    "twice": [S.Temperature(temperature=0.7), S.TopK(top_k=50), S.Temperature(temperature=1.9),
              S.TopP(top_p=0.9), S.Dist()],
    "default": [S.Penalties(), S.TopK(top_k=40), S.TopP(top_p=0.95), S.MinP(min_p=0.05),
                S.Temperature(temperature=0.8), S.Dist()],
    "bias": [S.LogitBias({k: v for k, v in BIASES.items() if k < 1}), S.TopP(top_p=0.9), S.Dist()],
    "force": [S.LogitBias({0: np.inf}), S.Dist()],
    "penalties": [S.Penalties(penalty_last_n=7, repetition_penalty=1.3, frequency_penalty=0.2,
                              presence_penalty=0.1), S.TopK(top_k=60), S.Dist()],
    "penalties_each": [S.Penalties(penalty_last_n=-1, repetition_penalty=1.3, presence_penalty=0.1,
                                   repetition_per="occurrence", penalty_scope="mixed"),
                       S.TopK(top_k=60), S.Dist()],
    "penalties_late": [S.TopK(top_k=100), S.Temperature(temperature=0.6),
                       S.Penalties(penalty_last_n=-1, repetition_penalty=1.7,
                                   frequency_penalty=-0.5), S.TopP(top_p=0.9), S.Dist()],
    "penalties_boost": [S.Penalties(penalty_last_n=3, frequency_penalty=-1e30,
                                    presence_penalty=-1e30), S.Dist()],
    "penalties_generated": [S.Penalties(penalty_last_n=4, repetition_penalty=1.3, presence_penalty=2,
                                        penalty_scope="generated"), S.Dist()],
    "penalties_mixed": [S.Penalties(penalty_last_n=4, repetition_penalty=1.3, frequency_penalty=2,
                                    penalty_scope="mixed"), S.Dist()],
    "gumbel": [S.Temperature(temperature=1.4), S.Dist(draw="gumbel")],
    "gumbel_pcg": [S.TopK(top_k=300), S.Temperature(temperature=0.9), S.Dist(draw="gumbel-pcg")],
    "epsilon": [S.EpsilonCutoff(epsilon_cutoff=0.01), S.Dist()],
    "epsilon_late": [S.TopK(top_k=90), S.Temperature(temperature=1.7),
                     S.EpsilonCutoff(epsilon_cutoff=0.02, min_keep=6), S.Dist()],
    "epsilon_one": [S.EpsilonCutoff(epsilon_cutoff=1.0), S.Dist()],
    "eta": [S.EtaCutoff(eta_cutoff=0.01), S.Dist()],
    "eta_late": [S.TopK(top_k=90), S.Temperature(temperature=1.7), S.EtaCutoff(eta_cutoff=0.3, min_keep=6),
                 S.Dist()],
    "p_less": [S.PLess(p_less="on"), S.Dist()],
    "p_less_late": [S.TopK(top_k=90), S.Temperature(temperature=1.7), S.PLess(p_less="normalized"), S.Dist()],
    "p_less_hot": [S.Temperature(temperature=3.0), S.PLess(p_less="normalized"), S.Dist()],
    "top_h": [S.TopH(top_h=0.4), S.Dist()],
    "top_h_late": [S.TopK(top_k=90), S.Temperature(temperature=1.7), S.TopH(top_h=0.9), S.Dist()],
    "top_h_hot": [S.Temperature(temperature=30.0), S.TopH(top_h=0.8), S.Dist()],
    "min_k": [S.MinK(min_k_tau=3.0), S.Dist()],
    "min_k_wide": [S.TopK(top_k=20), S.MinK(min_k_tau=0.0), S.Dist()],
    "min_k_late": [S.TopK(top_k=90), S.Temperature(temperature=0.3), S.MinK(min_k_tau=100.0), S.Dist()],
    "smoothing": [S.Temperature(temperature=0.7), S.Smoothing(smoothing_factor=0.3), S.Dist()],
    "smoothing_curve": [S.TopK(top_k=200), S.Smoothing(smoothing_factor=0.9, smoothing_curve=4.7), S.Dist()],
    "no_repeat": [S.NoRepeatNgram(no_repeat_ngram_size=2), S.Dist()],
    "bad_words": [S.BadWords([[0, 0], [7, 0], [0, 0, 0]]), S.Dist()],
    "min_tokens": [S.MinTokens(min_tokens=2, end_tokens=(0, 2, 126, 7000)), S.Dist()],
    "twister": [S.TopK(top_k=300), S.Temperature(temperature=0.9), S.Dist(draw="mt19937")],
    "typical": [S.TypicalP(typical_p=0.5), S.Dist()],
    "typical_wide": [S.Temperature(temperature=2), S.TypicalP(typical_p=0.97), S.Dist()],
    "typical_min_keep": [S.TypicalP(typical_p=0.01, min_keep=7), S.Dist()],
    "top_n_sigma": [S.TopNSigma(top_n_sigma=1.0), S.Dist()],
    "top_n_sigma_late": [S.TopK(top_k=90), S.TopNSigma(top_n_sigma=0.3), S.Dist()],
    "xtc": [S.XTC(xtc_probability=1.0, xtc_threshold=0.02), S.Dist()],
    "xtc_half": [S.XTC(xtc_probability=0.5, xtc_threshold=0.001, min_keep=2, seed=9), S.Dist()],
    "xtc_zero": [S.XTC(xtc_probability=1.0, xtc_threshold=0.0), S.Dist()],
    "xtc_twice": [S.XTC(xtc_probability=0.5, xtc_threshold=0.02, seed=1),
                  S.XTC(xtc_probability=0.5, xtc_threshold=0.01, seed=1), S.Dist()],
    "xtc_largest": [S.XTC(xtc_probability=1.0, xtc_threshold=0.5), S.Dist()],
    "tail_free": [S.TailFree(tfs_z=0.9), S.Dist()],
    "tail_free_low": [S.TailFree(tfs_z=0.0, min_keep=3), S.Dist()],
    "top_a": [S.TopA(top_a=0.3), S.Dist()],
    "top_a_tiny": [S.TopA(top_a=1e-38), S.Dist()],
    "mask": [S.TokenMask(range(0, 9000, 2)), S.Dist()],
    "dynatemp": [S.Temperature(temperature=1.0, dynatemp_range=0.6), S.TopP(top_p=0.9), S.Dist()],
    "dynatemp_power": [S.TopK(top_k=50),
                       S.Temperature(temperature=0.5, dynatemp_range=0.9, dynatemp_exponent=1.7),
                       S.Dist()],
    "mirostat": [S.Mirostat(mirostat_tau=3.0)],
    "mirostat_low": [S.Temperature(temperature=1.5), S.Mirostat(mirostat_tau=0.5, mirostat_eta=0.5)],
    "mirostat_v2": [S.MirostatV2(mirostat_tau=3.0)],
    "mirostat_v2_zero": [S.MirostatV2(mirostat_tau=0.0)],
    "adaptive_p": [S.MinP(min_p=0.01), S.AdaptiveP(adaptive_target=0.4)],
    "adaptive_p_off": [S.AdaptiveP()],
    "dry": [S.DRY(dry_multiplier=0.8, dry_allowed_length=1, dry_sequence_breakers=[(7,)]), S.Dist()],
    "dry_all": [S.DRY(dry_multiplier=-2, dry_allowed_length=0, dry_penalty_last_n=-1,
                      dry_sequence_breakers=[(0, 1), (1,)]), S.Dist()],
    "infill": [S.TopK(top_k=30), S.TopP(top_p=0.9), S.Infill(VOCABULARY), S.Dist()],
    "infill_few": [S.TopK(top_k=4), S.Infill(VOCABULARY), S.Dist()],
    "full": [S.Temperature(temperature=0.7), S.Softmax(), S.TopK(top_k=40),
             S.MinP(min_p=0.05, mass="full"), S.TopP(top_p=0.6, mass="full"), S.Dist()],
}  # fmt: skip


def check_step(
    chain: S.SamplerChain, reference: S.ReferenceChain, logits: NDArray[np.floating], where: str
) -> None:
    """One step on both: the same candidates, logits and token, or an error from both."""
    candidates = S.Candidates(logits)
    try:
        row = reference.apply(logits)
    except LogitsError:
        with pytest.raises(LogitsError):
            chain.apply(candidates)
        return
    chain.apply(candidates)
    assert candidates.selected == row.selected, where
    np.testing.assert_array_equal(candidates.ids, row.ids, where)
    np.testing.assert_array_equal(candidates._native.weights, row.weights(), where)  # type: ignore[union-attr]
    assert chain.sample(logits) == row.selected, where
    reference.accept(row.selected or 0, generated=True)
    try:
        row.materialise()
    except LogitsError:  # dividing by the temperature overflowed
        with pytest.raises(LogitsError):
            _ = candidates.logits
        return
    assert candidates.logits.tobytes() == row.logits.tobytes(), where


@pytest.mark.parametrize("name", CHAINS)
def test_native_equals_reference(name: str) -> None:
    for kind, n in itertools.product(FAMILIES, SIZES):
        chain = S.SamplerChain(CHAINS[name], seed=n * 7919 + 5, completion=n % 3)
        reference = S.ReferenceChain(chain)
        for token in (n - 1, 0, 7, 0, 7, n // 2):
            chain.accept(token)
            reference.accept(token)
        for step in range(3):
            check_step(chain, reference, family(kind, n, step), f"{name} {kind} {n} {step}")


def test_entropy_equals_reference() -> None:
    rng = np.random.default_rng(7)
    for kind, n in itertools.product(("spread", "ties", "peaked"), (1, 2, 5, 129, 1000, 20000)):
        row = {
            "spread": rng.normal(0, 4, n),
            "ties": rng.integers(-30, 2, n),
            "peaked": np.where(np.arange(n) == n // 2, 20, rng.normal(-2, 2, n)),
        }[kind].astype(np.float32)
        row[rng.integers(0, n, n // 3)] = -np.inf
        row[0] = -1
        for temperature in (1.0, 0.3, 2.5):
            reference = Row.load(row)
            reference.temperature = temperature
            candidates = aleator.Candidates(row)
            aleator.SamplerChain([S.Temperature(temperature=temperature)]).apply(candidates)
            assert candidates.entropy == reference.entropy().bits, (kind, n, temperature)
            if n > 8:  # as a list too
                candidates.keep(candidates.ids[::2].tolist())
                reference.keep(np.arange(len(reference)) % 2 == 0)
                assert candidates.entropy == reference.entropy().bits, (kind, n, temperature)


def test_a_temperature_that_overflows_every_logit_is_an_error() -> None:
    logits = np.array([-3e38, -2e38], np.float32)
    chain = S.SamplerChain(
        [S.Temperature(temperature=0.01), S.Penalties(frequency_penalty=1), S.Dist()]
    )
    assert chain.sample(logits) == 1  # no history yet: nothing is written, so nothing is divided
    with pytest.raises(LogitsError, match="finite"):
        chain.sample(logits)
    assert chain.history == [1]
    chain.accept(0)
    with pytest.raises(LogitsError, match="finite"):
        S.ReferenceChain(S.SamplerChain([S.Temperature(temperature=0.01)])).apply(
            logits
        ).materialise()


STATEFUL = ("min_tokens", "bad_words", "no_repeat", "penalties", "penalties_each", "twister",
            "penalties_late", "penalties_mixed", "dry", "dry_all",
            "mirostat", "mirostat_low", "mirostat_v2", "adaptive_p", "xtc_half")  # fmt: skip


@pytest.mark.parametrize("name", STATEFUL)
def test_long_runs_with_state_equal_reference(name: str) -> None:
    chain = S.SamplerChain(CHAINS[name], seed=77)
    reference = S.ReferenceChain(chain)
    last = chain._native.samplers[-1]
    for step in range(60):
        # Few tokens and a narrow spread, so that history repeats.
        check_step(chain, reference, family("normal", 40, step) / np.float32(3), f"{name} {step}")
        for state in reference.step.state.values():
            if isinstance(last, host.AdaptiveP):
                assert last.average == state[0] / state[1]
            else:
                assert getattr(last, "mu", state) == state  # to the last bit
    assert len(chain.history) == 60


@pytest.mark.parametrize("name", STATEFUL)
def test_rollback_replays_the_same_tokens(name: str) -> None:
    chain = S.SamplerChain(CHAINS[name], seed=78)
    rows = [family("normal", 40, step) / np.float32(3) for step in range(40)]
    tokens = [chain.sample(row) for row in rows]
    for depth in (1, 2, 17, 40):
        chain.rollback(depth)
        assert [chain.sample(row) for row in rows[40 - depth :]] == tokens[40 - depth :]
    chain.reset()
    assert [chain.sample(row) for row in rows] == tokens


ORDERABLE = [
    S.Temperature(temperature=0.6),
    S.TopK(top_k=30),
    S.TopP(top_p=0.8),
    S.MinP(min_p=0.03),
    S.Penalties(repetition_penalty=1.4, frequency_penalty=0.1),
]


@pytest.mark.parametrize("kind", ["normal", "ties", "masked"])
def test_every_order_equals_reference(kind: str) -> None:
    logits = family(kind, 1500, 9)
    for order in itertools.permutations(ORDERABLE):
        chain = S.SamplerChain([*order, S.Dist()], seed=11)
        reference = S.ReferenceChain(chain)
        for token in (3, 700, 3, 12):
            chain.accept(token)
            reference.accept(token)
        check_step(chain, reference, logits, str(order))


@pytest.mark.parametrize("n", [32000, 128256, 262144])
def test_large_vocabularies_equal_reference(n: int) -> None:
    for kind in ("normal", "flat", "ties"):
        logits = family(kind, n, 1)
        for name in ("dist", "default", "top_k_large", "min_p"):
            chain = S.SamplerChain(CHAINS[name], seed=3)
            row = S.ReferenceChain(chain).apply(logits)
            candidates = S.Candidates(logits)
            chain.apply(candidates)
            assert candidates.selected == row.selected, (name, kind)
            np.testing.assert_array_equal(candidates.ids, row.ids)


PARTIAL = ("typical", "typical_wide", "typical_min_keep", "mirostat", "mirostat_low", "mirostat_v2",
           "xtc", "xtc_zero", "top_a", "top_n_sigma", "dynatemp", "gumbel", "top_p")  # fmt: skip


@pytest.mark.parametrize("name", PARTIAL)
def test_kernels_that_read_part_of_the_row_equal_reference(name: str) -> None:
    for kind in ("model", "peaked", "flat", "masked"):
        chain = S.SamplerChain(CHAINS[name], seed=3)
        check_step(chain, S.ReferenceChain(chain), family(kind, 20_000, 6), f"{name} {kind}")


FLAT_CHAINS: dict[str, list[S.Sampler]] = {
    **{f"top_p {p}": [S.TopP(top_p=p), S.Dist()] for p in (0.05, 0.5, 0.95, 0.9999)},
    **{f"typical {p}": [S.TypicalP(typical_p=p), S.Dist()] for p in (0.05, 0.5, 0.9, 0.999)},
    "hot": [S.Temperature(temperature=2.5), S.TopP(top_p=0.9), S.MinP(min_p=0.01), S.Dist()],
    "cold": [S.Temperature(temperature=0.4), S.TypicalP(typical_p=0.9), S.TopP(top_p=0.5), S.Dist()],
    "min_keep": [S.TopP(top_p=0.5, min_keep=9000), S.TypicalP(typical_p=0.1, min_keep=4000), S.Dist()],
    "full": [S.Softmax(), S.TopK(top_k=15000), S.TopP(top_p=0.98, mass="full"), S.Dist()],
    "twice": [
        S.TopP(top_p=0.97),
        S.TopP(top_p=0.97),
        S.Temperature(temperature=3),
        S.TopP(top_p=0.9),
        S.Dist(),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", FLAT_CHAINS)
def test_flat_rows_equal_reference(name: str) -> None:
    """Rows whose nucleus is so wide that a sample of it, every 16th tile of 128, says where to look."""
    rng = np.random.default_rng(5)
    normal = rng.normal(0, 2, 19_999).astype(np.float32)
    sampled = np.arange(len(normal)) // 128 % 16 == 0
    bits = rng.normal(10, 0.4, len(normal))
    bits[:8] = [0, 0, 1, 1, 2, 2, 2, 2]  # a sixth of the mass
    rng.shuffle(bits)
    rows = {
        "far from the mean on the near side": -bits * np.log(2),
        "normal": normal,
        "ties": np.round(normal * 4) / 4,
        "masked": np.where(rng.random(len(normal)) < 0.3, -np.inf, normal),
        "the sample is lighter": normal - 4 * sampled,
        "the sample is heavier": normal + 4 * sampled,
        "the sample is deep": np.where(sampled, -30, normal),
        "the sample is all": np.where(sampled, normal, -30),
    }
    for kind, row in rows.items():
        chain = S.SamplerChain(FLAT_CHAINS[name], seed=3)
        check_step(chain, S.ReferenceChain(chain), row.astype(np.float32), f"{name}, {kind}")


@pytest.mark.parametrize("kind", ["flat", "ties", "normal"])
def test_wide_nucleus_of_a_large_row(kind: str) -> None:
    logits = family(kind, 40000, 2)
    chain = S.SamplerChain([S.TopP(top_p=0.95), S.Dist()], seed=4)
    row = S.ReferenceChain(chain).apply(logits)
    candidates = S.Candidates(logits)
    chain.apply(candidates)
    np.testing.assert_array_equal(candidates.ids, row.ids)
    assert candidates.selected == row.selected


def test_a_neutral_temperature_leaves_the_full_mass() -> None:
    one, full = S.Temperature(temperature=1.0), S.TopP(top_p=0.5, mass="full")
    chain = S.SamplerChain([S.Softmax(), one, full, S.Dist()], seed=1)
    check_step(chain, S.ReferenceChain(chain), family("normal", 300, 3), "neutral")


def test_biases_beyond_float32_and_beyond_the_vocabulary() -> None:
    logits = family("normal", 300, 3)
    for bias in (1e39, -1e39):
        chain = S.SamplerChain([S.LogitBias({7: bias}), S.Dist()], seed=1)
        check_step(chain, S.ReferenceChain(chain), logits, str(bias))
    chain = S.SamplerChain([S.LogitBias({300: 1.0}), S.Dist()], seed=1)
    for apply in (chain.sample, S.ReferenceChain(chain).apply):
        with pytest.raises(ParameterError, match="token 300"):
            apply(logits)
