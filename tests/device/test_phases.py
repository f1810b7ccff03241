"""Rows whose chains have phases draw on a device what their chains draw on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aleator import SamplingParams
from aleator.core.errors import ParameterError
from aleator.device.cases import expected, rows_of
from aleator.device.chain import DeviceChain
from aleator.samplers import index as S
from aleator.samplers.chain import SamplerChain
from aleator.samplers.phases import Phases
from tests.device.inside import inside
from tests.device.templates import KERNELS, UNBOUNDED

SIZE = 24
PHASES: dict[str, Any] = {
    "thinking": {"begin": 3, "end": 5, "top_k": 9, "temperature": 1.5},
    "code": {"begin": 7, "end": 3, "top_k": 3, "samplers": ["temperature", "top_k"]},
    "answer": {"top_k": 6, "repetition_penalty": 1.3, "penalty_last_n": 5},
}


def params(seed: int, **phases: Any) -> SamplingParams:
    return SamplingParams(seed=seed, phases={**PHASES, **phases}, dry_sequence_breakers=[])


def logits(batch: int, step: int) -> np.ndarray:
    """Rows in which marks are likely."""
    z = rows_of("normal", batch, SIZE, step)
    z[:, [3, 5, 7]] += 5
    return z


def compare_phases(kernels: str, steps: int) -> None:
    """Rows with other marks or none, that go back, are given tokens, pause, move and begin anew."""
    given = [params(1), params(2, code={"begin": 9, "top_k": 2}, start="thinking")]
    chains = [each.chain() for each in given]
    chains.append(SamplerChain([S.TopK(top_k=4), S.Dist()], seed=3))
    device = DeviceChain(chains[0], 3, SIZE, max_tokens=200, kernels=kernels)
    for row, chain in enumerate(chains):
        chain.accept_many([7, 1, 2])
        device.set_row(row, chain)
    drew = set()
    for step in range(steps):
        z = logits(3, step)
        live = [step % 4 != row for row in range(3)]
        tokens = device.sample(torch.from_numpy(z), live=torch.tensor(live)).tolist()
        for row, chain in enumerate(chains):
            assert tokens[row] == (expected([chain], z[row : row + 1])[0] if live[row] else -1)
            drew.add(chain.phase)
        if step % 3 == 2:
            back = min(4, chains[step % 2].position)
            device.rollback(step % 2, back)
            chains[step % 2].rollback(back)
        if step % 5 == 4:
            device.extend(0, [9, 5], generated=True)
            chains[0].accept_many([9, 5], generated=True)
        if step % 7 == 5:
            device.permute([1, 0, 2])
            chains[:2] = chains[1::-1]
        if step == steps // 2:
            device.reset(1)
            chains[1].reset()
            device.accept(1, 2)
            chains[1].accept(2)
    assert {"answer", "thinking", "code", ""} == drew


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_row_draws_with_its_phase(kernels: str) -> None:
    compare_phases(kernels, steps=16)


def test_own_histories_are_the_host_s() -> None:
    chain = params(1, histories="own").chain()
    device = DeviceChain(chain, 1, SIZE, kernels="torch")
    plan = device.plan()
    assert (plan.host, plan.device, plan.phases) == (("phases",), (), ())
    assert "histories of their own" in plan.why
    for step in range(12):
        z = logits(1, step)
        assert device.sample(torch.from_numpy(z)).tolist() == expected([chain], z)


@pytest.mark.parametrize(
    "adapts", [{"mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 0.5}, {"adaptive_target": 0.3}]
)
def test_what_a_phase_has_learned_is_there_when_it_comes_again(adapts: dict[str, Any]) -> None:
    """The kernels know what they have learned in one phase, and the host's copy of the chain does not."""
    phases = {"thinking": {**PHASES["thinking"], **adapts}, "answer": {"top_k": 6}}
    chain = SamplingParams(seed=1, phases=phases, dry_sequence_breakers=[]).chain()
    device = DeviceChain(chain, 1, SIZE, kernels="torch")
    assert device.plan().host == ("phases",)
    for step in range(40):
        z = rows_of("normal", 1, SIZE, step)
        z[:, [3, 5]] += 9
        assert device.sample(torch.from_numpy(z)).tolist() == expected([chain], z)
    assert set(chain.phases) == {"answer", "thinking"}


def test_the_plan_names_each_phase() -> None:
    phases = {"thinking": {"begin": 3, "end": 5, "dry_multiplier": 0.5, "top_k": 9}}
    given = SamplingParams(phases=phases, seed=1, dry_sequence_breakers=[], dry_penalty_last_n=-1)
    device = DeviceChain(given.chain(), 1, SIZE, kernels="torch")
    assert str(device.plan()) == (
        "phase answer: device (cpu): dist\n"
        "  host: nothing; only the tokens are transferred\n"
        "phase thinking: device (cpu): nothing\n"
        "  host: dry -> top_k -> dist, because dry has a device form for windows of at most 512 tokens, not "
        "for dry_penalty_last_n=-1\n"
        "  transferred: all logits, since no top_k comes before: put one there\n"
        "between phases: the host looks for their marks in every token"
    )
    assert device.plan().device == ("dist",)
    chain = given.chain()
    chain.accept(3, generated=True)
    assert device.plan(chain).device == ()
    assert device.runs_on_host(0)


def test_a_phase_that_cannot_run_is_refused_before_it_begins() -> None:
    chain = params(1, thinking={**PHASES["thinking"], "logit_bias": {99: 1.0}}).chain()
    device = DeviceChain([S.Greedy()], 1, SIZE, kernels="torch")
    with pytest.raises(ParameterError, match="row 0: logit_bias names token 99"):
        device.set_row(0, chain)
    assert [sampler.name for sampler in inside(device).samplers_of(inside(device).rows[0])] == [
        "greedy"
    ]


def test_memory_is_that_of_the_largest_phase() -> None:
    chains: dict[str, list[Any]] = {"answer": [S.Dist()], "thinking": [S.TopP(top_p=0.5), S.Dist()]}
    phases = Phases((("thinking", (("begin", 3), ("end", 5))),), chains)
    known = DeviceChain.bytes_for([phases], 2, SIZE, kernels="torch", max_tokens=32)
    made = DeviceChain([phases], 2, SIZE, kernels="torch", max_tokens=32)
    assert known.tensors == made.nbytes
    alone = DeviceChain.bytes_for(chains["thinking"], 2, SIZE, kernels="torch", max_tokens=32)
    assert known.workspace >= alone.workspace > 0


def test_samplers_of_the_host_follow_in_one_phase() -> None:
    chain = params(4).chain()
    chain.insert(0, S.TopA(top_a=0.01))
    device = DeviceChain([S.TopK(top_k=3), UNBOUNDED, S.Dist()], 1, SIZE, kernels="torch")
    device.set_row(0, chain)
    for step in range(20):
        z = logits(1, step)
        assert device.sample(torch.from_numpy(z)).tolist() == expected([chain], z)
        if step == 9:
            device.rollback(0, 7)
            chain.rollback(7)
    assert len(set(chain.phases)) > 1
