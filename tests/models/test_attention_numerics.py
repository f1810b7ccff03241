"""Attention in native code against the contract's reference, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from decoder_numerics import floats as reference
from decoder_numerics.blocks import Floats

from aleator import _native
from aleator.core.threads import pool as thread_pool

AT = 200  # the tokens' position, where it counts
BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "IQ4_NL": 18}
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL"]


@dataclass(frozen=True)
class Case:
    """A cache's layer, and tokens over it."""

    keys: str = "F32"
    values: str = "F32"
    heads: int = 4
    kv_heads: int = 2
    dim: int = 64
    dim_v: int = 64
    cells: int = 60
    by_channel: bool = False
    rotation: int = 0
    raw: bool = False
    deltas: bool = False
    pairs: int = 8
    softcap: float = 0.0
    alibi: bool = False
    learned_sinks: bool = False
    seed: int = 0


def stored(kind: str, rows: Floats) -> tuple[npt.NDArray[np.uint8], Floats]:
    """Rows [n, dim] as bytes of a type, and what these stand for."""
    n, dim = rows.shape
    if kind == "F32":
        return rows.view(np.uint8).reshape(-1).copy(), rows
    if kind == "F16":
        half = rows.astype(np.float16)
        return half.view(np.uint8).reshape(-1).copy(), half.astype(np.float32)
    if kind == "BF16":
        words = (rows.view(np.uint32) >> 16).astype(np.uint16)
        wide = (words.astype(np.uint32) << 16).view(np.float32)
        return words.view(np.uint8).reshape(-1).copy(), wide
    size = BLOCK_BYTES[kind] * dim // 32
    data, wide = np.zeros((n, size), np.uint8), np.empty((n, dim), np.float32)
    _native.store_rows(thread_pool(1), kind, 0, rows, data, np.arange(n))
    _native.load_rows(thread_pool(1), kind, 0, data, np.arange(n), wide)
    return data.reshape(-1), wide


class Layer:
    """Random keys and values, in native memory and as the numbers that they stand for."""

    def __init__(self, case: Case) -> None:
        self.case = case
        rng = np.random.default_rng(case.seed)
        shape = case.cells, case.kv_heads
        k = rng.standard_normal((*shape, case.dim)).astype(np.float32)
        v = rng.standard_normal((*shape, case.dim_v)).astype(np.float32)
        key_bytes, keys = stored(case.keys, k.reshape(-1, case.dim))
        value_bytes, values = stored(case.values, v.reshape(-1, case.dim_v))
        self.keys, self.values = keys.reshape(k.shape), values.reshape(v.shape)
        if case.by_channel:
            size = len(value_bytes) // v.size
            cells = value_bytes.reshape(*v.shape, size).transpose(1, 2, 0, 3)
            value_bytes = np.ascontiguousarray(cells).reshape(-1)
        self.native_keys = _native.CacheMemory(
            key_bytes, case.keys, *shape, case.dim, rotation=case.rotation
        )
        self.native_values = _native.CacheMemory(
            value_bytes, case.values, *shape, case.dim_v, case.by_channel, case.rotation
        )
        self.order = rng.permutation(case.cells).astype(np.int32)
        run = case.cells // 3  # some cells follow each other
        self.order[run : 2 * run] = np.sort(self.order[run : 2 * run])
        self.rates = 100.0 ** (-np.arange(case.pairs) / case.pairs)
        self.learned_sinks = (3 * rng.standard_normal(case.heads)).astype(np.float32)
        self.slopes = (2.0 ** -np.arange(1, case.heads + 1)).astype(np.float32)
        self.deltas: npt.NDArray[np.int32] | None = None
        if case.raw:
            self.deltas = np.arange(case.cells, dtype=np.int32) * 3
        elif case.deltas:
            self.deltas = np.repeat([7, 0, 7, 30], [11, 10, 20, case.cells - 41]).astype(np.int32)

    def run(
        self,
        q: Floats,
        lists: list[tuple[int, int]],
        which: list[int],
        first: list[int],
        count: list[int],
        sinks: list[int] | None = None,
        threads: int = 1,
    ) -> Floats:
        """Native attention; list i is the part [a, b) of ``order``."""
        case = self.case
        parts = [self.order[a:b] for a, b in lists]
        out = np.full((len(q), case.heads, case.dim_v), np.nan, np.float32)
        deltas = self.deltas
        _native.attend(
            thread_pool(threads),
            self.native_keys,
            self.native_values,
            0.125,
            q,
            np.concatenate(parts),
            np.cumsum([0] + [len(p) for p in parts]).astype(np.int64),
            np.array(which, np.int32),
            np.array(count, np.int64),
            None if deltas is None else np.concatenate([deltas[a:b] for a, b in lists]),
            np.array(first, np.int64),
            None if sinks is None else np.array(sinks, np.int64),
            self.rates,
            False,
            case.raw,
            out,
            case.softcap,
            *self.distances(lists, which, first, count),
            sinks=self.learned_sinks if case.learned_sinks else None,
        )
        return out

    def distances(
        self, lists: list[tuple[int, int]], which: list[int], first: list[int], count: list[int]
    ) -> tuple[Floats | None, npt.NDArray[np.int32] | None, npt.NDArray[np.int32] | None]:
        """Slopes, positions of the listed cells (three times their places), and of the tokens."""
        if not self.case.alibi:
            return None, None, None
        listed = np.concatenate([np.arange(a, b) for a, b in lists]).astype(np.int32) * 3
        return self.slopes, listed, np.full(len(which), AT, np.int32)

    def angles(self, delta: int, sign: int) -> Floats:
        out = np.empty((1, self.case.pairs, 2), np.float32)
        _native.rotary_angles(self.rates * sign, np.array([delta], np.int32), 1.0, out)
        first: Floats = out[0]
        return first

    def expected(self, q: Floats, columns: npt.NDArray[np.int64]) -> Floats:
        """What one token's queries [heads, dim] give over these places of ``order``."""
        case, block = self.case, self.case.rotation
        out = np.zeros((case.heads, case.dim_v), np.float32)
        cells = self.order[columns]
        for head in range(case.heads if len(columns) else 0):
            group = head // (case.heads // case.kv_heads)
            keys, values = self.keys[cells, group], self.values[cells, group]
            deltas = np.zeros(len(columns), int) if self.deltas is None else self.deltas[columns]
            if case.raw:
                keys = reference.hadamard(keys, block) if block else keys
                angles = np.stack([self.angles(int(d), 1) for d in deltas])
                keys = reference.rotate(keys, angles, interleaved=False)
                forms = np.broadcast_to(q[head], keys.shape)
            else:
                known = {int(d): self.angles(int(d), -1) for d in set(deltas.tolist())}
                turned = {
                    d: reference.rotate(q[head], a, interleaved=False) if d else q[head]
                    for d, a in known.items()
                }
                forms = np.stack([turned[int(d)] for d in deltas])
                forms = reference.hadamard(forms, block) if block else forms
            slope = self.slopes[head] if case.alibi else None
            far = (columns * 3 - AT).astype(np.float32)
            sink = float(self.learned_sinks[head]) if case.learned_sinks else -np.inf
            out[head] = reference.attention(
                forms, keys, values, 0.125, case.softcap, slope, far, sink
            )
        if block:
            out = reference.hadamard(out, block)
        return out


def queries(case: Case, tokens: int, seed: int = 9) -> Floats:
    rng = np.random.default_rng([seed, tokens])
    q: Floats = rng.standard_normal((tokens, case.heads, case.dim)).astype(np.float32) * 3
    return q


def same(got: Floats, expected: Floats) -> bool:
    return got.tobytes() == expected.tobytes()


CASES = {f"{kind} keys and values": Case(kind, kind, seed=i) for i, kind in enumerate(TYPES)} | {
    "learned sinks": Case(learned_sinks=True),
    "learned sinks, one query a head": Case(heads=3, kv_heads=3, dim_v=32, learned_sinks=True),
    "one query a head": Case(heads=3, kv_heads=3, dim_v=32),
    "three": Case("F16", "F16", heads=6, kv_heads=2, dim_v=96),
    "five": Case("Q8_0", "Q5_1", heads=5, kv_heads=1),
    "four": Case("F16", "Q8_0", heads=8, kv_heads=2, dim=96, dim_v=96),
    "seven": Case("Q8_0", "F16", heads=7, kv_heads=1, dim=32, dim_v=128),
    "odd heads": Case("F16", "F32", heads=3, kv_heads=3, dim=22, dim_v=13),
    "by channel": Case("F16", "F16", by_channel=True),
    "by channel, odd": Case("F32", "BF16", by_channel=True, dim_v=37, heads=2),
    "rotated": Case("Q8_0", "Q4_0", rotation=32),
    "behind": Case("F16", "F16", deltas=True),
    "behind and rotated": Case("Q8_0", "Q8_0", deltas=True, rotation=64),
    "raw": Case("F16", "F16", raw=True),
    "capped": Case("F16", "F16", softcap=2.0),
    "capped and behind": Case("F16", "F16", softcap=5.0, deltas=True),
    "by distance": Case("F16", "F16", alibi=True, heads=6, kv_heads=3),
    "capped, by distance and raw": Case(alibi=True, softcap=3.0, raw=True),
    "raw and rotated": Case("Q4_0", "F16", raw=True, rotation=32),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_is_the_reference(name: str) -> None:
    """A prefill, single tokens, windows, several lists, and a token that sees nothing."""
    case = CASES[name]
    layer, n = Layer(case), case.cells
    tokens = 7
    q = queries(case, tokens)
    count = [n - tokens + 1 + t for t in range(tokens)]
    count[4] = 0
    for first in ([0] * tokens, [max(0, c - 30) for c in count]):
        places = [np.arange(a, b) for a, b in zip(first, count, strict=True)]
        expected = np.stack([layer.expected(q[t], places[t]) for t in range(tokens)])
        for threads in (1, 2):
            got = layer.run(q, [(0, n)], [0] * tokens, first, count, threads=threads)
            assert same(got, expected), (first[-1], threads)
        for t in (0, 4, 6):  # alone
            assert same(
                layer.run(q[t : t + 1], [(0, n)], [0], [first[t]], [count[t]]), expected[t : t + 1]
            )
    lists = [(0, 25), (25, 26), (20, n)]
    which = [0, 1, 0, 2, 2, 2, 2]
    count = [lists[i][1] - lists[i][0] - k % 2 for k, i in enumerate(which)]
    got = layer.run(q, lists, which, [0] * tokens, count, threads=2)
    for t, (i, c) in enumerate(zip(which, count, strict=True)):
        assert same(got[t], layer.expected(q[t], np.arange(lists[i][0], lists[i][0] + c))), t


@pytest.mark.parametrize("name", ["behind", "by distance"])
def test_sinks_are_the_reference(name: str) -> None:
    case = replace(CASES[name], heads=2, kv_heads=2)
    layer = Layer(case)
    q = queries(case, 4)
    count, first, sinks = [60, 59, 58, 20], [40, 3, 2, 0], [3, 3, 3, 3]
    got = layer.run(q, [(0, 60)], [0] * 4, first, count, sinks)
    for t in range(4):
        places = np.union1d(np.arange(min(3, count[t])), np.arange(first[t], count[t]))
        assert same(got[t], layer.expected(q[t], places)), t


@pytest.mark.parametrize(
    "name",
    [
        "F16 keys and values", "rotated", "by channel", "behind", "odd heads", "capped and behind",
        "by distance",
    ],
)  # fmt: skip
def test_long_caches_shared_out_among_threads_are_the_reference(name: str) -> None:
    case = replace(CASES[name], cells=613, heads=CASES[name].kv_heads)
    layer = Layer(case)
    q = queries(case, 2)
    count, first = [612, 613], [5, 0]
    expected = np.stack([layer.expected(q[t], np.arange(first[t], count[t])) for t in range(2)])
    for threads in (1, 2, 4):
        got = layer.run(q, [(0, 613)], [0, 0], first, count, threads=threads)
        assert same(got, expected), threads
        assert same(layer.run(q[1:], [(0, 613)], [0], [0], [613], threads=threads), expected[1:])


@pytest.mark.parametrize(
    "name", ["F16 keys and values", "five", "four", "rotated", "by channel, odd", "behind", "raw"]
)
@pytest.mark.parametrize("tokens", [7, 40])
def test_a_long_piece_among_short_ones_is_shared_out(name: str, tokens: int) -> None:
    """One sequence's tokens have most of the work: threads share its cells, or the tokens if there are many."""
    case = replace(CASES[name], cells=613)
    layer = Layer(case)
    lists = [(0, 20), (0, 613), (30, 61)]
    which = [0, *[1] * tokens, 2]
    count = [20, *(614 - tokens + t for t in range(tokens)), 31]
    first = [0, *([0, 9, 0, 560, 0, 570, 0] * 6)[:tokens], 4]
    q = queries(case, len(which))
    expected = [
        layer.expected(q[t], np.arange(lists[i][0] + first[t], lists[i][0] + count[t]))
        for t, i in enumerate(which)
    ]
    for threads in (1, 2, 4):
        got = layer.run(q, lists, which, first, count, threads=threads)
        assert same(got, np.stack(expected)), threads


@pytest.mark.parametrize(
    "name",
    [
        "F16 keys and values", "Q8_0 keys and values", "five", "rotated", "behind", "raw", "odd heads",
    ],
)  # fmt: skip
@pytest.mark.parametrize("threads", [1, 3])
def test_many_tokens_of_one_list_are_as_each_alone(name: str, threads: int) -> None:
    """Tiles of a list share its transposed keys, also where a window makes them begin elsewhere."""
    layer = Layer(replace(CASES[name], cells=613))
    lists = [(0, 613), (100, 301)]
    which = [*[0] * 90, *[1] * 40]
    count = [*range(524, 614), *range(162, 202)]
    q = queries(layer.case, len(which))
    for first in ([0] * len(which), [max(0, c - 150) for c in count]):
        got = layer.run(q, lists, which, first, count, threads=threads)
        for t in range(0, len(which), 9):
            alone = layer.run(q[t : t + 1], [lists[which[t]]], [0], [first[t]], [count[t]])
            assert same(got[t : t + 1], alone), t


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_more_keys_than_a_thread_keeps(kind: str) -> None:
    """With heads of 512 a thread keeps 2,048 transposed keys for the next tile."""
    layer = Layer(Case(kind, kind, heads=4, kv_heads=2, dim=512, dim_v=32, cells=2200))
    count = list(range(2101, 2201))
    q = queries(layer.case, len(count))
    got = layer.run(q, [(0, 2200)], [0] * len(count), [0] * len(count), count)
    for t in range(0, len(count), 11):
        alone = layer.run(q[t : t + 1], [(0, 2200)], [0], [0], [count[t]])
        assert same(got[t : t + 1], alone), t


def test_a_query_does_not_meet_what_it_does_not_see() -> None:
    """NaN in a cell reaches the tokens that see it, and no others of their block."""
    case = Case(heads=4, kv_heads=1)
    layer = Layer(case)
    q = queries(case, 8)
    count = [50 + t for t in range(8)]
    clean = layer.run(q, [(0, 60)], [0] * 8, [0] * 8, count)
    values = layer.values.copy()
    values[layer.order[54]] = np.nan
    data = values.view(np.uint8).reshape(-1)
    layer.native_values = _native.CacheMemory(data, "F32", 60, 1, 64)
    got = layer.run(q, [(0, 60)], [0] * 8, [0] * 8, count)
    assert same(got[:5], clean[:5])
    assert np.isnan(got[5:]).all()


def test_against_float64() -> None:
    layer = Layer(Case(cells=200))
    q = queries(layer.case, 1)
    got = layer.run(q, [(0, 200)], [0], [0], [200])[0]
    k, v = (x[layer.order].astype(np.float64) for x in (layer.keys, layer.values))
    for head in range(4):
        scores = k[:, head // 2] @ q[0, head] * 0.125
        weights = np.exp(scores - scores.max())
        exact = weights @ v[:, head // 2] / weights.sum()
        np.testing.assert_allclose(got[head], exact, rtol=1e-5, atol=1e-6)


def test_a_raw_key_at_a_position_below_zero_is_refused() -> None:
    layer = Layer(Case(raw=True))
    assert layer.deltas is not None
    layer.deltas[7] = -5
    with pytest.raises(ValueError, match="a key's position is negative"):
        layer.run(queries(layer.case, 1), [(0, 60)], [0], [0], [60])
    layer.deltas[7] = 2**31 - 1
    assert np.isfinite(layer.run(queries(layer.case, 1), [(0, 60)], [0], [0], [60])).all()
