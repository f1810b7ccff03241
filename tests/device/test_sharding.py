"""A vocabulary on several ranks gives the tokens of one, on every rank."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from aleator.core.errors import LogitsError, ParameterError
from aleator.device.cases import FAMILIES, SAMPLERS, expected, rows_of
from aleator.device.sharding import ShardedChain
from aleator.samplers import SamplerChain
from aleator.samplers import index as S
from tests.device.inside import inside

N_VOCAB, BATCH = 203, 4
CHAINS: dict[str, list[Any]] = {
    "greedy": [S.Greedy()],
    "dist": [S.Temperature(temperature=0.9), S.Dist()],
    "gumbel": [S.Dist(draw="gumbel")],
    "watermark": SAMPLERS["watermark"],
    "local": [
        S.LogitBias(logit_bias={3: 1.0, 150: -2.0}),
        S.Penalties(penalty_last_n=8, repetition_penalty=1.2, frequency_penalty=0.1),
        S.TokenMask(allowed=list(range(0, 203, 3))),
        S.TopNSigma(top_n_sigma=2.0),
        S.Temperature(temperature=1.1, dynatemp_range=0.5),
        S.TopP(top_p=0.8, min_keep=2),
        S.MinP(min_p=0.2, min_keep=3),
        S.Dist(),
    ],
    "top_k": [
        S.TopK(top_k=20),
        S.TypicalP(typical_p=0.9),
        S.TopP(top_p=0.9),
        S.XTC(xtc_probability=0.8, xtc_threshold=0.05),
        S.Temperature(temperature=0.7),
        S.Dist(),
    ],
    "mirostat_v2": [S.TopK(top_k=30), S.MirostatV2(mirostat_tau=3.0)],
    "adaptive_p": [S.TopP(top_p=0.97), S.AdaptiveP(adaptive_target=0.2)],
    "large_k": [S.TopK(top_k=150), S.TopP(top_p=0.7), S.Dist()],
    "twice": [S.TopK(top_k=20), S.TopK(top_k=9), S.Dist()],
}


def shards(ranks: int) -> list[int]:
    """Uneven."""
    return {2: [0, 60, N_VOCAB], 4: [0, 17, 18, 130, N_VOCAB]}[ranks]


def families(ranks: int) -> tuple[str, ...]:
    """All once; every rank more makes each step slower."""
    return FAMILIES if ranks == 2 else ("normal", "ties", "special")


def run_rank(rank: int, ranks: int, store: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    first, end = shards(ranks)[rank : rank + 2]
    lines = []
    for name, samplers in CHAINS.items():
        sharded = ShardedChain(samplers, BATCH, N_VOCAB, first=first, max_top_k=32, max_tokens=40)
        for row in range(BATCH):
            sharded.set_row(row, chain_of(samplers, row))
        for step, family in enumerate(families(ranks)):
            z = torch.from_numpy(rows_of(family, BATCH, N_VOCAB, step))
            tokens = sharded.sample(z[:, first:end].contiguous()).tolist()
            lines.append(f"{name} {family} {tokens} {sharded.exchanged}")
    # Parts that overlap, leave a gap, or end too early: every rank says so, and nothing hangs.
    for wrong, width in (
        (first - (rank == 1), end - first),
        (first, end - first - (rank == ranks - 1)),
    ):
        broken = ShardedChain([S.Greedy()], BATCH, N_VOCAB, first=wrong, max_tokens=4)
        with pytest.raises(LogitsError, match=r"consecutive parts|the ranks have"):
            broken.sample(torch.zeros(BATCH, width))
    with pytest.raises(LogitsError, match=f"and had {end - first} before"):
        sharded.sample(torch.zeros(BATCH, end - first + 1 - 2 * (end - first > 1)))
    live = torch.arange(BATCH) % 2 == 0
    tokens = sharded.sample(torch.ones(BATCH, end - first), live=live).tolist()
    lines.append(f"live {[token >= 0 for token in tokens]}")
    Path(out, str(rank)).write_text("\n".join(lines))
    dist.destroy_process_group()


def chain_of(samplers: list[Any], row: int) -> SamplerChain:
    chain = SamplerChain(samplers, seed=50 + row)
    for token in (5, 150, 5, row):
        chain.accept(token)
    return chain


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_rank_draws_what_one_would(ranks: int, tmp_path: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    spawn: Any = torch.multiprocessing.spawn  # type: ignore[attr-defined]
    spawn(run_rank, (ranks, str(tmp_path / "store"), str(tmp_path)), nprocs=ranks)
    results = [(tmp_path / str(rank)).read_text().splitlines() for rank in range(ranks)]
    assert all(result == results[0] for result in results[1:])
    lines = iter(results[0])
    for name, samplers in CHAINS.items():
        chains = [chain_of(samplers, row) for row in range(BATCH)]
        for step, family in enumerate(families(ranks)):
            tokens = expected(chains, rows_of(family, BATCH, N_VOCAB, step))
            line = next(lines)
            assert line.startswith(f"{name} {family} {tokens} "), line
            exchanged = int(line.rsplit(" ", 1)[1])
            assert exchanged < (1200 if name in ("top_k", "mirostat_v2") else 10_000)
    assert next(lines) == "live [True, False, True, False]"


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_refuses(alone: Any) -> None:
    chain = ShardedChain(CHAINS["top_k"], 2, N_VOCAB, first=0, max_top_k=32)
    with pytest.raises(LogitsError, match="204 tokens from 0 on"):
        chain.sample(torch.zeros(1, N_VOCAB + 1))
    chain.set_row(
        1, SamplerChain([S.TopK(top_k=33), S.XTC(xtc_probability=1.0, xtc_threshold=0.1), S.Dist()])
    )
    with pytest.raises(ParameterError, match="needs the order of all candidates"):
        chain.sample(torch.zeros(2, N_VOCAB))
    assert inside(chain).histories.length.tolist() == [0, 0]
    calls: list[tuple[str, Any]] = [
        ("first", lambda: ShardedChain([S.Greedy()], 1, 9, first=10)),
        ("max_top_k", lambda: ShardedChain([S.Greedy()], 1, 9, first=0, max_top_k=0)),
        (
            "chain",
            lambda: chain.set_row(0, SamplerChain([S.TopK(top_k=3), S.TopA(top_a=0.1), S.Dist()])),
        ),
        (
            "template",
            lambda: ShardedChain([S.TailFree(tfs_z=0.5), S.Dist()], 1, 9, first=0, max_top_k=3),
        ),
    ]
    for name, call in calls:
        with pytest.raises(ParameterError) as caught:
            call()
        assert caught.value.parameter == name


def test_parts_that_are_no_vocabulary_are_refused(alone: Any) -> None:
    for first, width, says in ((1, 9, "rank 0 has tokens from 1 on"), (0, 9, "have 9 tokens")):
        with pytest.raises(LogitsError, match=says):
            ShardedChain([S.Greedy()], 1, 10, first=first, max_top_k=4).sample(
                torch.zeros(1, width)
            )
    chain = ShardedChain([S.Greedy()], 1, 10, first=0, max_top_k=4)
    chain.sample(torch.zeros(1, 10))
    with pytest.raises(LogitsError, match="logits have 9 tokens, and had 10 before"):
        chain.sample(torch.zeros(1, 9))


def test_any_split_is_the_same(alone: Any) -> None:
    random_ = random.Random(1)
    for name in ("local", "top_k", "large_k", "twice"):
        chains = [chain_of(CHAINS[name], row) for row in range(2)]
        sharded = ShardedChain(CHAINS[name], 2, N_VOCAB, first=0, max_top_k=32)
        for row, chain in enumerate(chains):
            sharded.set_row(row, chain)
        for step in range(5):
            z = rows_of(random_.choice(FAMILIES), 2, N_VOCAB, step)
            assert sharded.sample(torch.from_numpy(z)).tolist() == expected(chains, z)
