"""What a window pool says of positions, against the definition: which positions a token sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.cache.kv_cache import LayerShape
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.pools.window import WindowPool, window_capacity
from aleator.core.errors import ParameterError

SHAPES = [LayerShape(1, 2, 2)]


def sees(pool: WindowPool, position: int, other: int, sinks: bool = True) -> bool:
    """Whether a token at a position sees another one, which is not later."""
    if sinks and other < pool.sinks:
        return True
    if pool.chunked:
        return other // pool.window == position // pool.window
    return position - other < pool.window


def place(pool: AttentionPool, positions: list[int], seq: int = 0) -> None:
    owners = np.zeros((len(positions), pool.cells.words), np.uint64)
    owners[:, seq // 64] = np.uint64(1 << seq % 64)
    cells = pool.cells.find(len(positions))
    pool.cells.put(cells, np.array(positions, np.int32), owners)
    for side in (pool.rows.keys, pool.rows.values):
        rows = np.array(positions, np.float32).reshape(-1, 1, 1) + np.arange(2)
        side.parts[0].write(cells, rows)
    pool.rows.key_positions[cells] = positions


def runs(found: list[tuple[int, int]]) -> list[int]:
    return sorted(p for start, n in found for p in range(start, start + n))


@pytest.mark.parametrize("sinks", [0, 1, 3])
@pytest.mark.parametrize("window", [1, 2, 3, 5])
@pytest.mark.parametrize("chunked", [False, True])
def test_windows(window: int, sinks: int, chunked: bool) -> None:
    rng = np.random.default_rng(window + 10 * sinks)
    for seq in (0, 1, 64):
        for _ in range(10):
            options: Any = {"window": window, "sinks": sinks, "chunked": chunked, "n_seq_max": 65}
            pool = WindowPool(SHAPES, 40, **options)
            whole = AttentionPool(SHAPES, 40, n_seq_max=65)
            every = np.flatnonzero(rng.random(20) < 0.9).tolist() or [0]
            held = [p for p in every if rng.random() < 0.8 or p == every[-1]]
            place(whole, every, seq)
            place(pool, held, seq)
            place(pool, [3, 4], 2)  # of another sequence
            check(pool, whole, seq, every, held)


def check(
    pool: WindowPool, whole: AttentionPool, seq: int, every: list[int], held: list[int]
) -> None:
    lost, last = sorted(set(every) - set(held)), held[-1]

    def lacks(position: int) -> bool:
        return any(p < position and sees(pool, position, p) for p in lost)

    for p in range(24):
        assert pool.seen_from(p) == min(q for q in range(p + 1) if sees(pool, p, q, False))
        assert pool.leaves_at(p) == next(q for q in range(p + 1, 99) if not sees(pool, q, p, False))
        assert pool.complete(whole, seq, p) == (not lacks(p))
        assert pool.usable_beside(whole, seq, p) == max(n for n in range(p + 1) if not lacks(n))
        gone = [q for q in held if q < p and not sees(pool, p, q)]
        assert runs(pool._left(seq, {seq: p, 2: 0})) == gone
        if not pool.chunked:
            for size in (2 * pool.window, 4 * pool.window):
                left = [q for q in gone if not sees(pool, (q // size + 1) * size, q)]
                assert runs(pool._left(seq, {seq: p}, size)) == left
    assert runs(pool._left(seq, {})) == [q for q in held if not sees(pool, last + 1, q)]
    assert pool.missing(whole, seq) == (lost[-1] if lost else -1)
    seen = [p for p in held if sees(pool, last, p)]
    assert np.flatnonzero(pool.in_state(seq, np.arange(last + 1, dtype=np.int32))).tolist() == [
        p for p in range(last + 1) if sees(pool, last, p)
    ]
    mark = pool.checkpoint(seq)
    assert mark.positions.tolist() == mark.key_positions.tolist() == seen
    assert mark.nbytes == len(seen) * 2 * 2 * 2  # keys and values of two elements, in float16
    pool.restore(seq, mark)
    cells = pool.cells.seq_cell_list(seq)
    assert pool.cells.positions[cells].tolist() == seen
    for side in (pool.rows.keys, pool.rows.values):
        assert side.parts[0].read(cells)[:, 0].tolist() == [[p, p + 1] for p in seen]
    assert pool.rows.key_positions[cells].tolist() == seen


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"capacity": 50}, True),
        ({"window": 2}, True),
        ({"layers": [*SHAPES, *SHAPES]}, False),
        ({"layers": []}, False),
        ({"layers": [LayerShape(2, 2, 2)]}, False),
        ({"layers": [LayerShape(1, 3, 2)]}, False),
        ({"layers": [LayerShape(1, 2, 3)]}, False),
        ({"type_k": "f32"}, False),
        ({"type_v": "f32"}, False),
        ({"v_layout": "channel"}, False),
    ],
)
def test_a_checkpoint_fits_a_cache_of_its_shapes_and_types(
    change: dict[str, Any], fits: bool
) -> None:
    made: dict[str, Any] = {"layers": SHAPES, "capacity": 20, "window": 3}
    other = made | change
    pool, target = WindowPool(**made), WindowPool(**other)
    place(pool, [0, 1, 2, 3])
    mark = pool.checkpoint(0)
    if fits:
        target.check_checkpoint(mark)
        target.restore(0, mark)
        assert target.seq_pos_min(0) == 1
    else:
        with pytest.raises(ParameterError, match="of another shape or type"):
            target.check_checkpoint(mark)


@pytest.mark.parametrize(
    ("window", "sinks", "n_seq_max", "n_ubatch", "expected"),
    [
        (8, 0, 1, 248, 256),
        (8, 0, 1, 249, 512),
        (8, 1, 1, 247, 256),
        (8, 1, 1, 248, 512),
        (100, 28, 4, 256, 768),
        (100, 28, 4, 257, 1000),
        (100, 0, 4, 112, 512),
    ],
)
def test_capacities(window: int, sinks: int, n_seq_max: int, n_ubatch: int, expected: int) -> None:
    assert window_capacity(window, 1000, n_seq_max, n_ubatch, sinks) == expected


@pytest.mark.parametrize(("p0", "left"), [(2, [0, 1, 2, 3, 4, 5]), (1, [5])])
def test_old_positions_are_dropped_only_where_copies_need_their_cells(
    p0: int, left: list[int]
) -> None:
    pool = WindowPool(SHAPES, 10, window=2, n_seq_max=2)
    place(pool, [0, 1, 2, 3, 4, 5])
    pool.seq_cp(0, 1, 0, 6)
    pool.unshare(1, p0, 6)
    cells = pool.cells.seq_cell_list(1)
    assert pool.cells.positions[cells].tolist()[-len(left) :] == left
    assert pool.cells.seq_cells(0) == 6
    assert pool.cells.shared(1, p0, 6).tolist() == []
    pool.check()
