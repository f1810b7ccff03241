"""Device chains by their Triton kernels on a CUDA device; skipped without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aleator.device.cases import CHAINS, FAMILIES, SAMPLERS, expected, rows_of
from aleator.device.chain import DeviceChain
from aleator.samplers import index as S
from aleator.samplers.chain import SamplerChain

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytest.importorskip("triton")

ALL = {**SAMPLERS, **{f"{name} (list)": chain for name, chain in CHAINS.items()}}


def pair(samplers: list[Any], batch: int, n_vocab: int) -> tuple[DeviceChain, list[SamplerChain]]:
    device = DeviceChain(samplers, batch, n_vocab, device="cuda", max_tokens=256, kernels="triton")
    assert device.kernels == "triton"
    chains = [SamplerChain(samplers, seed=100 + row, completion=row) for row in range(batch)]
    for row, chain in enumerate(chains):
        for token in (3, 5, 3, row):
            chain.accept(token)
        device.set_row(row, chain)
    return device, chains


@pytest.mark.parametrize("n_vocab", [301, 5000, 128_256])
@pytest.mark.parametrize("name", ALL)
def test_tokens_are_the_host_s(name: str, n_vocab: int) -> None:
    batch = 8
    device, chains = pair(ALL[name], batch, n_vocab)
    for family in FAMILIES:
        z = rows_of(family, batch, n_vocab)
        tokens = device.sample(torch.from_numpy(z).cuda()).tolist()
        assert tokens == expected(chains, z), family


def test_rows_do_not_depend_on_their_batch() -> None:
    """64 rows at once, in another order, and one by one."""
    samplers = CHAINS["written"]
    device, chains = pair(samplers, 64, 32_000)
    other, _ = pair(samplers, 64, 32_000)
    order = np.random.default_rng(1).permutation(64).tolist()
    other.permute(order)
    for family in FAMILIES:
        z = rows_of(family, 64, 32_000)
        x = torch.from_numpy(z).cuda()
        tokens = device.sample(x).tolist()
        assert tokens == expected(chains, z)
        assert other.sample(x[order]).tolist() == [tokens[row] for row in order]


@pytest.mark.parametrize("name", ["llama", "written", "whole", "mirostat_v2", "late"])
def test_a_graph_captures_a_step(name: str) -> None:
    device, chains = pair(CHAINS[name], 8, 32_000)
    x = torch.zeros(8, 32_000, device="cuda")
    live = torch.zeros(8, dtype=torch.bool, device="cuda")
    device.sample(x, live=live)  # compiles; no row draws
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = device.sample(x)
    for step in range(12):
        z = rows_of(FAMILIES[step % len(FAMILIES)], 8, 32_000, step)
        x.copy_(torch.from_numpy(z))
        device.before_replay(8)
        graph.replay()
        assert tokens.tolist() == expected(chains, z)


def names_of_kernels(work: Any) -> list[str]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    on_device = [e for e in found.events() if str(e.device_type).endswith("CUDA")]
    return [e.name for e in on_device if "mem" not in e.name.lower()]


@pytest.mark.parametrize(
    ("samplers", "names"),
    [
        (CHAINS["typical_p"], ["tile_maxima", "choose", "accept"]),
        (CHAINS["written"], ["mark", "masked_maxima", "settle", "choose", "accept"]),
        ([S.Dist()], ["tile_maxima", "group_masses", "choose", "whole", "accept"]),
    ],
)
def test_the_kernels_launched(samplers: list[Any], names: list[str]) -> None:
    device, _ = pair(samplers, 8, 128_256)
    x = torch.randn(8, 128_256, device="cuda")
    device.sample(x)
    assert names_of_kernels(lambda: device.sample(x)) == names


def test_a_list_reads_few_tiles_again() -> None:
    """At most 1.05 reads of the logits; what is read again is counted where it is read."""
    samplers = [S.TopK(top_k=50), S.TopP(top_p=0.9), S.Dist()]
    device, _ = pair(samplers, 64, 128_256)
    device.sample(torch.randn(64, 128_256, device="cuda"))
    assert device.paths(reset=True)["tiles"] * 128 <= 0.055 * 64 * 128_256
