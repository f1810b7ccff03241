"""What a chain refuses, before anything changes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import LogitsError, ParameterError
from tests.samplers.test_chain import ROW, default_chain, run


def test_torch_tensors_that_are_no_row_are_refused() -> None:
    pytest.importorskip("torch")
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    row = torch.from_numpy(ROW)
    with FakeTensorMode():
        without_storage = torch.empty(8)
    chain = default_chain()
    for tensor in (row[::2], row.reshape(2, -1), row.to("meta"), row.to_sparse(), without_storage):
        with pytest.raises(LogitsError, match="one contiguous row"):
            chain.sample(tensor)
        with pytest.raises(LogitsError, match="one contiguous row"):
            S.Candidates(tensor)
    with pytest.raises(LogitsError, match="float32, float16 or bfloat16"):
        chain.sample(row.double())
    assert chain.history == []
    assert chain.sample(torch.nn.Parameter(row)) == default_chain().sample(ROW)
    assert chain.sample(row.repeat(3)[len(ROW) : 2 * len(ROW)]) is not None  # a view with an offset


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (np.array([], np.float32), "empty"),
        (np.full(5, -np.inf, np.float32), "finite"),
        (np.full(5, np.nan, np.float32), "finite"),
        (np.zeros((2, 3), np.float32), "one contiguous row"),
        (np.zeros(10, np.float32)[::2], "one contiguous row"),
        (np.zeros(5, np.float64), "float32, float16 or bfloat16"),
        (np.zeros(5, np.int32), "float32, float16 or bfloat16"),
        ([0.0, 1.0], "one contiguous row"),
        (None, "one contiguous row"),
        (np.zeros(2**20 + 1, np.float32), "1,048,576"),
    ],
)
def test_bad_logits_are_refused_and_change_nothing(logits: object, message: str) -> None:
    chain = default_chain()
    run(chain, 3)
    history, position = chain.history, chain.position
    with pytest.raises(LogitsError, match=message):
        chain.sample(logits)
    assert (chain.history, chain.position) == (history, position)
    assert run(chain, 3) == run_after(3)


def run_after(n: int) -> list[int]:
    chain = default_chain()
    run(chain, n)
    return run(chain, 3)


@pytest.mark.parametrize("token", [-1, 2**24, 2**31 - 1, 2**31, 2**80, 4.0, "4", None, True])
@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_accept_refuses_what_is_no_token(token: Any, numerics: str) -> None:
    chain = S.SamplerChain([S.Dist()], numerics)
    with pytest.raises(ParameterError, match=f"token.*{token}"):
        chain.accept(token)
    assert chain.history == []
    token = np.int64(4)
    chain.accept(token)
    assert chain.history == [4]


@pytest.mark.parametrize("n", [1.0, "1", None, 2**70])
def test_rollback_refuses_what_is_no_number(n: Any) -> None:
    chain = default_chain()
    chain.accept(1)
    with pytest.raises(ParameterError, match=r"n=|cannot roll back"):
        chain.rollback(n)
    assert chain.history == [1]


def test_rollback_refuses_more_than_there_is() -> None:
    chain = default_chain()
    chain.accept(1)
    with pytest.raises(ParameterError, match="1 were accepted"):
        chain.rollback(2)
    with pytest.raises(ParameterError):
        chain.rollback(-1)
    assert chain.history == [1]


def test_a_chain_without_selection_says_so() -> None:
    chain = S.SamplerChain([S.TopK(top_k=3)])
    with pytest.raises(ParameterError, match="end it with Dist or Greedy"):
        chain.sample(ROW)
    assert chain.history == []
    candidates = S.Candidates(ROW)
    chain.apply(candidates)
    assert len(candidates) == 3
    assert candidates.selected is None


@pytest.mark.parametrize(("numerics", "times"), [("portable", 30), ("llama.cpp", 8)])
def test_two_threads_on_one_chain_get_an_error_not_a_wrong_token(numerics: str, times: int) -> None:
    row = np.random.default_rng(1).normal(size=200_000).astype(np.float32)
    samplers = [S.Temperature(temperature=1.5), S.TopP(top_p=0.99), S.Dist(1)]
    chain = S.SamplerChain(samplers, numerics=numerics)
    outcomes: Counter[str] = Counter()

    def work() -> None:
        for _ in range(times):
            try:
                chain.sample(row)
                outcomes["token"] += 1
            except LogitsError as error:
                outcomes["error" if "another thread" in str(error) else "wrong error"] += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes["token"] == chain.position == len(chain.history)
    assert outcomes["wrong error"] == 0
    assert outcomes.total() == 4 * times


def test_what_only_portable_chains_have_is_refused_of_llama_cpps() -> None:
    chain = S.SamplerChain([S.MirostatV2()], numerics="llama.cpp")
    cases: list[tuple[str, Callable[[], object]]] = [
        ("numerics", lambda: chain.kernels),
        ("numerics", lambda: chain.state_history(0)),
        ("chains", lambda: S.sample_batch([chain], ROW[None])),
    ]
    for parameter, ask in cases:
        with pytest.raises(ParameterError, match=r"numerics='(portable|llama\.cpp)'") as error:
            ask()
        assert error.value.parameter == parameter


def test_a_chain_with_llama_cpps_numerics_is_changed_before_its_first_token_only() -> None:
    chain = S.SamplerChain([S.TopK(top_k=1), S.Dist(seed=1)], numerics="llama.cpp")
    chain.insert(0, S.LogitBias({7: float("inf")}))
    assert [each.name for each in chain] == ["logit_bias", "top_k", "dist"]
    assert chain.sample(ROW) == 7
    with pytest.raises(ParameterError, match="reset it first"):
        chain.remove(0)
    assert len(chain) == 3
    chain.reset()
    chain.remove(0)
    assert chain.sample(ROW) == int(ROW.argmax())


def test_what_is_no_list_of_samplers_is_refused() -> None:
    wrong: list[tuple[Any, str]] = [
        (5, "samplers=5 is no list"),
        (None, "samplers=None is no list"),
        ([S.TopK, S.Greedy()], r"TopK is a class, not a sampler: give TopK\(...\)"),
    ]
    for samplers, message in wrong:
        with pytest.raises(ParameterError, match=message):
            S.SamplerChain(samplers)


@pytest.mark.parametrize("position", [-1, 1.5, "x", None, True, 2**63])
def test_a_wrong_position_is_refused(position: Any) -> None:
    chain = default_chain()
    chain.sample(ROW)
    with pytest.raises(ParameterError, match=r"^position must be"):
        chain.position = position
    assert chain.position == 1


@pytest.mark.parametrize("top", ["x", 1.5, None])
def test_a_wrong_number_of_explained_tokens_is_refused(top: Any) -> None:
    with pytest.raises(ParameterError, match=r"^top must be an integer"):
        default_chain().explain(ROW, top=top)


def test_a_batch_needs_chains() -> None:
    wrong: list[tuple[Any, str]] = [
        (5, "chains=5 is no list"),
        ([5], "chains: 5 is no SamplerChain"),
    ]
    for chains, message in wrong:
        with pytest.raises(ParameterError, match=message):
            S.sample_batch(chains, ROW[None])
