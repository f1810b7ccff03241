"""Sampling on the device gives what sampling on the host gives, here with PyTorch's operations on the CPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import aleator
from aleator import samplers as S
from aleator.cache.devices import CPU, Device
from aleator.core.errors import LogitsError, ParameterError
from aleator.engine import run
from aleator.engine.run import make_token_sampler
from aleator.generate import device_token_sampler
from aleator.generate.completion import Stats
from aleator.generate.device_token_sampler import DeviceTokenSampler
from aleator.generate.generation import Generation
from aleator.generate.request_state import RequestState
from aleator.generate.steering import Guidance
from aleator.generate.token_sampler import LEAST_TOGETHER, HostTokenSampler, SampleTask
from tests.engine.fake_run import state
from tests.generate.test_grammar import DIALOGUE, PERSON

PROMPTS = ["ROMEO:", "JULIET:\nWhat", "ROMEO:"]
CHAINS: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"temperature": 0.0},
    "all": {"repetition_penalty": 1.2, "typical_p": 0.95, "xtc_probability": 0.5, "top_n_sigma": 2},
    "mirostat": {"mirostat": 1},
    "mirostat 2": {"mirostat": 2},
    "adaptive-p": {"samplers": "top_k;adaptive_p", "adaptive_target": 0.4},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    "bias": {"logit_bias": {10: -5.0, 20: 1.0}, "ignore_eos": True},
}


@pytest.fixture(scope="module")
def model() -> aleator.LanguageModel:
    """Keys kept from another batch differ in their last bits, so nothing is kept here."""
    return aleator.load(n_threads=1, prompt_cache=False)


def both(model: aleator.LanguageModel, prompts: Any = PROMPTS, **options: Any) -> Any:
    """The same batch made twice; what comes of it must be equal."""
    made = [
        model.generate_batch(prompts, sampling_device=place, **options)
        for place in ("host", "device")
    ]
    for one, other in zip(*made, strict=True):
        check_equal(one, other)
        assert isinstance(one._reader.run._sampler, HostTokenSampler)
        assert isinstance(other._reader.run._sampler, DeviceTokenSampler)
    return made


def placed(*states: RequestState) -> tuple[RequestState, ...]:
    """Requests in the sequences 0, 1, ..."""
    for seq, each in enumerate(states):
        each.take_place(seq, 64, Stats())
    return states


def check_equal(one: Generation, other: Generation) -> None:
    assert one.tokens == other.tokens
    assert (one.text, one.stop_reason) == (other.text, other.stop_reason)
    assert one.complete == other.complete
    chains = one.chain, other.chain
    assert chains[0].history == chains[1].history
    assert chains[0].position == chains[1].position
    if one.logprobs is not None:
        assert other.logprobs is not None
        for mine, its in zip(one.logprobs, other.logprobs, strict=True):
            assert [e.token for e in mine.top] == [e.token for e in its.top]
            for a, b in zip((mine.chosen, *mine.top), (its.chosen, *its.top), strict=True):
                assert (a.token, a.text, a.bytes) == (b.token, b.text, b.bytes)
                assert a.logprob == pytest.approx(b.logprob, abs=1e-12) or a.logprob == b.logprob


@pytest.mark.parametrize("name", CHAINS)
def test_same_texts(name: str, model: aleator.LanguageModel) -> None:
    both(model, n=2, max_tokens=24, seed=5, logprobs=3, **CHAINS[name])


def test_rows_end_at_different_times(model: aleator.LanguageModel) -> None:
    one, _ = both(model, PROMPTS[:2], n=3, max_tokens=60, seed=3, stop=("e", "the "))
    assert len({len(each.tokens) for each in one}) > 2
    both(model, max_tokens=1, seed=3, logprobs=0)
    host, device = (
        model.generate("ROMEO:", max_tokens=9, seed=2, sampling_device=place)
        for place in ("host", "device")
    )
    check_equal(host, device)


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("kind", ["json_schema", "grammar"])
def test_grammars(kind: str, complete: bool, model: aleator.LanguageModel) -> None:
    options: dict[str, Any] = {kind: PERSON if kind == "json_schema" else DIALOGUE}
    options |= {"complete_grammar": complete, "temperature": 1.3, "logprobs": 2, "seed": 7}
    one, two = both(model, n=2, max_tokens=90, **options)
    assert one[0].stats.forced_tokens == two[0].stats.forced_tokens > 0
    for limit in (25, 40):  # the ending takes over
        both(model, PROMPTS[:1], max_tokens=limit, **options)
    both(model, PROMPTS[:1], max_tokens=40, jump_forward=False, **options)


def test_tokens_beyond_the_context_need_no_memory(model: aleator.LanguageModel) -> None:
    made = model.generate("ROMEO:", max_tokens=2**31 - 1, seed=2, sampling_device="device")
    sampler: Any = made._reader.run._sampler  # type: ignore[attr-defined]
    assert isinstance(sampler, DeviceTokenSampler)
    assert sampler.chain.max_tokens == model.n_ctx + 1
    made.cancel()


def test_what_is_left_crosses_though_leaders_were_masked(model: aleator.LanguageModel) -> None:
    options: dict[str, Any] = {"top_k": 2, "dry_multiplier": 0.8, "max_tokens": 20, "seed": 1}
    both(model, samplers="xtc;top_k;dry", xtc_threshold=0.05, xtc_probability=1.0, **options)
    both(model, samplers="typ_p;top_k;dry", typical_p=0.5, **options)


def test_a_context_shift(model: aleator.LanguageModel) -> None:
    small = aleator.load(n_ctx=32)
    both(small, PROMPTS[:1], max_tokens=60, context_shift=True, seed=1, ignore_eos=True)
    with pytest.raises(ParameterError, match="there is no end"):
        small.generate("ROMEO:", context_shift=True, sampling_device="device")


def test_a_session_goes_on(tmp_path: Path) -> None:
    model = aleator.load(n_threads=1)  # keeps the session's keys
    options: dict[str, Any] = {"seed": 4, "repetition_penalty": 1.3}
    whole = model.generate("ROMEO:", max_tokens=30, **options).tokens
    first = model.generate("ROMEO:", max_tokens=12, **options, sampling_device="device")
    assert first.stop_reason == "length"
    model.save_session(tmp_path / "s", first)
    session = model.load_session(tmp_path / "s")
    second = model.generate(session, max_tokens=18, **options, sampling_device="device")
    assert first.tokens + second.tokens == whole


def test_a_cancelled_one_does_not_disturb(model: aleator.LanguageModel) -> None:
    alone = [model.generate_batch(PROMPTS, max_tokens=20, seed=1)[2].tokens]
    made = model.generate_batch(PROMPTS, max_tokens=20, seed=1, sampling_device="device")
    next(made[0])
    made[1].cancel()
    assert made[2].tokens == alone[0]
    assert made[1].stop_reason == "interrupted"


def test_the_log_says_which_samplers_run_where(
    model: aleator.LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "aleator.generate")

    def logged(**options: Any) -> list[str]:
        caplog.clear()
        model.generate_batch(PROMPTS, **{"max_tokens": 1, "seed": 1, "top_k": 40, **options})
        return [message.removeprefix("samplers: ") for message in caplog.messages]

    cut = {"samplers": "top_k;tail_free;temperature", "tfs_z": 0.9}
    assert logged(sampling_device="device", **cut) == [  # once for all rows with equal plans
        "device (cpu): top_k; host: tail_free -> temperature -> dist, because tail_free has no device form; "
        "transferred: the 40 candidates that top_k leaves"
    ]
    assert logged(sampling_device="device", samplers="top_k;temperature") == [
        "device (cpu): top_k -> temperature -> dist; host: nothing; only the tokens are transferred"
    ]
    for options, why in (
        ({}, "the model is on the CPU"),
        ({"sampling_device": "host"}, "sampling_device='host'"),
    ):
        assert logged(**options) == [f"all run on the host, because {why}"]
    caplog.clear()
    used = state()
    used.chain.sample(torch.zeros(30))
    make_token_sampler([used], "auto", Device("cuda"), 30, 64)
    assert "because its chain has accepted another text than the prompt" in caplog.text


def test_refuses_what_only_the_host_can(
    model: aleator.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options, message in (
        ({"numerics": "llama.cpp"}, "numerics='llama.cpp' are made on the host only"),
        ({"on_logits": lambda chain, row: None}, "on_logits looks at the host's chain"),
        (
            {"logit_bias": dict.fromkeys(range(0), 0.0), "sampling_device": "gpu"},
            "must be one of auto, host",
        ),
    ):
        with pytest.raises(ParameterError, match=message) as caught:
            model.generate("a", **{"sampling_device": "device", **options})  # type: ignore[arg-type]
        assert caught.value.parameter == "sampling_device"
    used = state()
    used.chain.sample(torch.zeros(30))
    with pytest.raises(ParameterError, match="another text than the prompt"):
        make_token_sampler([used], "device", CPU, 30, 64)
    assert isinstance(make_token_sampler([used], "auto", Device("cuda"), 30, 64), HostTokenSampler)
    assert isinstance(make_token_sampler([state()], "auto", CPU, 30, 64), HostTokenSampler)
    made: list[Any] = []
    monkeypatch.setattr(
        device_token_sampler, "DeviceTokenSampler", lambda *given: made.append(given)
    )
    unchecked = make_token_sampler([state()], "auto", Device("cuda"), 30, 64)
    assert isinstance(unchecked, HostTokenSampler)  # PyTorch's operations would be slower
    monkeypatch.setattr(run, "_has_kernels", lambda device: True)
    make_token_sampler([state()], "auto", Device("cuda"), 30, 64)
    assert len(made) == 1


def test_nothing_to_draw_is_an_error() -> None:
    states = placed(state(), state())
    made = make_token_sampler(states, "device", CPU, 30, 64)
    z = torch.zeros(2, 30)
    z[1] = torch.nan
    drawn = made.sample([SampleTask(each, each.seq, None) for each in states], z)
    assert drawn[0].token is not None
    assert "sequence 1: no token" in str(drawn[1].error)


def test_chains_in_different_orders_draw_together() -> None:
    one = state()
    other = state()
    chain = S.SamplerChain([S.MinP(min_p=0.1), S.TopK(top_k=3), S.Dist()], seed=1)
    for token in other.request.tokens:
        chain.accept(token)
    other.chain = chain
    wanted = chain.clone()
    states = placed(one, other)
    made = make_token_sampler(states, "device", CPU, 30, 64)
    z = torch.randn(2, 30, generator=torch.Generator().manual_seed(1))
    drawn = made.sample([SampleTask(each, each.seq, None) for each in states], z)
    assert drawn[1].token == wanted.sample(z[1])


def test_requests_that_draw_at_the_same_time_draw_what_they_would_alone() -> None:
    rows = np.random.default_rng(3).normal(0, 3, (12, 30)).astype(np.float32)
    together, alone = ([state(completion=i) for i in range(9)] for _ in range(2))
    together[4].on_logits = lambda chain, row: None  # draws by itself, between two runs of rows
    tasks = [SampleTask(each, i + (i > 6), None) for i, each in enumerate(together)]
    made = HostTokenSampler(2).sample_together(tasks, rows)
    assert [i for i, task in enumerate(made) if task.sampled is not None] == [0, 1, 2, 3]
    other = [SampleTask(each, i + (i > 6), None) for i, each in enumerate(alone)]
    assert HostTokenSampler().sample_together(other, rows) is other
    tokens = [
        [each.token for each in HostTokenSampler(2).sample(these, rows)] for these in (made, other)
    ]
    assert tokens[0] == tokens[1]
    assert [each.chain.history for each in together] == [each.chain.history for each in alone]


@pytest.mark.parametrize("n", [LEAST_TOGETHER - 1, LEAST_TOGETHER])
def test_so_many_requests_draw_at_the_same_time(n: int) -> None:
    rows = np.random.default_rng(3).normal(0, 3, (n, 30)).astype(np.float32)
    tasks = [SampleTask(state(completion=i), i, None) for i in range(n)]
    made = HostTokenSampler(2).sample_together(tasks, rows)
    assert [task.sampled is not None for task in made] == [n == LEAST_TOGETHER] * n


def test_of_requests_that_draw_at_the_same_time_one_fails_alone() -> None:
    rows = np.random.default_rng(3).normal(0, 3, (5, 30)).astype(np.float32)
    rows[2] = np.nan
    states = [state(completion=i) for i in range(5)]
    before = list(states[0].chain.history)
    tasks = [SampleTask(each, i, None) for i, each in enumerate(states)]
    sampler = HostTokenSampler(2)
    made = sampler.sample_together(tasks, rows)
    assert [task.sampled for task in made] == [None] * 5
    assert all(each.chain.history == before for each in states)
    for i, task in enumerate(made):
        if i == 2:
            with pytest.raises(LogitsError):
                sampler.sample([task], rows)
        else:
            (drawn,) = sampler.sample([task], rows)
            assert drawn.token == state(completion=i).chain.sample(rows[i])


def test_chains_that_call_python_or_obey_a_grammar_draw_by_themselves(
    model: aleator.LanguageModel,
) -> None:
    class Nothing:
        def apply(self, candidates: S.Candidates) -> None:
            """Change nothing."""

    grammar = S.Grammar('root ::= "a"+').bound(model.tokenizer)
    assert state().draws_alone
    assert not S.SamplerChain([S.Dist()], numerics="llama.cpp").can_be_batched
    assert not S.SamplerChain([Nothing(), S.Dist()]).can_be_batched
    assert not S.SamplerChain([S.Dist()], grammar=grammar).can_be_batched


def test_who_chooses_a_token_on_the_host() -> None:
    """A budget that forces one, else a completer where tokens are limited, else the chain."""
    row = np.random.default_rng(3).normal(0, 3, (1, 30)).astype(np.float32)
    drawn = state().chain.sample(row[0])
    cases: list[tuple[int | None, bool, int | None, str]] = [
        (None, False, 5, "chain"), (7, False, 5, "budget"), (7, True, 5, "budget"),
        (None, True, None, "chain"), (None, True, 5, "completer"),
    ]  # fmt: skip
    for forced, completes, left, by in cases:
        request, asked = state(), list[Any]()
        if forced is not None or by == "chain":
            request.budget = SimpleNamespace(next=lambda forced=forced: forced)  # type: ignore[assignment]
        if completes:
            completer = SimpleNamespace(
                sample=lambda row, left, to=asked: to.append(left) or "work"
            )
            request.completer = completer  # type: ignore[assignment]
        (made,) = HostTokenSampler().sample([SampleTask(request, 0, left)], row)
        token = {"chain": drawn, "budget": forced, "completer": None}[by]
        assert (made.token, made.pending) == (token, "work" if by == "completer" else None)
        assert asked == ([left] if by == "completer" else [])
        assert request.chain.position == (by != "completer")
        assert request.chain.history[5:] == ([] if token is None else [token])


def test_rows_are_moved_away_from_those_of_the_second_prompt() -> None:
    """Beside each token its own; the first has that after the prompt."""
    rows = np.random.default_rng(3).normal(0, 3, (3, 30)).astype(np.float32)
    for row, beside, other in ((1, 0, rows[0]), (0, 1, rows[1]), (0, -1, rows[2])):
        request = state()
        request.guidance = Guidance([1], 1.5)
        request.guidance.first = rows[2]
        guided = Guidance([1], 1.5).guided(rows[row], other)
        wanted = state().chain.sample(guided)
        (made,) = HostTokenSampler().sample([SampleTask(request, row, None, beside)], rows)
        assert made.token == wanted
        assert made.row is not None
        assert made.row.tobytes() == guided.tobytes()
