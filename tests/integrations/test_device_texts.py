"""Texts on a device's chain go on from wherever an engine has them."""

from __future__ import annotations

import pytest
import torch

from aleator import SamplerChain
from aleator.integrations.device_texts import DeviceTexts
from aleator.samplers import Dist, Penalties

V = 60


def rows(n: int, seed: int) -> torch.Tensor:
    return torch.randn(n, V, generator=torch.Generator().manual_seed(seed))


def chain(seed: int) -> SamplerChain:
    return SamplerChain([Penalties(repetition_penalty=1.5, penalty_last_n=8), Dist(seed=seed)])


@pytest.mark.parametrize("generated", [[], [4], [4, 4, 9], [7, 4, 4, 9, 9]])
def test_a_row_follows_a_text_back_and_forth(generated: list[int]) -> None:
    texts = DeviceTexts(1, V, torch.device("cpu"), 64, "torch")
    texts.begin(0, chain(1))
    for each in ([4, 4, 9], generated):
        texts.follow(0, each)
    host = chain(1)
    host.accept_many(generated, generated=True)
    z = rows(1, 0)
    assert texts.draw([0], z).tolist() == [host.sample(z[0])]


def test_a_row_that_draws_nothing_stays_where_it_is() -> None:
    texts = DeviceTexts(2, V, torch.device("cpu"), 64, "torch")
    hosts = [chain(1), chain(2)]
    for row, host in enumerate(hosts):
        texts.begin(row, host)
    z = rows(2, 1)
    broken = z.clone()
    broken[0] = -torch.inf
    first, second = texts.draw([0, 1], broken).tolist()
    assert (first, second) == (-1, hosts[1].sample(z[1]))
    texts.follow(0, [])
    assert texts.draw([0], z[:1]).tolist() == [hosts[0].sample(z[0])]
