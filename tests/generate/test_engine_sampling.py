"""An engine's requests draw on the device, each in a row of its own while it lasts, or on the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import aleator
from aleator.cache.devices import Device
from aleator.device.chain import DeviceChain
from aleator.engine import engine_loop, run
from aleator.generate import engine_token_sampler
from aleator.generate.completion import Stats
from aleator.generate.engine_token_sampler import EngineTokenSampler
from aleator.generate.request_state import RequestState
from aleator.generate.token_sampler import HostTokenSampler
from aleator.samplers import SamplingParams
from aleator.samplers.chain import SamplerChain
from tests.engine.fake_run import state

ON_DEVICE: list[dict[str, Any]] = [
    {"seed": 1, "temperature": 1.2},
    {"seed": 2, "top_k": 7, "repetition_penalty": 1.3},
    {"seed": 3, "temperature": 0.0},
    {"seed": 4, "min_p": 0.1, "top_k": 30, "xtc_probability": 0.5, "xtc_threshold": 0.1},
]
ON_HOST: list[dict[str, Any]] = [
    {"seed": 5, "mirostat": 2},
    {"seed": 6, "logprobs": 2},
    {"seed": 7, "banned_strings": ["th"]},
    {"seed": 8, "grammar": 'root ::= "a" [b-z]+'},
    {"seed": 9, "top_a": 0.2},
    {"seed": 10, "sampling_device": "host"},
]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[EngineTokenSampler]:
    """Samplers of engines, which draw with PyTorch's operations on the CPU."""
    samplers: list[EngineTokenSampler] = []

    def sampler(context: Any, n_vocab: int) -> EngineTokenSampler:
        given = HostTokenSampler(1), Device("cpu"), context.n_seq_max, n_vocab, context.n_ctx
        samplers.append(EngineTokenSampler(*given, run.why_not_on_device))
        return samplers[-1]

    monkeypatch.setattr(engine_loop, "engine_token_sampler", sampler)
    return samplers


def texts(model: aleator.LanguageModel, requests: list[dict[str, Any]], n: int) -> list[list[int]]:
    with model.engine(n_seq_max=n) as engine:
        waiting = [
            engine.submit("ROMEO:", max_tokens=9 + i, **each) for i, each in enumerate(requests)
        ]
        for each in waiting:
            each.wait()
        return [each.tokens for each in waiting]


def test_tokens_are_those_of_the_host(
    made: list[EngineTokenSampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, requests = aleator.load(device="cpu", n_ctx=128), ON_DEVICE + ON_HOST + ON_DEVICE[:2]
    rows, asked = list[dict[str, Any]](), EngineTokenSampler._refused

    def noted(self: EngineTokenSampler, state: RequestState) -> str:
        why = asked(self, state)
        rows.append({"seed": state.chain.seed, "why": why})
        return why

    monkeypatch.setattr(EngineTokenSampler, "_refused", noted)
    found = texts(model, requests, 3)
    with monkeypatch.context() as patch:
        patch.setattr(engine_loop, "engine_token_sampler", lambda *given: HostTokenSampler(1))
        assert texts(model, requests, 3) == found
    drawn = {each["seed"] for each in rows if not each["why"]}
    assert drawn == {each["seed"] for each in ON_DEVICE}, rows
    assert sorted(made[0]._free) == [0, 1, 2]
    assert not made[0]._rows


def test_a_row_without_a_token_ends_its_request_alone(made: list[EngineTokenSampler]) -> None:
    model = aleator.load(device="cpu", n_ctx=128)
    n_vocab = len(model.vocab)
    nothing = dict.fromkeys(range(n_vocab), float("-inf"))
    with model.engine(n_seq_max=2) as engine:
        good = engine.submit("ROMEO:", max_tokens=12, seed=1)
        bad = engine.submit("ROMEO:", max_tokens=12, seed=1, logit_bias=nothing)
        assert isinstance(bad.exception(), aleator.LogitsError)
        right = model.generate("ROMEO:", max_tokens=12, seed=1).tokens
        assert good.result() is not None
        assert good.tokens == right


def test_a_request_for_which_the_device_has_no_memory_draws_on_the_host(
    made: list[EngineTokenSampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, requests = aleator.load(device="cpu", n_ctx=128), ON_DEVICE[:2]
    right = [model.generate("ROMEO:", max_tokens=9 + i, **r) for i, r in enumerate(requests)]
    expected = [list(each.result() and each.tokens) for each in right]
    set_row = DeviceChain.set_row

    def full(self: DeviceChain, row: int, chain: SamplerChain | None = None) -> None:
        if chain is not None and chain.seed == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        set_row(self, row, chain)

    monkeypatch.setattr(DeviceChain, "set_row", full)
    assert texts(model, requests, 2) == expected
    assert sorted(made[0]._free) == [0, 1]


def test_the_cpu_draws_on_the_host() -> None:
    context = aleator.load(device="cpu").context(n_ctx=64)
    assert isinstance(run.engine_token_sampler(context, 30), HostTokenSampler)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), aleator.ParameterError("n_vocab=9")]
)
def test_without_a_device_chain_an_engine_draws_on_the_host(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def made(*given: Any, **options: Any) -> DeviceChain:
        raise error

    context = aleator.load(device="cpu").context(n_ctx=64)
    monkeypatch.setattr(run, "_has_kernels", lambda device: True)
    monkeypatch.setattr(engine_token_sampler, "DeviceChain", made)
    monkeypatch.setattr(context, "device", Device("cuda"))
    with caplog.at_level("INFO"):
        assert isinstance(run.engine_token_sampler(context, 30), HostTokenSampler)
    assert str(error) in caplog.text


def placed(n_ctx: int = 12, **options: Any) -> RequestState:
    request = state(**options)
    request.take_place(0, n_ctx, Stats())
    return request


def sampler(n_ctx: int = 12, why_not: Any = lambda state: "") -> EngineTokenSampler:
    return EngineTokenSampler(HostTokenSampler(0), Device("cpu"), 2, 30, n_ctx, why_not)


def test_rows_are_taken_while_there_are_some_and_given_back() -> None:
    asked: list[RequestState] = []

    def why_not(state: RequestState) -> str:
        asked.append(state)
        return ""

    made, requests = sampler(why_not=why_not), [placed() for _ in range(4)]
    assert [made.draws_for(each) for each in requests[:3]] == [True, True, False]
    assert [made.draws_for(each) for each in requests[:3]] == [True, True, False]
    assert asked == requests[:3]
    assert [made.row_of(each) for each in requests[:2]] == [0, 1]
    assert made.draw([(requests[0], [1])]) is not None
    assert made.draw([(requests[0], [1]), (requests[2], [1])]) is None
    made.leave(requests[0])
    made.leave(requests[2])
    assert made.draws_for(requests[3])
    assert made.row_of(requests[3]) == 0
    assert not made.draws_for(requests[2])  # what the host has begun it goes on with
    made.release()
    assert engine_token_sampler.MOST_TOKENS == 8192
    assert [sampler(n).chain.max_tokens for n in (8190, 8191, 8192)] == [8191, 8192, 8192]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, ""),
        ({"n_ctx": 13}, "it may hold more than 13 tokens"),
        ({"max_tokens": 7, "n_ctx": 99}, ""),
        ({"max_tokens": 8, "n_ctx": 99}, ""),
        ({"max_tokens": 9, "n_ctx": 99}, "it may hold more than 13 tokens"),
        ({"logprobs": 0}, "log-probabilities are the host's"),
        ({"sampling_device": "host"}, "sampling_device='host'"),
        ({"mirostat": 2}, "what its samplers remember would be gone"),
        ({"tfs_z": 0.5}, "its samplers are not all kernels"),
        ({"completer": object()}, "are the host's in an engine"),
        ({"speculation": object()}, "are the host's in an engine"),
        ({"search": object()}, "are the host's in an engine"),
    ],
)
def test_why_a_request_draws_on_the_host(
    options: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, given = sampler(), dict(options)
    own = {
        name: given.pop(name) for name in ("completer", "speculation", "search") if name in given
    }
    params = {name: given.pop(name) for name in ("mirostat", "tfs_z") if name in given}
    request = placed(**given)
    for name, value in own.items():
        setattr(request, name, value)
    if params:
        request.chain = SamplingParams(seed=1, **params).chain()
    told = made._refused(request)
    assert why in told if why else told == ""
    assert (request in made._rows) is (not why)
    assert sampler(why_not=lambda state: "so")._refused(placed()) == "so"
    plan = SimpleNamespace(host=(), kernels="PyTorch's operations")
    monkeypatch.setattr(made.chain, "plan", lambda chain: plan)
    assert "not all kernels" in made._refused(placed())
