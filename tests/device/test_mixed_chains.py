"""Chains of which a part runs on the host, and samplers that users wrote: the tokens are those of the host."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from aleator import LanguageModel
from aleator.core.errors import ConstraintError, ParameterError
from aleator.device.cases import FAMILIES, expected, rows_of
from aleator.device.chain import DeviceChain
from aleator.samplers import SamplingParams
from aleator.samplers import index as S
from aleator.samplers.candidates import Candidates
from aleator.samplers.chain import SamplerChain
from aleator.samplers.grammar import Grammar
from tests.device.inside import inside
from tests.device.templates import KERNELS, TEMPLATE, UNBOUNDED
from tests.samplers.steps import Texts


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
def test_what_is_transferred_is_what_is_left_though_leaders_were_masked(name: str) -> None:
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


def test_settings_beyond_the_device_forms_run_on_the_host_and_say_why() -> None:
    words = [tuple(range(25)), *((i, i) for i in range(257))]
    for sampler, why in (
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
    "dry": [S.Temperature(temperature=0.7), S.TopK(top_k=30), UNBOUNDED, S.Dist()],
    "adaptive_p": [S.TopA(top_a=0.01), S.AdaptiveP(adaptive_target=0.3)],
    "mirostat": [S.TopK(top_k=50), S.TopA(top_a=0.01), S.Mirostat(mirostat_tau=2.0)],
    "user": [S.XTC(xtc_probability=0.5, xtc_threshold=0.05), Meek(), S.Dist()],
    "both": [S.TopK(top_k=40), Halve(), Meek(), S.TopA(top_a=0.1), S.Dist()],
    "full": [S.Softmax(), S.TailFree(tfs_z=0.95), S.TopP(top_p=0.8, mass="full"), S.Dist()],
}  # fmt: skip


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
    with pytest.raises(ParameterError, match="needs the host at every step"):
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


LETTERS = Texts([*(bytes([byte]) for byte in range(32, 122)), b""], frozenset({90}))


class Choosy:
    """A user's sampler that refuses token 67 and cannot go back."""

    def apply(self, candidates: Any) -> None:
        """Nothing."""

    def accept(self, token: int) -> None:
        if token == 67:
            raise KeyError("not 67")


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    ("tokens", "error"), [([65, 65], ConstraintError), ([65, 66, 67], KeyError)]
)
def test_a_row_whose_extension_is_refused_half_way_is_as_before(
    kernels: str, tokens: list[int], error: type[Exception]
) -> None:
    grammar = Grammar('root ::= ("ab" | "cd")+', vocabulary=LETTERS)
    samplers = [S.TopK(top_k=9), Choosy(), S.MirostatV2(mirostat_tau=2.0)]
    chain = SamplerChain(samplers, seed=4, grammar=grammar)
    device = DeviceChain(samplers, 1, 95, kernels=kernels)
    device.set_row(0, chain)
    for _ in range(2):
        with pytest.raises(error):
            device.extend(0, tokens, generated=True)
    for step in range(4):
        z = rows_of("flat", 1, 95, step)
        z[:, 67] = -np.inf
        assert device.sample(torch.from_numpy(z)).tolist() == expected([chain], z)


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_row_s_grammar_is_followed(kernels: str) -> None:
    grammar = Grammar('root ::= ("ab" | "cd")+ [0-9]?', vocabulary=LETTERS)
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


def test_a_mass_that_was_lost_leaves_nothing() -> None:
    samplers = [S.Softmax(), Halve(), S.TopP(top_p=0.5, mass="full"), S.Dist()]
    device = DeviceChain(samplers, 2, 64, kernels="torch")
    device.set_row(1, SamplerChain([S.Softmax(), S.TopP(top_p=0.5, mass="full"), S.Dist()], seed=3))
    tokens = device.sample(torch.from_numpy(rows_of("normal", 2, 64))).tolist()
    assert tokens[0] == -1  # on the host: an error
    assert tokens[1] >= 0
