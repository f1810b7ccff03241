"""Attention, and what it stores and reads, in Triton under its interpreter: native bits."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from decoder_numerics import floats as reference
from decoder_numerics.blocks import Floats

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs in a process of its own", allow_module_level=True)

import torch

from aleator import _native
from aleator.cache.storage.host import HostLayer
from aleator.cache.storage.layer import LayerFormat
from aleator.cache.storage.types import TYPES
from aleator.core.threads import pool as thread_pool
from aleator.models.kernels import cells
from aleator.models.kernels.attention import attend
from aleator.models.kernels.rotation import Turn
from aleator.models.kernels.seen import SeenTensors, listed

AT = 200  # the tokens' position, where it counts
Lists = list[tuple[int, int]]


@dataclass(frozen=True)
class Case:
    """A cache's layer, and what attention does with it."""

    keys: str = "f32"
    values: str = "f32"
    heads: int = 4
    kv_heads: int = 2
    dim: int = 64
    dim_v: int = 64
    n: int = 60
    by_channel: bool = False
    rotation: int = 0
    raw: bool = False
    deltas: bool = False
    pairs: int = 8
    softcap: float = 0.0
    alibi: bool = False
    learned_sinks: bool = False
    seed: int = 0


class Layer:
    """Random keys and values in a cache's storage."""

    def __init__(self, case: Case) -> None:
        self.case = case
        rng = np.random.default_rng(case.seed)
        shape = case.n, case.kv_heads

        def made(kind: str, dim: int, by_channel: bool) -> HostLayer:
            stored = TYPES[kind], case.kv_heads, dim, case.n, by_channel, case.rotation
            layer = HostLayer(LayerFormat(*stored))
            rows = rng.standard_normal((*shape, dim)).astype(np.float32)
            layer.write(np.arange(case.n), rows)
            return layer

        self.keys = made(case.keys, case.dim, False)
        self.values = made(case.values, case.dim_v, case.by_channel)
        self.order = rng.permutation(case.n).astype(np.int32)
        self.rates = 100.0 ** (-np.arange(case.pairs) / case.pairs)
        self.learned_sinks = (3 * rng.standard_normal(case.heads)).astype(np.float32)
        self.slopes = (2.0 ** -np.arange(1, case.heads + 1)).astype(np.float32)
        self.deltas: npt.NDArray[np.int32] | None = None
        if case.raw:
            self.deltas = np.arange(case.n, dtype=np.int32) * 3
        elif case.deltas:
            self.deltas = np.repeat([7, 0, 7, 30], [11, 10, 20, case.n - 41]).astype(np.int32)

    def arrays(
        self, lists: Lists, which: list[int], first: list[int], count: list[int], sinks: list[int]
    ) -> tuple[object, ...]:
        """What both forms take: lists, and of each token where it looks; list i is a part of ``order``."""
        deltas = self.deltas
        places = [np.arange(a, b) for a, b in lists]
        return (
            self.order[np.concatenate(places)],
            np.cumsum([0] + [len(p) for p in places]).astype(np.int64),
            np.array(which, np.int32),
            np.array(count, np.int64),
            None if deltas is None else deltas[np.concatenate(places)],
            np.array(first, np.int64),
            np.array(sinks, np.int64) if sinks else None,
        )

    def positions(self, lists: Lists) -> npt.NDArray[np.int32]:
        return np.concatenate([np.arange(a, b) for a, b in lists]).astype(np.int32) * 3

    def native(self, q: Floats, *seen: object) -> Floats:
        case = self.case
        out = np.full((len(q), case.heads, case.dim_v), np.nan, np.float32)
        keys, values = (
            _native.CacheMemory(
                each.bytes, each.type.native, case.n, case.kv_heads, each.dim, each.by_channel,
                each.rotation,
            )
            for each in (self.keys, self.values)
        )  # fmt: skip
        lists = seen[0]
        arrays = self.arrays(*seen)  # type: ignore[arg-type]
        tail = self.slopes, self.positions(lists), np.full(len(q), AT, np.int32)  # type: ignore[arg-type]
        _native.attend(
            thread_pool(1), keys, values, 0.125, q, *arrays, self.rates, False, case.raw, out,
            case.softcap, *(tail if case.alibi else (None, None, None)),
            sinks=self.learned_sinks if case.learned_sinks else None,
        )  # fmt: skip
        return out.reshape(len(q), -1)

    def turn(self, positions: npt.NDArray[np.int32]) -> Turn:
        angles = np.empty((len(positions), self.case.pairs, 2), np.float32)
        _native.rotary_angles(self.rates, positions, 1.0, angles)
        return Turn(torch.from_numpy(angles), 0, False)

    def kernels(self, q: Floats, *seen: object, room: int | None = None) -> Floats:
        case = self.case
        at = self.positions(seen[0]) if case.alibi else None  # type: ignore[arg-type]
        own = np.full(len(q), AT, np.int32)
        sight = listed(*self.arrays(*seen), own, at, case.raw)  # type: ignore[arg-type]
        tensors = SeenTensors(sight, "cpu")
        by = self.turn(np.arange(3 * case.n, dtype=np.int32))
        if tensors.deltas is not None:
            by = self.turn(-tensors.deltas)
        return attend(
            torch.from_numpy(q),
            cells.side(self.keys),
            cells.side(self.values),
            tensors,
            0.125,
            case.softcap,
            torch.from_numpy(self.slopes) if case.alibi else None,
            torch.from_numpy(self.learned_sinks) if case.learned_sinks else None,
            by,
            None if room is None else torch.empty(room),
        ).numpy()


def queries(case: Case, tokens: int) -> Floats:
    rng = np.random.default_rng([9, tokens])
    q: Floats = rng.standard_normal((tokens, case.heads, case.dim)).astype(np.float32) * 3
    return q


def same(got: Floats, expected: Floats) -> bool:
    return got.tobytes() == expected.tobytes()


CASES = {f"{kind} keys and values": Case(kind, kind, seed=i) for i, kind in enumerate(TYPES)} | {
    "learned sinks": Case(learned_sinks=True),
    "one query a head": Case(heads=3, kv_heads=3, dim_v=32, learned_sinks=True),
    "three": Case("f16", "f16", heads=6, kv_heads=2, dim=80, dim_v=80),
    "five": Case("q8_0", "q5_1", heads=5, kv_heads=1, dim=192, dim_v=128),
    "seven": Case("q8_0", "bf16", heads=7, kv_heads=1, dim=32, dim_v=256),
    "wide": Case("bf16", "f16", heads=8, kv_heads=1, dim=256, dim_v=192),
    "odd heads": Case("f16", "f32", heads=3, kv_heads=3, dim=22, dim_v=13),
    "by channel": Case("f16", "f16", by_channel=True),
    "by channel, odd": Case("f32", "bf16", by_channel=True, dim_v=37, heads=2),
    "rotated": Case("q8_0", "q4_0", rotation=32),
    "behind": Case("f16", "f16", deltas=True),
    "behind and rotated": Case("q8_0", "q8_0", deltas=True, rotation=64),
    "raw": Case("f16", "f16", raw=True),
    "capped": Case("f16", "f16", softcap=2.0),
    "capped and behind": Case("f16", "f16", softcap=5.0, deltas=True),
    "by distance": Case("f16", "f16", alibi=True, heads=6, kv_heads=3),
    "capped, by distance and raw": Case(alibi=True, softcap=3.0, raw=True),
    "raw and rotated": Case("q4_0", "q8_0", raw=True, rotation=32),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_is_native(name: str) -> None:
    """A prefill, single tokens, windows, sinks, several lists, and a token that sees nothing."""
    case = CASES[name]
    layer, n, tokens = Layer(case), case.n, 7
    q = queries(case, tokens)
    count = [n - tokens + 1 + t for t in range(tokens)]
    count[4] = 0
    low = [max(0, c - 30) for c in count]
    lists = [(0, 25), (25, 26), (20, n)]
    which = [0, 1, 0, 2, 2, 2, 2]
    counts = [lists[i][1] - lists[i][0] - k % 2 for k, i in enumerate(which)]
    for seen in (
        ([(0, n)], [0] * tokens, [0] * tokens, count, []),
        ([(0, n)], [0] * tokens, low, count, [3, 0, 5, 40, 0, 2, 1]),
        (lists, which, [0] * tokens, counts, []),
    ):
        expected = layer.native(q, *seen)
        assert same(layer.kernels(q, *seen), expected)
    alone = seen[0], which[3:4], [0], counts[3:4], []
    assert same(layer.kernels(q[3:4], *alone), expected[3:4])
    two = case.kv_heads * 8 * max(counts) * 2  # room for few tokens at a time
    assert same(layer.kernels(q, *seen, room=two), expected)
