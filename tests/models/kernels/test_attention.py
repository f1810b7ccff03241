"""Attention, and what it stores and reads, in Triton under its interpreter: native bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from decoder_numerics import floats as reference
from decoder_numerics.blocks import Floats

from aleator import _native
from aleator.cache.storage.layer import TYPES, HostLayer, LayerFormat
from aleator.core.threads import pool as thread_pool
from aleator.models.kernels import attention, cells
from aleator.models.kernels.attention import attend
from aleator.models.kernels.rotation import RotationAngles
from aleator.models.kernels.seen import SeenTensors, VisibleCells, listed

AT = 200  # the tokens' position, where it counts
Lists = list[tuple[int, int]]
see: Any = listed


def seen_tensors(sight: VisibleCells, longest: int | None = None) -> SeenTensors:
    """What tokens see, as kernels take it."""
    rows, positions = (
        None if x is None else torch.from_numpy(x) for x in (sight.rows, sight.positions)
    )
    lists = torch.from_numpy(sight.tokens), torch.from_numpy(sight.cells)
    return SeenTensors(sight, *lists, rows, positions, longest)


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
    rotates_values: bool = True
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

        def made(kind: str, dim: int, by_channel: bool, rotates: bool = True) -> HostLayer:
            rotation = case.rotation if rotates else 0
            stored = TYPES[kind], case.kv_heads, dim, case.n, by_channel, rotation
            layer = HostLayer(LayerFormat(*stored))
            rows = rng.standard_normal((*shape, dim)).astype(np.float32)
            layer.write(np.arange(case.n), rows)
            return layer

        self.keys = made(case.keys, case.dim, False)
        self.values = made(case.values, case.dim_v, case.by_channel, case.rotates_values)
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
    ) -> Any:
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

    def native(self, q: Floats, *seen: Any) -> Floats:
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
        arrays = self.arrays(*seen)
        tail: tuple[Any, ...] = self.slopes, self.positions(lists), np.full(len(q), AT, np.int32)
        run: Any = _native.attend
        run(
            thread_pool(1), keys, values, 0.125, q, *arrays, self.rates, False, case.raw, out,
            case.softcap, *(tail if case.alibi else (None, None, None)),
            sinks=self.learned_sinks if case.learned_sinks else None,
        )  # fmt: skip
        return out.reshape(len(q), -1)

    def angles(self, positions: npt.NDArray[np.int32]) -> RotationAngles:
        angles = np.empty((len(positions), self.case.pairs, 2), np.float32)
        _native.rotary_angles(self.rates, positions, 1.0, angles)
        return RotationAngles(torch.from_numpy(angles), 0, False)

    def kernels(self, q: Floats, *seen: Any, room: int | None = None) -> Floats:
        case = self.case
        at = self.positions(seen[0]) if case.alibi else None
        own = np.full(len(q), AT, np.int32)
        sight = see(*self.arrays(*seen), positions=own, cell_positions=at, raw=case.raw)
        tensors = seen_tensors(sight)
        by = self.angles(np.arange(3 * case.n, dtype=np.int32))
        if tensors.deltas is not None:
            by = self.angles(-tensors.deltas)
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
    return bool(got.tobytes() == expected.tobytes())


CASES = {f"{kind} keys and values": Case(kind, kind, seed=i) for i, kind in enumerate(TYPES)} | {
    "learned sinks": Case(learned_sinks=True),
    "one query a head": Case(heads=3, kv_heads=3, dim_v=32, learned_sinks=True),
    "three": Case("f16", "f16", heads=6, kv_heads=2, dim=80, dim_v=80),
    "five": Case("q8_0", "q5_1", heads=5, kv_heads=1, dim=192, dim_v=128),
    "seven": Case("q8_0", "bf16", heads=7, kv_heads=1, dim=32, dim_v=256),
    "wide": Case("bf16", "f16", heads=2, kv_heads=1, dim=256, dim_v=192),
    "odd heads": Case("f16", "f32", heads=3, kv_heads=3, dim=22, dim_v=13),
    "by channel": Case("f16", "f16", by_channel=True),
    "by channel, odd": Case("f32", "bf16", by_channel=True, dim_v=37, heads=2),
    "rotated": Case("q8_0", "q4_0", rotation=32),
    "only keys rotated": Case("q8_0", "f16", rotation=32, rotates_values=False),
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
    if name in ("f16 keys and values", "five", "raw", "behind and rotated"):
        alone: tuple[Any, ...] = seen[0], which[3:4], [0], counts[3:4], []
        assert same(layer.kernels(q[3:4], *alone), expected[3:4])
        few = case.kv_heads * 8 * max(counts) * 2  # room for few tokens at a time
        assert same(layer.kernels(q, *seen, room=few), expected)


def test_many_cells_and_odd_numbers_of_tokens() -> None:
    case = Case("f16", "f16", n=333, heads=2, kv_heads=1, deltas=True)
    layer = Layer(case)
    for tokens in (1, 3, 17):
        q = queries(case, tokens)
        count = [333 - 5 * t for t in range(tokens)]
        seen: tuple[Any, ...] = [(0, 333)], [0] * tokens, [7 * t for t in range(tokens)], count, []
        assert same(layer.kernels(q, *seen), layer.native(q, *seen))


def test_the_highest_score_may_be_anywhere() -> None:
    case = Case("f32", "f16", n=300, heads=2, kv_heads=1, dim=16, dim_v=16)
    q = queries(case, 1)
    for place in (127, 128, 129, 256, 257, 299):
        layer = Layer(case)
        layer.keys.write(layer.order[place : place + 1].astype(np.int64), q.sum(1)[:, None])
        seen: tuple[Any, ...] = [(0, 300)], [0], [0], [300], []
        assert same(layer.kernels(q, *seen), layer.native(q, *seen))


# A program takes one pair of a token and a key-value head, 8 queries of it, 32 or 64 cells, and 32 channels.
SMALL = {
    "rotated": Case("q8_0", "q4_0", 24, 2, 32, 64, 75, rotation=32, softcap=2.0),
    "odd": Case("f16", "f16", 9, 1, 22, 45, 75, deltas=True, alibi=True, learned_sinks=True),
    "behind and rotated": Case("q5_1", "q5_0", 12, 1, 64, 64, 75, deltas=True, rotation=64),
    "by channel": Case("bf16", "f32", 6, 2, 20, 37, 75, by_channel=True, learned_sinks=True),
    "by distance": Case("q4_1", "iq4_nl", 4, 4, 32, 64, 75, alibi=True, softcap=3.0),
    "raw": Case("f32", "bf16", 10, 1, 16, 33, 75, raw=True, learned_sinks=True),
}


@pytest.mark.usefixtures("small_programs")
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("launches", [1, 2])
def test_programs_as_small_as_on_a_device(name: str, launches: int) -> None:
    """Two lists, sinks, windows, a token that sees nothing: in one launch, and by two tokens in two."""
    case = SMALL[name]
    layer, q = Layer(case), queries(case, 4)
    seen: tuple[Any, ...] = (
        [(0, 75), (40, 70)],
        [0, 1, 0, 1],
        [0, 3, 40, 0],
        [75, 27, 70, 0],
        [0, 2, 5, 0],
    )
    padded = 1 << (case.heads // case.kv_heads - 1).bit_length()
    room = 2 * case.kv_heads * padded * 75 if launches == 2 else None
    assert same(layer.kernels(q, *seen, room=room), layer.native(q, *seen))


@pytest.mark.usefixtures("small_programs")
def test_the_highest_of_more_blocks_than_are_read_at_once() -> None:
    """Programs of the scores take 32 cells each, and 128 of their highest are compared at a time."""
    case = Case("f16", "f16", heads=8, kv_heads=1, dim=16, dim_v=16, n=4130)
    layer, q, place = Layer(case), queries(case, 1), 4120
    layer.keys.write(layer.order[place : place + 1].astype(np.int64), 9 * q.sum(1)[:, None])
    seen: tuple[Any, ...] = [(0, 4130)], [0], [0], [4130], []
    assert same(layer.kernels(q, *seen), layer.native(q, *seen))


def test_few_tokens_whose_scores_have_no_room_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, q = Layer(Case()), queries(Case(), 3)
    seen: tuple[Any, ...] = [(0, 60)], [0] * 3, [0] * 3, [58, 59, 60], []
    monkeypatch.setattr(attention, "ROOM", 1)
    assert same(layer.kernels(q, *seen), layer.native(q, *seen))


def test_attention_is_the_reference() -> None:
    case = Case("f16", "q4_0", n=45, softcap=3.0, learned_sinks=True)
    layer, q = Layer(case), queries(case, 1)
    got = layer.kernels(q, [(0, 45)], [0], [3], [44], []).reshape(case.heads, -1)
    cells_seen = layer.order[3:44].astype(np.int64)
    keys, values = layer.keys.read(cells_seen), layer.values.read(cells_seen)
    for h in range(case.heads):
        expected = reference.attention(
            q[0, h], keys[:, h // 2], values[:, h // 2], 0.125, 3.0, sink=layer.learned_sinks[h]
        )
        assert same(got[h], expected)


def test_a_query_does_not_meet_what_it_does_not_see() -> None:
    """NaN, infinity and -0 in cells reach the tokens that see them, and no others."""
    case = Case(heads=4, kv_heads=1, dim=16, dim_v=16)
    layer = Layer(case)
    q = queries(case, 8)
    layer.values.data[layer.order[:50]] = -0.0
    layer.values.data[layer.order[50:53]] = -1e-45  # their product with a small weight is -0
    layer.values.data[layer.order[54]] = np.nan
    layer.keys.data[layer.order[57]] = np.inf
    seen: tuple[Any, ...] = [(0, 60)], [0] * 8, [0] * 8, [46 + 2 * t for t in range(8)], []
    expected, got = layer.native(q, *seen), layer.kernels(q, *seen)
    nan = np.isnan(expected)
    assert nan[5:].all()
    assert not nan[:5].any()
    assert (nan == np.isnan(got)).all()
    assert same(got[~nan], expected[~nan])


def test_values_within_keys() -> None:
    """Compressed keys, whose first channels are the values."""
    rng = np.random.default_rng(3)
    for kind, rotation in (("f16", 0), ("q8_0", 32)):
        layer = HostLayer(LayerFormat(TYPES[kind], 1, 96, 40, False, rotation))
        rows = rng.standard_normal((40, 1, 96)).astype(np.float32)
        layer.write(np.arange(40), rows)
        q = rng.standard_normal((3, 5, 96)).astype(np.float32)
        sight = listed(
            np.arange(40, dtype=np.int32),
            np.array([0, 40]),
            np.zeros(3, np.int32),
            np.array([40, 39, 20]),
            None,
        )
        tensors = seen_tensors(sight, longest=50)
        keys, values = cells.side(layer), cells.side(layer, 64)
        got = attend(torch.from_numpy(q), keys, values, tensors, 0.1).numpy().reshape(3, 5, 64)
        stored = np.empty((40, 96), np.float32)
        assert layer.rows is not None
        _native.load_rows(thread_pool(1), kind.upper(), 0, layer.rows, np.arange(40), stored)
        for t, n in enumerate((40, 39, 20)):
            for h in range(5):
                form = reference.hadamard(q[t, h], rotation) if rotation else q[t, h]
                expected = reference.attention(form, stored[:n], stored[:n, :64], 0.1)
                if rotation:
                    expected = reference.hadamard(expected, rotation)
                assert same(got[t, h], expected)
    with pytest.raises(ValueError, match="no whole blocks of 32"):
        cells.side(layer, 48)


def test_no_tokens() -> None:
    layer = Layer(Case(dim_v=32))
    assert layer.kernels(queries(layer.case, 0), [(0, 60)], [], [], [], []).shape == (0, 128)


def test_sizes_that_do_not_fit_are_refused() -> None:
    layer = Layer(Case())
    seen: tuple[Any, ...] = [(0, 60)], [0], [0], [60], []
    with pytest.raises(ValueError, match="room for scores must hold 240 floats"):
        layer.kernels(queries(layer.case, 1), *seen, room=239)
    with pytest.raises(ValueError, match="a token sees 60 cells, more than 59"):
        seen_tensors(see(*layer.arrays(*seen)), longest=59)


def test_angles_that_are_missing_are_refused() -> None:
    case = Case(raw=True)
    layer, q = Layer(case), torch.from_numpy(queries(case, 1))
    assert layer.deltas is not None
    seen: tuple[Any, ...] = [(0, 60)], [0], [0], [60], []
    tensors = seen_tensors(see(*layer.arrays(*seen), raw=True))
    keys, values = cells.side(layer.keys), cells.side(layer.values)
    angles = layer.angles(np.arange(177, dtype=np.int32))  # the last cell is at position 177
    with pytest.raises(ValueError, match="177 rows of angles, and 178 are needed"):
        attend(q, keys, values, tensors, 0.125, angles=angles)
    layer.deltas[7] = -5
    with pytest.raises(ValueError, match="a key's position is negative"):
        see(*layer.arrays(*seen), raw=True)


def test_cells_beyond_the_lists_change_nothing() -> None:
    case = Case(alibi=True, deltas=True)
    layer, q = Layer(case), queries(case, 2)
    seen: tuple[Any, ...] = [(0, 50)], [0, 0], [0, 0], [50, 49], []
    own, at = np.full(2, AT, np.int32), layer.positions(seen[0])
    sight = see(*layer.arrays(*seen), positions=own, cell_positions=at)
    lists = (np.append(each, np.zeros(30, np.int32)) for each in sight[1:3])
    padded = sight._replace(**dict(zip(("cells", "rows"), lists, strict=True)))
    tensors = seen_tensors(padded, longest=80)
    assert tensors.deltas is not None
    got = attend(
        torch.from_numpy(q), cells.side(layer.keys), cells.side(layer.values), tensors, 0.125,
        slopes=torch.from_numpy(layer.slopes), angles=layer.angles(-tensors.deltas),
    )  # fmt: skip
    assert same(got.numpy(), layer.native(q, *seen))
