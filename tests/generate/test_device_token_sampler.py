"""The device's token sampler alone: whose row is whose, sizes, and chains that are kept for the next run."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from aleator.cache.devices import CPU
from aleator.device.candidates import NOTHING
from aleator.generate.device_token_sampler import (
    MOST_IDLE,
    ChainDraw,
    DeviceTokenSampler,
    IdleChains,
    _room,
    longest,
)
from aleator.generate.token_sampler import HostTokenSampler, SampleTask
from aleator.samplers import Candidates, SamplerChain, SamplingParams
from aleator.samplers import index as S
from tests.device.inside import inside
from tests.engine.fake_run import N_VOCAB, state
from tests.generate.test_token_sampler import placed


@pytest.mark.parametrize(
    ("n_ctx", "max_tokens", "shift", "most"),
    [
        (64, None, False, 65), (64, None, True, 65), (64, 0, False, 6), (64, 1, False, 6),
        (64, 2, False, 7), (64, 59, False, 64), (64, 60, False, 65), (64, 61, False, 65),
        (64, 61, True, 66), (5, None, False, 6), (3, None, False, 6), (3, 9, False, 6), (3, 9, True, 14),
    ],
)  # fmt: skip
def test_the_longest_text_of_a_request(
    n_ctx: int, max_tokens: int | None, shift: bool, most: int
) -> None:
    """Of a prompt of five tokens: the last token drawn needs no position."""
    request = state("romeo", max_tokens=max_tokens, context_shift=shift).request
    assert longest(request, n_ctx) == most


def test_rooms_have_few_sizes() -> None:
    sizes = {
        (1, 1000): 256, (255, 1000): 256, (256, 1000): 512, (511, 1000): 512, (512, 1000): 1001,
        (1000, 1000): 1001, (1001, 1000): 1001, (1002, 1000): 1002, (64, 64): 65, (5, 254): 255,
        (5, 255): 256, (5, 256): 256,
    }  # fmt: skip
    assert {given: _room(*given) for given in sizes} == sizes


@pytest.mark.parametrize("seed", range(6))
def test_any_requests_draw_from_any_rows_what_they_draw_on_the_host(seed: int) -> None:
    """In a random order, some of them, from random rows of more logits than there are requests."""
    dice, numbers = random.Random(seed), np.random.default_rng(seed)
    asked: list[dict[str, Any]] = [{}, {"logprobs": 0}, {"logprobs": 2}, {}, {"logprobs": 1}]
    if seed == 0:
        asked = [{} for _ in asked]
    ours, theirs = (
        placed(*(state("romeo"[: 2 + i], i, **each) for i, each in enumerate(asked)))
        for _ in range(2)
    )
    sampler, host = DeviceTokenSampler(ours, CPU, N_VOCAB, 64), HostTokenSampler()
    assert sampler.chain.max_tokens == 65
    for _ in range(8):
        which = dice.sample(range(5), dice.randint(1, 5))
        n = dice.choice([5, len(which) + 1, 9])
        places = dice.sample(range(max(n, len(which))), len(which))
        logits = numbers.normal(0, 3, (max(n, len(which)), N_VOCAB)).astype(np.float32)
        if dice.random() < 0.3:
            places, which = sorted(places), sorted(which)
        made, wanted = (
            by.sample([SampleTask(s[i], row, None) for i, row in zip(which, places, strict=True)], logits)
            for by, s in ((sampler, ours), (host, theirs))
        )  # fmt: skip
        assert [each.token for each in made] == [each.token for each in wanted]
        for i, mine, its in zip(which, made, wanted, strict=True):
            assert mine.token is not None
            assert ours[i].chain.history == theirs[i].chain.history
            assert inside(sampler.chain).histories.length[i] == len(theirs[i].chain.history)
            top = asked[i].get("logprobs")
            given = mine.token, 3 if top is None else top, lambda token: b"%d" % token
            one, other = mine.logprobs(*given), its.logprobs(*given)
            assert [e.token for e in one.top] == [e.token for e in other.top]
            values = [[e.logprob for e in (each.chosen, *each.top)] for each in (one, other)]
            assert values[0] == pytest.approx(values[1], abs=1e-6)


def made(*chains: SamplerChain, idle: IdleChains | None, n_vocab: int = 30) -> DeviceTokenSampler:
    states = placed(*(state() for _ in chains))
    for each, chain in zip(states, chains, strict=True):
        for token in each.request.tokens:
            chain.accept(token)
        each.chain = chain
    return DeviceTokenSampler(states, CPU, n_vocab, 64, idle)


def test_chains_of_runs_that_are_over_serve_those_with_the_same_samplers() -> None:
    idle: IdleChains = {}
    first = made(SamplerChain([S.TopK(top_k=3), S.Dist()]), idle=idle)
    assert not idle
    other = made(SamplerChain([S.TopK(top_k=3), S.Dist()]), idle=idle)
    assert other.chain is not first.chain  # that one still draws
    first.release()
    first.release()
    assert [chain for chain, _ in idle.values()] == [first.chain]
    for chains, n_vocab in (
        ([[S.MinP(min_p=0.5), S.Dist()]], 30),
        ([[S.TopK(top_k=3), S.MinP(min_p=0.5), S.Dist()]], 30),
        ([[S.TopK(top_k=3), S.Dist()]] * 2, 30),
        ([[S.TopK(top_k=3), S.Dist()]], 31),
    ):
        assert made(*map(SamplerChain, chains), idle=idle, n_vocab=n_vocab).chain is not first.chain
    again = made(SamplerChain([S.TopK(top_k=9), S.Dist()], seed=4), idle=idle)
    assert again.chain is first.chain
    assert not idle
    alone = made(SamplerChain([S.TopK(top_k=3), S.Dist()]), idle=None)
    alone.release()
    assert not idle


def test_few_chains_are_kept_the_newest() -> None:
    idle: IdleChains = {}
    runs = [made(SamplerChain([S.Dist()]), idle=idle, n_vocab=30 + i) for i in range(MOST_IDLE + 2)]
    for run in runs:
        run.release()
    assert [chain for chain, _ in idle.values()] == [run.chain for run in runs[2:]]


def test_a_user_s_samplers_and_phases_leave_no_chain() -> None:
    class Nothing:
        def apply(self, candidates: Candidates) -> None:
            """Change nothing."""

        def apply_device(self, candidates: Any) -> None:
            """Change nothing there either."""

        def device_bytes(self, batch: int, n_vocab: int) -> int:
            return 0

    idle: IdleChains = {}
    for chain in (
        SamplerChain([Nothing(), S.Dist()]),
        SamplingParams(phases={"answer": {"top_k": 3}}, seed=1).chain(),
    ):
        for chains in ([chain], [SamplerChain([S.Dist()]), chain]):
            made(*(each.clone() for each in chains), idle=idle).release()
            assert not idle


def test_a_draw_of_some_rows_says_which_logits_are_whose() -> None:
    states = placed(*(state(completion=i) for i in range(4)))
    sampler = DeviceTokenSampler(states, CPU, N_VOCAB, 64)
    assert sampler.draw(()) is None
    assert sampler.draw([(states[0], [1]), (states[1], [1, 2])]) is None
    drawn = sampler.draw([(states[2], [1]), (states[0], [1])])
    assert drawn is not None
    told = {name: each.tolist() for name, each in drawn.arrays(2).items()}
    assert told == {"order": [1, 0, 0, 0], "live": [1, 0, 1, 0], "ids": [4, 5]}
    assert {name: str(each.dtype) for name, each in drawn.arrays(2).items()} == {
        "order": "int64", "live": "int32", "ids": "int64",
    }  # fmt: skip
    fed = sampler.draws([3, 1], fed=True)
    assert {name: each.tolist() for name, each in fed.arrays(3).items()} == {
        "order": [0, 1, 0, 0], "live": [0, 1, 0, 1], "ids": [3, 1, 6],
    }  # fmt: skip
    assert fed.owner is sampler.chain
    assert fed.key == sampler.chain.launches(4)


def drawn(draw: ChainDraw, logits: Any, ids: list[int]) -> tuple[list[int], list[int]]:
    """The ids of a step that draws, and what it draws."""
    arrays = {name: torch.from_numpy(each) for name, each in draw.arrays(len(ids)).items()}
    inputs = draw.inputs(torch.tensor(ids), arrays).tolist()
    draw.begin()
    draw.made = draw.compute(torch.from_numpy(logits), arrays)
    return inputs, draw.made.tolist()


def test_steps_that_draw_feed_one_another() -> None:
    states = placed(*(state(completion=i) for i in range(3)))
    wanted = [each.chain.clone() for each in states]
    sampler = DeviceTokenSampler(states, CPU, N_VOCAB, 64)
    rows = np.random.default_rng(1).normal(0, 3, (3, 2, N_VOCAB + 5)).astype(np.float32)
    first = sampler.draw([(states[2], [7]), (states[1], [8])])
    assert first is not None
    inputs, tokens = drawn(first, rows[0], [7, 8])
    of_host = [wanted[2 - i].sample(rows[0, i, :N_VOCAB]) for i in range(2)]
    assert (inputs, tokens) == ([7, 8], [NOTHING, of_host[1], of_host[0]])
    # What was drawn in the step is not drawn again.
    made = sampler.sample([SampleTask(states[i], 2 - i, None) for i in (2, 1)], rows[0])
    assert [each.token for each in made] == of_host
    assert [len(each.chain.history) for each in states] == [5, 6, 6]
    rows[1, 1] = np.nan
    inputs, tokens = drawn(sampler.draws([2, 1], fed=True), rows[1], [0, 0])
    assert inputs == of_host
    assert tokens == [NOTHING, NOTHING, wanted[2].sample(rows[1, 0, :N_VOCAB])]
    inputs, _ = drawn(sampler.draws([2, 1], fed=True), rows[2], [0, 0])
    assert inputs == [tokens[2], 0]  # after a row without a token anything may be decoded


def test_tokens_that_the_host_must_see_are_not_drawn_in_the_step() -> None:
    states = placed(*(state(completion=i) for i in range(4)))
    sampler = DeviceTokenSampler(states, CPU, N_VOCAB, 64)
    assert all(map(sampler.runs_on_device, states))
    some: Any = SimpleNamespace(constraints=[object()])
    states[1].search, states[2].completer, states[3].chain = some, some, some
    assert [*map(sampler.runs_on_device, states)] == [True, True, False, False]
    for each in states[1:]:
        assert sampler.draw([(each, [1])]) is None
        assert sampler.draw([(states[0], [1]), (each, [1])]) is None
    assert sampler.draw([(states[0], [1])]) is not None
    host = made(SamplerChain([S.TailFree(tfs_z=0.5), S.Dist()]), idle=None)
    assert [*map(host.runs_on_device, host._rows)] == [False]


def test_one_of_several_draws_from_the_only_row_of_logits() -> None:
    states = placed(*(state(completion=i) for i in range(3)))
    sampler = DeviceTokenSampler(states, CPU, N_VOCAB, 64)
    row = np.random.default_rng(1).normal(0, 3, (1, N_VOCAB)).astype(np.float32)
    wanted = states[2].chain.clone().sample(row[0])
    (drawn,) = sampler.sample([SampleTask(states[2], 0, 5)], row)
    assert drawn.token == wanted
    assert [len(each.chain.history) for each in states] == [5, 5, 6]


def test_an_ending_that_has_begun_is_given_where_tokens_are_limited() -> None:
    """Without a limit the chain draws, as on the host."""
    for left, closes in ((4, True), (None, False)):
        states, ending = placed(state(), state(completion=1)), [7, None]
        sampler = DeviceTokenSampler(states, CPU, N_VOCAB, 64)
        completer: Any = SimpleNamespace(closing=True, close=lambda ending=ending: ending.pop(0))
        states[1].completer = completer
        rows = np.random.default_rng(2).normal(0, 3, (2, N_VOCAB)).astype(np.float32)
        wanted = [each.chain.clone().sample(row) for each, row in zip(states, rows, strict=True)]
        tasks = [SampleTask(each, i, left) for i, each in enumerate(states)]
        drawn = [each.token for each in sampler.sample(tasks, rows)]
        assert drawn == ([wanted[0], 7] if closes else wanted)
        lengths = inside(sampler.chain).histories.length.tolist()
        assert lengths == [6, 6]
        if closes:
            (last,) = sampler.sample(tasks[1:], rows)
            assert last.token is None
            assert inside(sampler.chain).histories.length.tolist() == [6, 6]
