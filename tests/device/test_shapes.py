"""P-less, top-H and min-k keep the same tokens on a device as on the host: sets, not only draws from them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from aleator.device.chain import DeviceChain
from aleator.samplers import index as S
from aleator.samplers.candidates import Candidates
from aleator.samplers.chain import SamplerChain


def cut(r: random.Random) -> Any:
    share = r.choice((0.0, 0.4, 0.7, 0.999, r.random()))
    return r.choice(
        (
            S.PLess(p_less="on"), S.PLess(p_less="normalized"), S.TopH(top_h=share),
            S.MinK(min_k_tau=r.choice((0.0, 3.0, r.uniform(0, 400)))),
        )
    )  # fmt: skip


def rows(rng: np.random.Generator, kind: str, batch: int, n: int) -> Any:
    z = rng.normal(0, {"narrow": 0.001, "wide": 30}.get(kind, 2), (batch, n))
    if kind == "ties":
        z = np.round(z)
    if kind == "peaked":
        z[:, 0] += (5, 20, 40, 90)[rng.integers(4)]
    if kind == "masked":
        z[rng.random(z.shape) < 0.6] = -np.inf
        z[:, n // 2] = 1
    return z.astype(np.float32)


def compare_kept(kernels: str, seed: int, sizes: tuple[int, ...], first: tuple[Any, ...]) -> None:
    """A chain with a cut, after samplers that may leave gaps in the order, on a few rows."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    n = r.choice(sizes)
    chain: list[Any] = [
        *first, S.XTC(xtc_probability=r.choice((0.0, 1.0)), xtc_threshold=0.03),
        S.Temperature(temperature=r.choice((0.1, 1.0, 1.7, 20.0))), cut(r), S.Dist(),
    ]  # fmt: skip
    device = DeviceChain(chain, 3, n, kernels=kernels, kept=True)
    for kind in r.sample(("usual", "narrow", "wide", "ties", "peaked", "masked"), 2):
        z = rows(rng, kind, 3, n)
        for row in range(3):
            device.set_row(row, SamplerChain(chain, seed=seed))
        device.sample(torch.from_numpy(z))
        words = device.report.kept.numpy().view(np.uint8)
        for row in range(3):
            candidates = Candidates(z[row])
            SamplerChain(chain, seed=seed).apply(candidates)
            bits = np.unpackbits(words[row], bitorder="little")
            assert np.flatnonzero(bits).tolist() == candidates.ids.tolist(), (kind, n, chain)


@pytest.mark.parametrize("seed", range(40))
def test_the_same_tokens_stay(seed: int) -> None:
    compare_kept("torch", seed, (1, 2, 20, 129, 1023, 1024, 1025, 2500), ())
