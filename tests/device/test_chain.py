"""Device chains give the tokens of the rows' chains on the host, bit for bit."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aleator import LanguageModel
from aleator.core.errors import ConstraintError, LogitsError, ParameterError
from aleator.device.cases import FAMILIES, SAMPLERS, expected, rows_of
from aleator.device.chain import DeviceChain
from aleator.device.peak import PeakBytes
from aleator.samplers import SamplingParams
from aleator.samplers import index as S
from aleator.samplers.candidates import Candidates
from aleator.samplers.chain import SamplerChain
from aleator.samplers.grammar import Grammar
from tests.device.inside import inside

UNBOUNDED = S.DRY(
    dry_multiplier=0.8, dry_allowed_length=1, dry_penalty_last_n=-1, dry_sequence_breakers=()
)
"""It runs on the host: a device compares within a bounded window."""


# Under Triton's interpreter, in a process of its own: tests/device/test_triton_chain.py.
KERNELS = ("triton",) if os.environ.get("TRITON_INTERPRET") == "1" else ("torch", "host")


@pytest.mark.parametrize("name", SAMPLERS)
def test_tokens_are_the_host_s(name: str) -> None:
    batch = 6
    for n_vocab in (21, 333):
        samplers = SAMPLERS[name]
        device = DeviceChain(samplers, batch, n_vocab, max_tokens=64, kernels="torch")
        chains = [SamplerChain(samplers, seed=100 + row, completion=row) for row in range(batch)]
        for row, chain in enumerate(chains):
            for token in (3, 5, 3, row):
                chain.accept(token)
            device.set_row(row, chain)
        for family in FAMILIES:
            z = rows_of(family, batch, n_vocab)
            tokens = device.sample(torch.from_numpy(z)).tolist()
            assert tokens == expected(chains, z), (name, n_vocab, family)


@pytest.mark.parametrize("kernels", KERNELS)
def test_equal_masses_end_where_the_host_s_do(kernels: str) -> None:
    """On flat rows a unit more or less of p * Z is a token; p counts as float32, so 0.8 is above 4 / 5."""
    for p in (0.2, 0.3, 0.6, 0.7, 0.8):
        for truncation in (S.TopP(top_p=p), S.TypicalP(typical_p=p)):
            if isinstance(truncation, S.TypicalP) and kernels == "triton":
                samplers = [S.TopK(top_k=10), truncation, S.Dist()]
            else:
                samplers = [truncation, S.Dist()]
            device = DeviceChain(samplers, 1, 10, kernels=kernels)
            chains = [SamplerChain(samplers, seed=0)]
            for _ in range(5):
                z = np.zeros((1, 10), np.float32)
                z[0, 7:] = -0.0
                assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_neutral_sampler_without_a_device_form_keeps_nothing_on_the_host(kernels: str) -> None:
    params = SamplingParams(temperature=0.8, top_k=40, dry_sequence_breakers=[], seed=3)
    device = DeviceChain(params.chain(), 2, 100, kernels=kernels)
    if kernels != "host":
        plan = device.plan()
        assert "dry" not in plan.device
        assert not plan.host
    dry = replace(params, dry_multiplier=0.8, dry_allowed_length=1, dry_penalty_last_n=-1)
    chains = [each.chain() for each in (params, dry)]
    for row, chain in enumerate(chains):
        for token in (1, 2, 1, 2, 1):
            chain.accept(token)
        device.set_row(row, chain)  # one row's DRY acts: its rest runs on the host
    z = torch.zeros(2, 100)
    z[:, 2] = 4
    for _ in range(8):
        assert device.sample(z).tolist() == expected(chains, z.numpy())


MASKED_FIRST: dict[str, list[Any]] = {
    "xtc": [S.XTC(xtc_probability=1.0, xtc_threshold=0.02), S.TopK(top_k=2)],
    "typical_p": [S.TopK(top_k=50), S.TypicalP(typical_p=0.3), S.TopK(top_k=2)],
    "token_mask": [S.TopP(top_p=0.9), S.TokenMask(range(0, 300, 3)), S.TopK(top_k=2)],
}


@pytest.mark.parametrize("name", MASKED_FIRST)
def test_what_crosses_is_what_is_left_though_leaders_were_masked(name: str) -> None:
    samplers = [*MASKED_FIRST[name], S.TopA(top_a=0.0001), S.Dist()]
    narrow = DeviceChain([S.TopK(top_k=9), S.TopA(top_a=0.1), S.Dist()], 1, 5, kernels="torch")
    assert 0 <= int(narrow.sample(torch.zeros(1, 5))) < 5
    device = DeviceChain(samplers, 4, 300, kernels="torch")
    chains = [SamplerChain(samplers, seed=row) for row in range(4)]
    for row, chain in enumerate(chains):
        device.set_row(row, chain)
    for step in range(4):
        z = (np.random.default_rng(step).normal(size=(4, 300)) * 3).astype(np.float32)
        z[:, :3] = 8
        assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)


@pytest.mark.parametrize("kernels", ["triton", "torch", "auto"])
def test_memory_of_a_mixed_chain_is_known(kernels: str) -> None:
    if kernels != "torch":
        pytest.importorskip("triton")
    for samplers in ([S.TopK(top_k=4), S.TopA(top_a=0.1), S.Dist()], [S.Mirostat()]):
        known = DeviceChain.bytes_for(samplers, 4, 1000, device="cuda", kernels=kernels)
        assert known.workspace > 4 * 1000 * 4


@pytest.mark.parametrize("kernels", KERNELS)
def test_half_types_are_widened(kernels: str) -> None:
    device = DeviceChain(SAMPLERS["default"], 2, 100, kernels=kernels)
    for dtype in (torch.float16, torch.bfloat16):
        z = torch.randn(2, 100, generator=torch.Generator().manual_seed(1)).to(dtype)
        chains = [SamplerChain(SAMPLERS["default"], seed=0) for _ in range(2)]
        device.reset(0)
        device.reset(1)
        assert device.sample(z).tolist() == expected(chains, z.float().numpy())


TEMPLATE = [
    S.LogitBias(),
    S.Penalties(),
    S.TopK(top_k=40),
    S.TypicalP(),
    S.TopP(top_p=0.9),
    S.MinP(),
    S.XTC(),
    S.Temperature(temperature=0.8),
    S.Dist(),
]


def random_chain(random_: random.Random) -> SamplerChain:
    choices: list[Any] = [
        S.LogitBias(logit_bias={random_.randrange(50): random_.uniform(-3, 3)}),
        S.Penalties(penalty_last_n=random_.randrange(-1, 9), repetition_penalty=1.2),
        S.TopK(top_k=random_.randrange(0, 60)),
        S.TypicalP(typical_p=random_.random()),
        S.TopP(top_p=random_.random()),
        S.MinP(min_p=random_.random() / 5),
        S.XTC(xtc_probability=random_.random(), xtc_threshold=random_.random() / 5),
        S.Temperature(temperature=random_.uniform(0.0, 2.0)),
    ]
    kept = [sampler for sampler in choices if random_.random() < 0.7]
    return SamplerChain(
        [*kept, S.Dist()], seed=random_.randrange(2**63), completion=random_.randrange(9)
    )


def edit_and_compare(kernels: str, seed: int, steps: int) -> None:
    """Rows are set, moved, rolled back and given tokens at random, and draw what their chains draw."""
    random_ = random.Random(seed)
    device = DeviceChain(TEMPLATE, 5, 64, max_tokens=300, kernels=kernels)
    chains = [SamplerChain(TEMPLATE, seed=0) for _ in range(5)]
    for step in range(steps):
        row = random_.randrange(5)
        what = random_.randrange(5)
        if what == 0:
            chains[row] = random_chain(random_)
            for token in random_.choices(range(64), k=random_.randrange(5)):
                chains[row].accept(token)
            device.set_row(row, chains[row])
        elif what == 1:
            n = random_.randrange(len(chains[row].history) + 1)
            chains[row].rollback(n)
            device.rollback(row, n)
        elif what == 2:
            order = random_.sample(range(5), 5)
            chains = [chains[i] for i in order]
            device.permute(order)
        elif what == 3:
            chains[row].accept(7, generated=True)
            device.accept(row, 7, generated=True)
        batch = random_.randrange(1, 6)
        z = rows_of(FAMILIES[step % len(FAMILIES)], batch, 64, step)
        assert device.sample(torch.from_numpy(z)).tolist() == expected(chains[:batch], z), step


@pytest.mark.parametrize("kernels", KERNELS)
def test_rows_with_different_chains_come_go_and_move(kernels: str) -> None:
    edit_and_compare(kernels, seed=1, steps=60)


@pytest.mark.parametrize(
    "name",
    [
        "mirostat",
        "mirostat_v2",
        "adaptive_p",
        "adaptive_p_off",
        "dry",
        "dry_breakers",
        "min_tokens",
        "bad_words",
        "no_repeat_ngram",
    ],
)
def test_state_rolls_back(name: str) -> None:
    chain = SamplerChain(SAMPLERS[name], seed=4)
    device = DeviceChain(SAMPLERS[name], 1, 200, kernels="torch")
    device.set_row(0, chain)
    z = rows_of("normal", 16, 200)
    for step in range(16):
        row = z[step : step + 1]
        assert device.sample(torch.from_numpy(row)).tolist() == [chain.sample(row[0])]
        if step % 7 == 3:
            chain.rollback(2)
            device.rollback(0, 2)
        if step % 5 == 4:
            chain.accept(9, generated=True)
            device.accept(0, 9, generated=True)


def test_a_minimum_counts_from_where_the_text_began() -> None:
    """A chain that was restarted goes on with its count; going back behind that begins the text there."""
    samplers = [S.MinTokens(min_tokens=3, end_tokens=(0,)), S.Greedy()]
    chain = SamplerChain(samplers)
    z = torch.tensor([[2.0, 1.0, 0.5]])
    for _ in range(2):
        chain.sample(z[0])
    chain.restart()
    chain.sample(z[0])
    device = DeviceChain(samplers, 1, 3, kernels="torch")
    device.set_row(0, chain)
    for back in (0, 0, 0, 4, 0, 0, 0, 0):
        for each in (chain.rollback, lambda n: device.rollback(0, n)):
            each(back)
        assert device.sample(z).tolist() == [chain.sample(z[0])]
    chain.reset()
    device.reset(0)
    for _ in range(4):
        assert device.sample(z).tolist() == [chain.sample(z[0])]


def test_settings_beyond_the_device_forms_run_on_the_host_and_say_why() -> None:
    words = [tuple(range(25)), *((i, i) for i in range(257))]
    for sampler, why in (
        (S.Penalties(penalty_last_n=65, repetition_penalty=2.0, repetition_per="occurrence"), "at most 64"),
        (S.NoRepeatNgram(no_repeat_ngram_size=65), "at most 64"),
        (S.BadWords(bad_words=words[:1]), "24"),
        (S.BadWords(bad_words=words[1:]), "256"),
        (S.Dist(draw="mt19937"), "one after the other"),
    ):  # fmt: skip
        plan = SamplerChain([sampler, S.Greedy()] if not sampler.selects else [sampler]).plan("cpu")
        assert why in plan.why, sampler
        assert not plan.device
    with pytest.raises(ParameterError, match="bad_words names token 9"):
        DeviceChain([S.BadWords(bad_words=((9,),)), S.Greedy()], 1, 9, kernels="torch")


def any_chain(random_: random.Random) -> SamplerChain:
    """Samplers in any order, some twice, and any that selects."""
    choices: list[Any] = [
        S.LogitBias(logit_bias={random_.randrange(50): random_.uniform(-3, 3)}),
        S.Penalties(penalty_last_n=random_.randrange(-1, 9), repetition_penalty=1.2),
        S.DRY(dry_multiplier=0.7, dry_allowed_length=1, dry_sequence_breakers=((3,),)),
        S.TopK(top_k=random_.randrange(3, 40)),
        S.TypicalP(typical_p=random_.uniform(0.3, 1)),
        S.TopP(top_p=random_.random()),
        S.MinP(min_p=random_.random() / 5),
        S.Temperature(temperature=random_.uniform(0.3, 2.0)),
        S.Temperature(temperature=random_.uniform(0.3, 2.0)),
        S.TopNSigma(top_n_sigma=random_.uniform(0.5, 3)),
        S.NoRepeatNgram(no_repeat_ngram_size=random_.randrange(1, 4)),
        S.BadWords(bad_words=((random_.randrange(50),), (3, random_.randrange(50)))),
        S.EpsilonCutoff(epsilon_cutoff=random_.random() / 20),
        S.Smoothing(smoothing_factor=random_.random()),
        S.TopA(top_a=0.01),  # on the host, and so all after it
    ]
    last: list[Any] = [
        S.Dist(), S.Dist(draw="gumbel"), S.Greedy(), S.MirostatV2(), S.Mirostat(),
        S.AdaptiveP(adaptive_target=0.3),
    ]  # fmt: skip
    kept = random_.sample(choices, random_.randrange(5))
    return SamplerChain([*kept, random_.choice(last)], seed=random_.randrange(2**63))


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_row_may_have_any_chain(kernels: str) -> None:
    random_ = random.Random(7)
    first = [S.TopK(top_k=40), S.Temperature(temperature=0.8), S.Dist()]
    device = DeviceChain(first, 4, 64, max_tokens=200, kernels=kernels)
    chains = [SamplerChain(first, seed=0) for _ in range(4)]
    for step in range(12 if kernels == "triton" else 60):
        row = random_.randrange(4)
        chains[row] = any_chain(random_)
        for token in random_.choices(range(5), k=random_.randrange(12)):
            chains[row].accept(token)
        device.set_row(row, chains[row])
        if step % 4 == 3:
            order = random_.sample(range(4), 4)
            chains = [chains[i] for i in order]
            device.permute(order)
        for family in random_.sample(FAMILIES, 2):
            z = rows_of(family, 4, 64, step)
            assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z), step


def test_places_are_added_where_they_are_needed_and_go_when_they_are_not() -> None:
    first = [S.TopK(top_k=40), S.Temperature(temperature=0.8), S.Dist()]
    device = DeviceChain(first, 2, 64, kernels="torch")

    def names() -> list[str]:
        return [type(place).__name__ for place in inside(device).program.places]

    before, bytes_before = names(), device.nbytes
    other = SamplerChain([S.Temperature(temperature=0.5), S.TopK(top_k=3), S.Dist(draw="gumbel")])
    device.sample(torch.zeros(2, 64))
    device.set_row(1, other)
    assert names() == [
        "DeviceTopK",
        "DeviceTemperature",
        "DeviceDist",
        "DeviceTopK",
        "DeviceGumbel",
    ]
    assert device.nbytes > bytes_before
    with pytest.raises(ParameterError, match="other kernels than were captured"):
        device.before_replay(2)
    kept = [id(place) for place in inside(device).program.places]
    device.set_row(0, other)
    assert [id(place) for place in inside(device).program.places] == kept
    device.set_row(0)
    device.set_row(1, SamplerChain([S.MinP(min_p=0.1), S.Dist()]))
    assert names() == ["DeviceTopK", "DeviceTemperature", "DeviceMinP", "DeviceDist"]
    assert before == ["DeviceTopK", "DeviceTemperature", "DeviceDist"]
    whole = DeviceChain(first, 2, 64, kernels="torch", chains=[other])
    kept = [id(place) for place in inside(whole).program.places]
    whole.set_row(0, other)
    assert [id(place) for place in inside(whole).program.places] == kept
    told = DeviceChain.bytes_for(first, 2, 64, kernels="torch", chains=[other])
    assert told.tensors == whole.nbytes


def test_a_tail_runs_on_the_host() -> None:
    samplers: list[Any] = [
        S.Temperature(temperature=0.7),
        S.TopK(top_k=30),
        UNBOUNDED,
        S.TailFree(tfs_z=0.9),
        S.Dist(),
    ]
    device = DeviceChain(samplers, 3, 120, kernels="torch")
    assert str(device.plan()).splitlines() == [
        "device (cpu): temperature -> top_k",
        "host: dry -> tail_free -> dist, because dry has a device form for windows of at most 512 tokens, "
        "not for dry_penalty_last_n=-1",
        "transferred: the 30 candidates that top_k leaves",
    ]
    chains = [SamplerChain(samplers, seed=row) for row in range(3)]
    for row, chain in enumerate(chains):
        for token in (1, 2, 3, 1, 2):
            chain.accept(token)
        device.set_row(row, chain)
    for step in range(12):
        z = rows_of(FAMILIES[step % len(FAMILIES)], 3, 120, step)
        assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)
    device.rollback(1, 3)
    chains[1].rollback(3)
    z = rows_of("normal", 3, 120, 99)
    assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)
    assert "put one there" in str(DeviceChain([UNBOUNDED, S.Dist()], 1, 50, kernels="torch").plan())
    assert str(DeviceChain([S.Greedy()], 1, 50, kernels="torch").plan()).endswith(
        "tokens are transferred"
    )


@pytest.mark.parametrize("kernels", KERNELS)
def test_an_allowed_mask_comes_first(kernels: str) -> None:
    device = DeviceChain(TEMPLATE, 2, 70, kernels=kernels)
    allowed = torch.zeros(2, 3, dtype=torch.int32)
    allowed[0, 2], allowed[1, 0] = 1 << 5, -(2**31)
    assert device.sample(torch.zeros(2, 70), allowed).tolist() == [69, 31]
    assert device.sample(torch.zeros(2, 70), torch.zeros_like(allowed)).tolist() == [-1, -1]


class Halve:
    """A user's sampler with a device form: masks odd tokens and doubles the rest."""

    calls = 0

    def apply(self, candidates: Any) -> None:
        candidates.logits = np.where(candidates.ids % 2 == 0, candidates.logits * 2, -np.inf)

    def apply_device(self, data: Any) -> None:
        self.calls += 1
        assert data.probs.shape == data.logits.shape
        data.logits = torch.where(data.ids % 2 == 0, data.logits * 2, float("-inf"))

    def device_bytes(self, batch: int, n_vocab: int) -> int:
        return 1000 * batch

    def rollback(self, n: int) -> None:
        """It has no state."""


def test_a_user_s_sampler_runs_on_the_device() -> None:
    user = Halve()
    samplers = [S.Temperature(temperature=0.7), user, S.TopP(top_p=0.9), S.Dist()]
    device = DeviceChain(samplers, 3, 90, kernels="torch")
    chains = [SamplerChain(samplers, seed=row) for row in range(2)]
    chains.append(SamplerChain([S.Temperature(temperature=0.7), S.Dist()], seed=5))
    for row, chain in enumerate(chains):
        device.set_row(row, chain)
    for family in FAMILIES[:7]:
        z = rows_of(family, 3, 90)
        assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)
    assert user.calls == 7
    assert device.nbytes > 3000


def test_memory_is_known_and_tensors_stay() -> None:
    device = DeviceChain(TEMPLATE, 4, 1000, max_tokens=50, kernels="torch")
    addresses = [
        t.data_ptr() for place in inside(device).program.places for t in place.rows.values()
    ]
    before = device.nbytes
    assert (
        before == DeviceChain.bytes_for(TEMPLATE, 4, 1000, max_tokens=50, kernels="torch").tensors
    )
    for step in range(20):
        device.set_row(step % 4, random_chain(random.Random(step)))
        device.sample(torch.zeros(4, 1000))
        if step % 3 == 0:
            device.permute([1, 2, 3, 0])
    assert addresses == [
        t.data_ptr() for place in inside(device).program.places for t in place.rows.values()
    ]
    assert device.nbytes == before


@pytest.mark.parametrize("name", ["default", "adaptive_p", "gumbel", "top_p_full"])
def test_memory_is_what_was_said_before(name: str) -> None:
    options: dict[str, Any] = {"max_tokens": 30, "logprobs": 3, "kept": True, "kernels": "torch"}
    told = DeviceChain.bytes_for(SAMPLERS[name], 3, 500, dtype=torch.float16, **options)
    device = DeviceChain(SAMPLERS[name], 3, 500, **options)
    assert told.tensors == device.nbytes
    logits = torch.zeros(3, 500, dtype=torch.float16)
    for _ in range(2):
        with PeakBytes() as peak:
            device.sample(logits)
        assert peak.most == told.workspace
    assert told.workspace > 500 * 3 * 8
    on_host = DeviceChain.bytes_for(SAMPLERS[name], 3, 500, logprobs=3, kept=True)
    assert on_host == (DeviceChain(SAMPLERS[name], 3, 500, logprobs=3, kept=True).nbytes, 0)


def test_a_user_s_sampler_counts_itself() -> None:
    told = DeviceChain.bytes_for([Halve(), S.Dist()], 7, 90, kernels="torch").tensors
    assert told == DeviceChain([Halve(), S.Dist()], 7, 90, kernels="torch").nbytes > 7000


class Meek:
    """A user's sampler for the host, with a state: it masks the tokens that it has seen."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def apply(self, candidates: Any) -> None:
        candidates.keep(sorted(set(candidates.ids.tolist()) - set(self.seen)))

    def accept(self, token: int) -> None:
        self.seen.append(token)

    def reset(self) -> None:
        self.seen.clear()

    def rollback(self, n: int) -> None:
        del self.seen[len(self.seen) - n :]


TAILS: dict[str, list[Any]] = {
    "dry": [
        S.Temperature(temperature=0.7),
        S.TopK(top_k=30),
        UNBOUNDED,
        S.Dist(),
    ],
    "adaptive_p": [S.TopA(top_a=0.01), S.AdaptiveP(adaptive_target=0.3)],
    "mirostat": [S.TopK(top_k=50), S.TopA(top_a=0.01), S.Mirostat(mirostat_tau=2.0)],
    "user": [S.XTC(xtc_probability=0.5, xtc_threshold=0.05), Meek(), S.Dist()],
    "both": [S.TopK(top_k=40), Halve(), Meek(), S.TopA(top_a=0.1), S.Dist()],
    "full": [S.Softmax(), S.TailFree(tfs_z=0.95), S.TopP(top_p=0.8, mass="full"), S.Dist()],
}


@pytest.mark.parametrize("name", TAILS)
def test_both_sides_of_a_mixed_chain_stay_in_step(name: str) -> None:
    random_ = random.Random(name)
    samplers = TAILS[name]
    device = DeviceChain(samplers, 3, 120, kernels="torch")
    assert str(device.plan()) == str(SamplerChain(samplers, seed=0).plan("cpu"))
    made = [SamplerChain(samplers, seed=row, completion=row) for row in range(3)]
    chains = [chain.clone() for chain in made]  # each with its own user's samplers
    for row, chain in enumerate(chains):
        for token in (1, 2, 3, 1, 2, row):
            chain.accept(token)
        device.set_row(row, chain)
    for step in range(40):
        row, what = random_.randrange(3), random_.randrange(6)
        if what == 0:
            n = random_.randrange(len(chains[row].history) + 1)
            chains[row].rollback(n)
            device.rollback(row, n)
        elif what == 1:
            for generated in (True, False):
                chains[row].accept(5 + step, generated=generated)
                device.accept(row, 5 + step, generated=generated)
        elif what == 2:
            order = random_.sample(range(3), 3)
            chains = [chains[i] for i in order]
            device.permute(order)
        elif what == 3 and step % 3 == 0:
            chains[row].reset()
            device.reset(row)
        z = rows_of(FAMILIES[step % len(FAMILIES)], 3, 120, step)
        if what == 4:
            z[row] = np.nan
        live = [random_.random() < 0.8 for _ in range(3)]
        tokens = device.sample(torch.from_numpy(z), live=torch.tensor(live)).tolist()
        for chain, line, lives, token in zip(chains, z, live, tokens, strict=True):
            assert token == (expected([chain], line[None])[0] if lives else -1), step
    with pytest.raises(ParameterError, match="host: its steps cannot be replayed"):
        device.before_replay(1)


class Stubborn:
    """A user's sampler that cannot go back."""

    def apply(self, candidates: Any) -> None:
        """Nothing."""


def test_does_not_go_back_where_a_user_s_sampler_cannot() -> None:
    device = DeviceChain([S.TopK(top_k=5), Stubborn(), S.Dist()], 1, 30, kernels="torch")
    device.sample(torch.zeros(1, 30))
    with pytest.raises(ParameterError, match="Stubborn of row 0 has no rollback"):
        device.rollback(0, 1)
    assert inside(device).histories.length.tolist() == [1]
    device.rollback(0, 0)
    device.reset(0)


class Letters:
    """A vocabulary of single bytes."""

    eog = frozenset([90])

    def __len__(self) -> int:
        return 91

    def token_bytes(self, token: int) -> bytes:
        return bytes([32 + token]) if token < 90 else b""


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_row_s_grammar_is_followed(kernels: str) -> None:
    grammar = Grammar('root ::= ("ab" | "cd")+ [0-9]?', vocabulary=Letters())
    samplers = [S.Temperature(temperature=2.0), S.TopP(top_p=0.9), S.Dist()]
    device = DeviceChain(samplers, 3, 95, kernels=kernels)
    chains = [SamplerChain(samplers, seed=row, grammar=grammar) for row in range(2)]
    chains.append(SamplerChain(samplers, seed=9))
    for row, chain in enumerate(chains):
        chain.accept(60)
        device.set_row(row, chain)
    for step in range(30):
        z = rows_of("flat", 3, 95, step)
        z[:, 90] -= 1e-3
        tokens = device.sample(torch.from_numpy(z)).tolist()
        assert tokens == expected(chains, z)
        if step % 4 == 3:
            for row, chain in enumerate(chains):
                chain.rollback(2)
                device.rollback(row, 2)
        if step == 9:
            device.permute([1, 2, 0])
            chains = [chains[i] for i in (1, 2, 0)]
    grammatical = next(row for row in range(3) if chains[row].grammar is not None)
    chains[grammatical].reset()
    device.reset(grammatical)
    with pytest.raises(ConstraintError):
        device.accept(grammatical, 3, generated=True)
    z = rows_of("flat", 3, 95, 99)
    assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)
    # What the caller masks stays masked, and a row may be left with nothing.
    allowed = torch.full((3, 3), -1, dtype=torch.int32)
    allowed[grammatical] = 0
    tokens = device.sample(torch.from_numpy(z), allowed).tolist()
    assert [token == -1 for token in tokens] == [row == grammatical for row in range(3)]


BAD_INPUT: list[tuple[Any, dict[str, Any], str]] = [
    (torch.zeros(5, 64), {}, "have 5 rows: this chain takes 1 to 4"),
    (torch.zeros(0, 64), {}, "have 0 rows"),
    (torch.zeros(1, 63), {}, "rows of 64"),
    (torch.zeros(64), {}, "must be"),
    (torch.zeros(1, 1, 64), {}, "must be"),
    (torch.zeros(1, 64, dtype=torch.float64), {}, "float16"),
    (torch.zeros(1, 64, dtype=torch.int64), {}, "float16"),
    (torch.zeros(1, 64, device="meta"), {}, "logits are on meta, the chain on cpu"),
    (np.zeros((1, 64), np.float32), {}, "must be"),
    (None, {}, "must be"),
    (torch.zeros(1, 64), {"allowed": torch.zeros(1, 1, dtype=torch.int32)}, "allowed"),
    (torch.zeros(1, 64), {"allowed": torch.zeros(1, 2, dtype=torch.int64)}, "allowed"),
    (torch.zeros(1, 64), {"allowed": torch.zeros(1, 2).int().to("meta")}, "allowed are on meta"),
    (torch.zeros(1, 64), {"allowed": [[1, 2]]}, "allowed"),
    (torch.zeros(2, 64), {"live": torch.ones(3, dtype=torch.bool)}, "live"),
    (torch.zeros(2, 64), {"live": torch.ones(2)}, "live"),
]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("logits", "options", "message"), BAD_INPUT)
def test_refuses_logits(logits: Any, options: Any, message: str, kernels: str) -> None:
    device = DeviceChain(TEMPLATE, 4, 64, kernels=kernels)
    with pytest.raises(LogitsError, match=message):
        device.sample(logits, **options)
    z = rows_of("normal", 4, 64)
    chains = [SamplerChain(TEMPLATE, seed=0) for _ in range(4)]
    assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)  # nothing had changed


BAD_ROWS = {
    "nan": np.nan,
    "all -inf": -np.inf,
    "+inf": np.inf,  # all equal: a draw among all
}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", BAD_ROWS)
@pytest.mark.parametrize("samplers", ["default", "mirostat_v2", "gumbel", "greedy", "tail"])
def test_bad_rows_have_a_flag_and_change_no_other(name: str, samplers: str, kernels: str) -> None:
    chosen = TAILS["dry"] if samplers == "tail" else SAMPLERS[samplers]
    device = DeviceChain(chosen, 4, 64, kernels=kernels)
    chains = [SamplerChain(chosen, seed=row) for row in range(4)]
    for row, chain in enumerate(chains):
        device.set_row(row, chain)
    for step in range(4):
        z = rows_of("normal", 4, 64, step)
        z[step] = BAD_ROWS[name]
        tokens = device.sample(torch.from_numpy(z)).tolist()
        assert tokens == expected(chains, z)
        assert (tokens[step] == -1) == (name != "+inf")


@pytest.mark.parametrize("kernels", KERNELS)
def test_views_in_any_layout(kernels: str) -> None:
    z = rows_of("normal", 3, 64)
    base = torch.from_numpy(z)
    wide = torch.zeros(3, 200)
    wide[:, 100:164] = base
    every_other = torch.zeros(6, 128)
    every_other[::2, ::2] = base
    views = [base.T.contiguous().T, wide[:, 100:164], every_other[::2, ::2], base[[0, 0, 0]][:1]]
    views.append(torch.zeros(1, 64).expand(3, 64))
    views.append(base.clone().requires_grad_())
    for view in views:
        device = DeviceChain(TEMPLATE, 3, 64, kernels=kernels)
        chains = [SamplerChain(TEMPLATE, seed=0) for _ in range(len(view))]
        assert device.sample(view).tolist() == expected(
            chains, np.ascontiguousarray(view.detach().numpy())
        )
    allowed = torch.full((3, 4), -1, dtype=torch.int32)[:, ::2]
    chains = [SamplerChain(TEMPLATE, seed=0) for _ in range(3)]
    device = DeviceChain(TEMPLATE, 3, 64, kernels=kernels)
    assert device.sample(base, allowed).tolist() == expected(chains, z)


@pytest.mark.parametrize("kernels", KERNELS)
def test_parameters_out_of_range_name_row_and_parameter(kernels: str) -> None:
    device = DeviceChain(TEMPLATE, 4, 64, kernels=kernels)
    for name, make in (
        ("top_k", lambda: S.TopK(top_k=2**31)),
        ("top_p", lambda: S.TopP(top_p=-0.5)),
        ("min_p", lambda: S.MinP(min_p=-0.1)),
        ("temperature", lambda: S.Temperature(temperature=float("nan"))),
    ):
        with pytest.raises(ParameterError, match=name) as caught:
            device.set_row(2, SamplerChain([make(), S.Dist()]))
        assert caught.value.parameter == name
    long = SamplerChain([S.Dist()])
    long.accept(64)
    bias = SamplerChain([S.LogitBias(logit_bias={64: 1.0}), S.Dist()])
    other = SamplerChain([S.Dist()], numerics="llama.cpp")
    for name, chain, message in (
        ("logit_bias", bias, r"^row 2: logit_bias names token 64: the vocabulary has 0 to 63"),
        ("token", long, r"^row 2: token=64 is out of range: give 0 to 63"),
        ("numerics", other, r"^row 2: "),
    ):
        with pytest.raises(ParameterError, match=message) as caught:
            device.set_row(2, chain)
        assert caught.value.parameter == name
    z = rows_of("normal", 4, 64)
    chains = [SamplerChain(TEMPLATE, seed=0) for _ in range(4)]
    assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)


@pytest.mark.parametrize("name", ["default", "mirostat", "adaptive_p"])
def test_the_host_s_kernels_go_on_with_a_chain_that_has_generated(name: str) -> None:
    chain = SamplerChain(SAMPLERS[name], seed=3)
    for step in range(4):
        chain.sample(rows_of("normal", 1, 64, step)[0])
    device = DeviceChain(SAMPLERS[name], 2, 64, kernels="host")
    device.set_row(1, chain)
    first = SamplerChain(SAMPLERS[name], seed=0)
    for step in range(4, 8):
        z = rows_of("normal", 2, 64, step)
        assert device.sample(torch.from_numpy(z)).tolist() == expected([first, chain], z)


def test_a_mass_that_was_lost_leaves_nothing() -> None:
    samplers = [S.Softmax(), Halve(), S.TopP(top_p=0.5, mass="full"), S.Dist()]
    device = DeviceChain(samplers, 2, 64, kernels="torch")
    device.set_row(1, SamplerChain([S.Softmax(), S.TopP(top_p=0.5, mass="full"), S.Dist()], seed=3))
    tokens = device.sample(torch.from_numpy(rows_of("normal", 2, 64))).tolist()
    assert tokens[0] == -1  # on the host: an error
    assert tokens[1] >= 0


class NoBytes:
    apply = apply_device = print


def test_refuses_parameters() -> None:
    moved = SamplerChain([S.Dist()])
    moved.position = 7
    device = DeviceChain(TEMPLATE, 2, 64, max_tokens=3, kernels="torch")
    calls: list[tuple[str, Any]] = [
        ("numerics", lambda: device.set_row(0, SamplerChain([S.Greedy()], numerics="llama.cpp"))),
        (
            "logit_bias",
            lambda: device.set_row(0, SamplerChain([S.LogitBias(logit_bias={64: 1.0}), S.Dist()])),
        ),
        ("row", lambda: device.set_row(2)),
        ("position", lambda: device.set_row(0, moved)),
        ("kernels", lambda: DeviceChain(TEMPLATE, 1, 64, kernels="gpu")),
        ("kernels", lambda: DeviceChain(TEMPLATE, 1, 64, device="cuda", kernels="host")),
        ("row", lambda: device.accept(-1, 0)),
        ("token", lambda: device.accept(0, 64)),
        ("token", lambda: device.accept(0, 1.7)),  # type: ignore[arg-type]
        ("chain", lambda: device.set_row(0, [S.Dist()])),  # type: ignore[arg-type]
        ("rows", lambda: device.permute([None, 0])),  # type: ignore[list-item]
        ("template", lambda: DeviceChain(None, 1, 64)),  # type: ignore[arg-type]
        ("device", lambda: DeviceChain(TEMPLATE, 1, 64, device="gpu")),
        ("kept", lambda: DeviceChain(TEMPLATE, 1, 64, kept="yes")),  # type: ignore[arg-type]
        ("dtype", lambda: DeviceChain.bytes_for(TEMPLATE, 1, 64, dtype=torch.int32)),
        ("rows", lambda: device.permute([0, 0])),
        ("batch", lambda: device.before_replay(-1)),
        ("n", lambda: device.rollback(0, 1)),
        ("max_batch", lambda: DeviceChain(TEMPLATE, 0, 64)),
        ("n_vocab", lambda: DeviceChain(TEMPLATE, 1, 2**20 + 1)),
        ("samplers", lambda: DeviceChain([NoBytes(), S.Dist()], 1, 9, kernels="torch")),
    ]
    for name, call in calls:
        with pytest.raises(ParameterError) as caught:
            call()
        assert caught.value.parameter == name
    for _ in range(3):
        device.accept(0, 1)
    with pytest.raises(ParameterError, match="max_tokens"):
        device.accept(0, 1)
    with pytest.raises(ParameterError, match="max_tokens"):
        device.sample(torch.zeros(1, 64))
    device.rollback(0, 2)
    with pytest.raises(ParameterError, match="capture the step"):
        device.before_replay(1)  # there was no step yet that might have been captured
    device.sample(torch.zeros(1, 64))
    device.rollback(0, 1)
    device.before_replay(1)
    device.before_replay(1)  # the device holds no more than it did: it was not replayed
    device.sample(torch.zeros(1, 64))


class Cycle:
    """A user's sampler with a state, on the host: bans what it saw two tokens ago."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def apply(self, candidates: Candidates) -> None:
        candidates.keep([i for i in candidates.ids.tolist() if i not in self.seen[-2:-1]])

    def accept(self, token: int) -> None:
        self.seen.append(token)

    def rollback(self, n: int) -> None:
        del self.seen[len(self.seen) - n :]


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_row_goes_on_where_its_chain_is(kernels: str, model: LanguageModel) -> None:
    """Windows, mu, averages, positions, grammars and samplers of the host's part, forwards and back."""
    windows: list[Any] = [
        S.Penalties(repetition_penalty=1.3, penalty_last_n=7),
        S.DRY(1.0, 1.5, 1, 9, []),
        S.XTC(0.5, 0.05),
    ]
    grammar = Grammar("root ::= [a-z ]+", vocabulary=model.tokenizer)
    chains = [
        SamplerChain([*windows, S.Mirostat(mirostat_tau=3.0, mirostat_eta=0.4)], seed=1),
        SamplerChain([*windows, S.MirostatV2(mirostat_tau=3.0, mirostat_eta=0.4)], seed=2),
        SamplerChain([S.AdaptiveP(adaptive_target=0.4, adaptive_decay=0.7)], seed=3),
        SamplerChain([*windows, S.Dist()], seed=4, grammar=grammar),
        SamplerChain([S.TopK(top_k=40), Cycle(), *windows, S.MirostatV2(mirostat_eta=0.4)], seed=5),
    ]
    n_vocab = 2048
    for chain in chains:
        chain.accept_many([3, 4, 3])
        for i in range(6):
            chain.sample(rows_of("normal", 1, n_vocab, i)[0] * 3)
        chain.accept(5)
    chains[3].restart()
    device = DeviceChain(TEMPLATE, len(chains), n_vocab, max_tokens=40, kernels=kernels)
    for row, chain in enumerate(chains):
        device.accept(row, 9)  # forgotten
        before = chain.history
        device.set_row(row, chain)
        assert chain.history == before
    for step in range(5):
        z = rows_of("normal", len(chains), n_vocab, 50 + step) * 3
        assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)
    for row, chain in enumerate(chains):
        back = 5 if row == 3 else 9  # into what was there before; not behind a restart
        device.rollback(row, back)
        chain.rollback(back)
    z = rows_of("normal", len(chains), n_vocab, 99) * 3
    assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_bad_row_does_not_change_another(kernels: str) -> None:
    z = rows_of("normal", 3, 64)
    z[1] = np.nan
    device = DeviceChain(TEMPLATE, 3, 64, kernels=kernels)
    chains = [SamplerChain(TEMPLATE, seed=0) for _ in range(3)]
    tokens = device.sample(torch.from_numpy(z)).tolist()
    assert tokens == expected(chains, z)
    assert tokens[1] == -1
    if kernels == "torch":
        assert inside(device).histories.position.tolist() == [1, 0, 1]
    for row in range(3):
        device.accept(row, 5)
        device.rollback(row, 1)
    z = rows_of("ties", 3, 64)
    assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)


@pytest.mark.parametrize("name", ["penalties", "mirostat_v2", "default"])
def test_a_full_row_may_stay_beside_others(name: str) -> None:
    device = DeviceChain(SAMPLERS[name], 3, 64, max_tokens=4, kernels="torch")
    chains = [SamplerChain(SAMPLERS[name], seed=0) for _ in range(3)]
    for token in (5, 6, 5, 7):
        device.accept(1, token)
        chains[1].accept(token)
    others = torch.tensor([True, False, True])
    for step in range(3):
        z = rows_of("normal", 3, 64, step)
        tokens = device.sample(torch.from_numpy(z), live=others).tolist()
        assert [tokens[0], tokens[2]] == expected([chains[0], chains[2]], z[[0, 2]])
        assert tokens[1] == -1
    assert inside(device).histories.tokens[1].tolist() == [5, 6, 5, 7]
    assert inside(device).histories.length.tolist() == [3, 4, 3]
    assert inside(device).histories.generated[1].tolist() == [False] * 4
    for live in (None, ~others):
        with pytest.raises(ParameterError, match="row 1 holds 4 tokens, and max_tokens=4"):
            device.sample(torch.zeros(3, 64), live=live)
    device.before_replays([1, 0, 1])
    with pytest.raises(ParameterError, match="row 0 holds 3 tokens, and max_tokens=4"):
        device.before_replays([2, 0, 0])
    device.rollback(1, 3)
    chains[1].rollback(3)
    z = rows_of("normal", 3, 64, 9)
    assert device.sample(torch.from_numpy(z)).tolist() == expected(chains, z)


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(KERNELS == ("triton",), reason="this is the process of its own")
def test_bad_input_under_triton_s_interpreter() -> None:
    these = "triton and (bad_rows or views or out_of_range or allowed_mask)"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-k",
            these,
            "-W",
            "ignore::RuntimeWarning",
            __file__,
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 18  # type: ignore[index]


def test_mirostat_looks_past_what_was_masked_between_candidates() -> None:
    """Equal logits of which a mask leaves every fourth: the estimate takes those that are left."""
    row = torch.zeros(1, 64)
    allowed = np.arange(3, 64, 4)
    for seed in range(8):
        chain = SamplerChain(
            [S.TopP(top_p=0.9), S.TokenMask(allowed), S.Mirostat(mirostat_m=20)], seed=seed
        )
        expected = chain.clone().sample(row[0].numpy())
        drawn = DeviceChain(chain, 1, 64, device="cpu", kernels="torch").sample(row)
        assert drawn.tolist() == [expected]
