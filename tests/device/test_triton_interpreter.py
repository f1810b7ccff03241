"""Device chains by their Triton kernels, under Triton's interpreter: the host's tokens, bit for bit.

The interpreter has to be chosen before Triton is imported, so this file runs in a process of its own:
``test_under_the_interpreter`` in test_triton_chain.py starts it.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs in a process of its own, see test_triton_chain.py", allow_module_level=True)

import torch

from aleator.core.errors import ParameterError
from aleator.device.backends.triton import chain as triton_chain
from aleator.device.backends.triton import path as triton_path
from aleator.device.backends.triton.backend import TritonBackend
from aleator.device.cases import (
    AKUNU,
    BIAS,
    CHAINS,
    DRAW,
    FAMILIES,
    MASK,
    PENALTIES,
    SAMPLERS,
    K,
    expected,
    rows_of,
)
from aleator.device.chain import DeviceChain
from aleator.samplers import SamplingParams
from aleator.samplers import index as S
from aleator.samplers.chain import SamplerChain
from tests.device.inside import inside
from tests.device.templates import TEMPLATE
from tests.device.test_chain import (
    compare,
    compare_long_histories,
    compare_rollbacks,
    compare_watermarks,
    edit_and_compare,
    random_chain,
)
from tests.device.test_phases import compare_phases
from tests.device.test_shapes import compare_kept

# What is slow under the interpreter runs on some families, unless ALEATOR_ALL is set.
SOME = FAMILIES if os.environ.get("ALEATOR_ALL") else ("ties", "special")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():  # NumPy's, of lanes that are masked out and tiles of NaN
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


# The others are left to PyTorch, or stand in CHAINS.
OWN = [
    "greedy", "dist", "cold", "hot", "top_p", "top_p_0", "top_p_full", "min_p", "min_p_keep", "typical_p_keep",
    "penalties_hot", "token_mask", "default",
]  # fmt: skip


@pytest.mark.parametrize("name", SAMPLERS if os.environ.get("ALEATOR_ALL") else OWN)
def test_tokens_are_the_host_s(name: str) -> None:
    batch = 1 + list(SAMPLERS).index(name) % 3
    paths = compare(SAMPLERS[name], batch, 333, SOME)
    paths.pop("tiles")
    assert sum(paths.values()) == batch * len(SOME)
    compare(SAMPLERS[name], 1, 21, SOME[:1])


@pytest.mark.parametrize("name", CHAINS)
def test_every_sampler_on_a_list(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most with a list that is too short for some rows, so that the whole row has to tell."""
    monkeypatch.setattr(triton_path, "WINDOW", 9)
    paths = compare(CHAINS[name], 1, 301, SOME)
    assert paths["torch"] == 0
    assert (paths["whole"] > 0) == name.startswith("whole")


@pytest.mark.parametrize("seed", range(8))
def test_what_cuts_by_the_shape_keeps_the_same_tokens(seed: int) -> None:
    compare_kept("triton", seed, (20, 150), (S.TopK(top_k=(2, 12, 40)[seed % 3]),))


@pytest.mark.parametrize("k", [3, 40, 1030])
def test_any_number_of_ties_and_tiles(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are cut by bisection, of the candidates at hand or over the tiles, and by tiles."""
    for capacity in (2048, 1024):
        monkeypatch.setattr(triton_chain, "CAPACITY", capacity)
        samplers = [S.LogitBias(logit_bias={77: 1.0}), S.TopK(top_k=k), S.MinP(min_p=0.01), DRAW]
        compare(samplers, 1, 1300, ("ties", "one"))
        samplers = [S.TopK(top_k=k), DRAW]
        device = DeviceChain(samplers, 2, 1200, kernels="triton")
        chains = [SamplerChain(samplers, seed=0) for _ in range(2)]
        z = np.zeros((2, 1200), np.float32)
        z[1, 700:] = -np.inf
        assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)


def test_written_tokens_at_infinity_are_weighed_against_the_others() -> None:
    """A bias or a penalty moves one of several +inf tokens, and the token is drawn from all of them."""
    samplers = [S.LogitBias(logit_bias={2: 1.0, 70: -0.5}), PENALTIES, S.Dist()]
    device = DeviceChain(samplers, 5, 150, max_tokens=16, kernels="triton")
    chains = [SamplerChain(samplers, seed=seed) for seed in range(5)]
    for row, chain in enumerate(chains):
        for token in (3, 5, 3):
            chain.accept(token)
        device.set_row(row, chain)
    for at in ([1, 2], [2, 70, 149], [3, 5, 9, 140], [2]):
        z = np.zeros((5, 150), np.float32)
        z[:, at] = np.inf
        tokens = device.sample(torch.from_numpy(z)).tolist()
        assert tokens == expected(chains, z)
        assert set(tokens) <= set(at)
    overflow = torch.zeros(5, 150)
    overflow[:, [1, 2]] = 1e5
    half = overflow.to(torch.float16)
    assert device.sample(half).tolist() == expected(chains, half.float().numpy())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_widened(dtype: torch.dtype) -> None:
    samplers = CHAINS["written"]
    device = DeviceChain(samplers, 2, 300, kernels="triton")
    chains = [SamplerChain(samplers, seed=0) for _ in range(2)]
    for step in range(3):
        z = torch.randn(2, 600, generator=torch.Generator().manual_seed(step)).to(dtype)[:, ::2]
        assert device.sample(z).tolist() == expected(chains, z.float().numpy())


def test_eight_rows_with_all_paths() -> None:
    template = [BIAS, PENALTIES, S.TopNSigma(), K, S.TypicalP(), S.TopP(), S.Temperature(), DRAW]
    rows: list[list[Any]] = [
        [PENALTIES, K, S.TypicalP(typical_p=0.5), DRAW], [DRAW], [S.TopP(top_p=0.9), DRAW],
        [S.TopNSigma(top_n_sigma=1.0), S.Temperature(temperature=0.5), DRAW], [S.TopK(top_k=1), DRAW],
        [BIAS, S.TopP(top_p=0.999), DRAW], [S.Temperature(temperature=1e-9), DRAW],
        [BIAS, PENALTIES, S.TopK(top_k=1050), DRAW],
    ]  # fmt: skip
    device = DeviceChain(template, 8, 1100, kernels="triton")
    chains = [SamplerChain(samplers, seed=row) for row, samplers in enumerate(rows)]
    for row, chain in enumerate(chains):
        device.set_row(row, chain)
    for family in ("flat", "ties"):
        z = rows_of(family, 8, 1100)
        z[7, 5:] = np.nan if family == "ties" else z[7, 5:]
        z[4] = np.nan if family == "flat" else z[4]
        tokens = device.sample(torch.from_numpy(z)).tolist()
        assert tokens == expected(chains, z)
        assert (tokens[4] == -1) == (family == "flat")
    assert all(device.paths(reset=True).values())
    assert not any(device.paths().values())


def test_rows_with_different_chains_come_go_and_move() -> None:
    seed, steps = os.environ.get("ALEATOR_SEED", "1"), os.environ.get("ALEATOR_CASES", "15")
    edit_and_compare("triton", int(seed), int(steps))


def test_penalties_count_a_whole_history() -> None:
    compare_long_histories("triton")


def test_watermarks_are_the_host_s() -> None:
    compare_watermarks("triton")


def test_synthid_s_tournaments_are_the_host_s() -> None:
    compare_watermarks("triton", "synthid", "inverse")


def test_a_row_draws_with_its_phase() -> None:
    compare_phases("triton", steps=12)


def test_the_plan_says_what_computes_a_phase() -> None:
    phases = {"thinking": {"begin": 3, "end": 5, "top_k": 9}, "answer": {"typical_p": 0.5}}
    given = SamplingParams(phases=phases, seed=1, dry_sequence_breakers=[])
    device = DeviceChain(given.chain(), 1, 60, kernels="triton")
    plans = dict(device.plan().phases)
    assert plans["thinking"].kernels == "Triton"
    assert plans["answer"].kernels.endswith("typical_p needs a top_k of at most 1024 before it")
    assert device.plan().kernels == plans["answer"].kernels


def test_the_kernels_wait_for_nothing_unless_pytorch_computes_a_row() -> None:
    device = DeviceChain(AKUNU, 2, 60, kernels="triton")
    assert device.plan().kernels == "Triton"
    assert not device.runs_on_host(0)
    typical = S.TypicalP(typical_p=0.5)
    device.set_row(1, SamplerChain([typical, S.Dist()], seed=0))
    assert device.runs_on_host(0)


def past(random_: random.Random) -> list[Any]:
    """Some of the samplers that look at the tokens before, of a text of few different tokens."""
    some = range(6)
    words = [tuple(random_.choices(some, k=random_.randrange(1, 4))) for _ in range(5)]
    found = [
        S.MinTokens(min_tokens=random_.randrange(6), end_tokens=tuple(random_.sample(some, 2))),
        S.BadWords(bad_words=words),
        S.NoRepeatNgram(no_repeat_ngram_size=random_.randrange(1, 5)),
        *(
            S.DRY(
                dry_multiplier=random_.choice((0.8, -1e6)), dry_base=random_.choice((1.2, 1e6)),
                dry_allowed_length=random_.randrange(4), dry_penalty_last_n=random_.choice((5, 30, 60)),
                dry_sequence_breakers=random_.choice(((), ((1,), (2, 3), (2, 3, 4), (4, 2)))),
            )
            for _ in range(2)
        ),
    ]  # fmt: skip
    return [sampler for sampler in found if random_.random() < 0.6]


@pytest.mark.parametrize("seed", range(8 if os.environ.get("ALEATOR_ALL") else 1))
def test_what_looks_back_on_repeated_texts(seed: int) -> None:
    """Before the list is made and on it; windows, words and breakers of several tokens; forced tokens."""
    random_ = random.Random(seed)
    chains = []
    for row in range(3):
        samplers = [
            *past(random_),
            S.TopK(top_k=20),
            S.Temperature(temperature=0.7),
            *past(random_),
        ]
        chains.append(SamplerChain([*samplers, S.Dist()], seed=row))
        phrase = random_.choices(range(6), k=random_.randrange(1, 12))
        for token in (phrase * 60)[: random_.choice((1, 9, 40, 70))]:
            chains[row].accept(token, generated=random_.random() < 0.1)
    device = DeviceChain([K, DRAW], 3, 70, max_tokens=80, kernels="triton")
    for row, chain in enumerate(chains):
        device.set_row(row, chain)
    for step in range(3):
        z = rows_of("normal", 3, 70, step) - np.float32(6)
        z[:, :6] += 8
        assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z), step
        if step == 1:
            device.permute([2, 1, 0])
            chains.reverse()
    assert device.paths()["list"] == 9


def test_a_temperature_that_is_too_small_leaves_adaptive_p_nothing() -> None:
    samplers = [K, S.Temperature(temperature=1e-4), S.AdaptiveP(adaptive_target=0.3)]
    device = DeviceChain(samplers, 2, 60, kernels="triton")
    chains = [SamplerChain(samplers, seed=0) for _ in range(2)]
    for row, chain in enumerate(chains):
        device.set_row(row, chain)
    z = rows_of("normal", 2, 60)
    z[0] *= np.float32(1e36)
    tokens = device.sample(torch.from_numpy(z)).tolist()
    assert tokens == expected(chains, z)
    assert tokens[0] == -1 < tokens[1]


@pytest.mark.parametrize(
    "last",
    [
        S.MirostatV2(mirostat_tau=3.0, mirostat_eta=0.2),
        S.Mirostat(mirostat_tau=3.0, mirostat_eta=0.2),
        S.AdaptiveP(adaptive_target=0.3, adaptive_decay=0.7),
    ],
    ids=lambda sampler: sampler.name,
)
def test_states_roll_back(last: Any) -> None:
    compare_rollbacks([S.TopK(top_k=12), last], "triton", 60, 7)


@pytest.mark.parametrize("samplers", [[K, DRAW], [DRAW], [MASK, K, DRAW]])
def test_an_allowed_mask_comes_first(samplers: list[Any]) -> None:
    chains = [SamplerChain(samplers, seed=0) for _ in range(2)]
    device = DeviceChain(samplers, 2, 150, kernels="triton")
    random_ = np.random.default_rng(3)
    for step in range(6):
        z = rows_of("special" if step % 2 else "normal", 2, 150, step)
        bits = random_.random((2, 160)) < 0.3
        bits[:, 2] |= step < 3
        if step == 5:  # a token that a mask removes is at +inf: allowed, it leaves nothing
            z[:, 4], bits[:, 4] = np.inf, [True, False]
        allowed = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
        tokens = device.sample(torch.from_numpy(z), torch.from_numpy(allowed)).tolist()
        assert tokens == expected(chains, np.where(bits[:, :150], z, -np.inf).astype(np.float32))


def test_rows_that_pause_stay() -> None:
    device = DeviceChain(TEMPLATE, 3, 64, kernels="triton")
    live = torch.tensor([True, False, True])
    tokens = device.sample(torch.zeros(3, 64), live=live).tolist()
    assert tokens[1] == -1
    histories = inside(device).histories
    assert histories.length.tolist() == histories.position.tolist() == [1, 0, 1]


def test_a_tail_runs_on_the_host() -> None:
    samplers: list[Any] = [K, S.TailFree(tfs_z=0.9), S.Dist()]
    device = DeviceChain(samplers, 2, 120, kernels="triton")
    chains = [SamplerChain(samplers, seed=0), SamplerChain([K, S.TailFree(tfs_z=0.7), S.Dist()])]
    device.set_row(1, chains[1])
    for family in FAMILIES:
        z = rows_of(family, 2, 120)
        assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)


def test_the_plan_says_what_computes_a_row() -> None:
    device = DeviceChain([S.TopK(top_k=9), S.Dist()], 1, 60, kernels="triton")
    assert str(device.plan()).splitlines()[:2] == ["device (cpu): top_k -> dist", "kernels: Triton"]
    chain = SamplerChain(
        [
            S.DRY(dry_multiplier=0.8, dry_sequence_breakers=(), dry_penalty_last_n=64),
            S.TopK(top_k=9),
            S.Mirostat(),
        ],
        seed=0,
    )
    assert device.plan(chain).kernels == "Triton"
    chain = SamplerChain([S.Smoothing(smoothing_factor=0.5), S.TopK(top_k=9), S.Dist()], seed=0)
    assert "because smoothing needs a top_k of at most 1024 before it" in device.plan(chain).kernels
    chain = SamplerChain([S.TopK(top_k=9), S.TailFree(tfs_z=0.5), S.Dist()], seed=0)
    assert device.plan(chain).kernels == "PyTorch operations, because samplers on the host follow"
    reporting = DeviceChain([S.TopP(top_p=0.9), S.Dist()], 1, 60, kernels="triton", logprobs=0)
    assert "a report needs all candidates" in reporting.plan().kernels


def test_a_replay_needs_the_kernels_that_were_captured() -> None:
    device = DeviceChain(TEMPLATE, 2, 64, kernels="triton")
    with pytest.raises(ParameterError, match="capture the step again"):
        device.before_replay(2)
    device.sample(torch.zeros(2, 64))
    device.before_replay(2)
    device.set_row(1, SamplerChain([S.TopK(top_k=39), S.Dist()], seed=3))  # the same kernels
    device.before_replay(2)
    device.set_row(1, SamplerChain([S.TopP(top_p=0.5), S.Dist()], seed=3))
    with pytest.raises(ParameterError, match="capture the step again"):
        device.before_replay(2)
    device.sample(torch.zeros(2, 64))
    device.before_replay(2)


def test_tensors_stay() -> None:
    device = DeviceChain(TEMPLATE, 4, 1000, max_tokens=50, kernels="triton")
    backend = inside(device)
    assert isinstance(backend, TritonBackend)
    tensors = [*backend._fused._wanted, *backend._fused._work]
    before = device.nbytes, [t.data_ptr() for t in tensors]
    assert (
        before[0]
        == DeviceChain.bytes_for(TEMPLATE, 4, 1000, max_tokens=50, kernels="triton").tensors
    )
    for step in range(3):
        device.set_row(step % 4, random_chain(random.Random(step)))
        device.sample(torch.zeros(4, 1000))
        device.permute([1, 2, 3, 0])
    assert before == (device.nbytes, [t.data_ptr() for t in tensors])


@pytest.mark.parametrize("name", ["written", "late", "whole_greedy"])
def test_reports_are_those_of_pytorch(name: str) -> None:
    samplers = CHAINS[name]
    forms = [
        DeviceChain(samplers, 3, 151, kernels=kernels, logprobs=30, kept=True, max_tokens=64)
        for kernels in ("triton", "torch")
    ]
    for row in range(3):
        for form in forms:
            form.set_row(row, SamplerChain(samplers, seed=row))
    for step, family in enumerate(("normal", "flat", "ties", "special")):
        z = rows_of(family, 3, 151)
        z[1] = np.nan if step == 2 else z[1]
        z[0, 5:] = -np.inf if step == 3 else z[0, 5:]
        x, live = torch.from_numpy(z), torch.tensor([True, True, step != 1])
        tokens = [form.sample(x, live=live).tolist() for form in forms]
        assert tokens[0] == tokens[1]
        for name_, a in vars(forms[0].report).items():
            if isinstance(a, torch.Tensor):
                b = getattr(forms[1].report, name_)
                exact = name_.startswith("kept") or not a.is_floating_point()
                assert torch.equal(a, b) if exact else torch.allclose(a, b, 0, 1e-12), (
                    family,
                    name_,
                )
    assert (forms[0].paths()["torch"] == 0) == (not name.startswith("whole"))


def test_a_list_reads_few_tiles_again() -> None:
    """At most 1.05 reads of the logits, for a vocabulary of the size that models have."""
    samplers = [S.TopK(top_k=50), S.TopP(top_p=0.9), DRAW]
    device = DeviceChain(samplers, 1, 128_256, max_tokens=4, kernels="triton")
    for family in ("normal", "flat"):
        z = rows_of(family, 1, 128_256)
        tokens = device.sample(torch.from_numpy(z)).tolist()
        assert tokens == expected([SamplerChain(samplers, seed=0)], z)
        device.reset(0)
        assert device.paths(reset=True)["tiles"] * 128 <= 0.055 * z.size
