"""Checks of ``aleator doctor --gpu``: bitwise comparisons with the host of all that runs on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec

import torch

from aleator.core.records import dataclass
from aleator.device.cases import CHAINS, FAMILIES, SAMPLERS, expected, rows_of
from aleator.device.chain import DeviceChain
from aleator.ops import top_k_top_p_draw
from aleator.samplers.base import Sampler
from aleator.samplers.chain import SamplerChain

BATCH = 8
VOCABULARIES = (301, 5000, 128_256)


class Differs(RuntimeError):
    """A GPU's result differs from the host's."""


@dataclass(frozen=True)
class Check:
    """A check that must pass before a feature is a default; ``run`` raises if it fails.

    ``name`` is its name in the results file, see :mod:`aleator.device.selection`; ``enables`` says how to turn
    the feature on if it is not the default, "" if it always is.
    """

    name: str
    run: Callable[[torch.device], None]
    enables: str


def checks() -> list[Check]:
    """All checks that can run with what is installed."""
    few, cases = VOCABULARIES[:2], [*SAMPLERS.items(), *CHAINS.items()]
    plain = partial(compare, kernels="torch", cases=SAMPLERS.items(), vocabularies=few)
    fast = partial(compare, kernels="triton", cases=cases, vocabularies=VOCABULARIES)
    found = [Check("torch", plain, "")]
    if find_spec("triton") is not None:
        found.append(Check("triton", fast, "kernels='triton' of a DeviceChain"))
        found.append(Check("operator", operator, ""))
    found.append(Check("graphs", graphs, "capture=True of a DecodeLoop"))
    return found


def compare(
    device: torch.device,
    kernels: str,
    cases: Iterable[tuple[str, list[Sampler]]],
    vocabularies: Sequence[int],
) -> None:
    """Draw tokens on a device and on the host, for all families of rows; Differs names a difference."""
    for name, samplers in cases:
        for n_vocab in vocabularies:
            chain, chains = pair(device, kernels, samplers, n_vocab)
            for family in FAMILIES:
                z = rows_of(family, BATCH, n_vocab)
                tokens = chain.sample(torch.from_numpy(z).to(device)).tolist()
                same(tokens, expected(chains, z), f"{name}, V={n_vocab}, {family}")


def pair(
    device: torch.device, kernels: str, samplers: list[Sampler], n_vocab: int
) -> tuple[DeviceChain, list[SamplerChain]]:
    """A device chain, and the host chains of its rows."""
    made = DeviceChain(samplers, BATCH, n_vocab, device=device, max_tokens=256, kernels=kernels)
    chains = [SamplerChain(samplers, seed=100 + row, completion=row) for row in range(BATCH)]
    for row, chain in enumerate(chains):
        for token in (3, 5, 3, row):
            chain.accept(token)
        made.set_row(row, chain)
    return made, chains


def graphs(device: torch.device) -> None:
    forms = ["torch"] + (["triton"] if find_spec("triton") is not None else [])
    for kernels in forms:
        for name in ("llama", "written", "whole", "mirostat_v2", "late"):
            chain, chains = pair(device, kernels, CHAINS[name], 32_000)
            x = torch.zeros(BATCH, 32_000, dtype=torch.float32, device=device)
            live = torch.zeros(BATCH, dtype=torch.bool, device=device)
            aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(aside):
                chain.sample(x, live=live)  # compiles; no row draws
            torch.cuda.current_stream(device).wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                tokens = chain.sample(x)
            for step in range(12):
                z = rows_of(FAMILIES[step % len(FAMILIES)], BATCH, 32_000, step)
                x.copy_(torch.from_numpy(z))
                chain.before_replay(BATCH)
                graph.replay()
                same(tokens.tolist(), expected(chains, z), f"{kernels}, {name}, step {step}")


def operator(device: torch.device) -> None:
    for k, p in ((50, 0.9), (0, 0.95), (0, 0.999), (1024, 0.9), (0, 1.0)):
        generator = torch.Generator().manual_seed(k)
        x = torch.randn(64, 128_256, dtype=torch.float32, generator=generator) * 2
        top_k, top_p = torch.full((64,), k, dtype=torch.int32), torch.full((64,), p)
        keys = torch.arange(64)
        host, there = (
            top_k_top_p_draw(
                x.to(at), top_k.to(at), top_p.to(at), seeds=keys.to(at), positions=keys.to(at)
            ).tolist()
            for at in (torch.device("cpu"), device)
        )
        same(there, host, f"k={k}, p={p}")


def same(found: list[int], wanted: list[int], what: str) -> None:
    """Raise Differs if tokens differ."""
    for row, (mine, its) in enumerate(zip(found, wanted, strict=True)):
        if mine != its:
            raise Differs(f"{what}: row {row} drew {mine}, the host draws {its}")
