"""Small caches for tests of plans and placement."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aleator._native import before_window, seen_cells
from aleator.cache import Cache, Cells, KVCache, LayerShape
from aleator.generate import Batch, Context

F32: dict[str, Any] = {"type_k": "f32", "type_v": "f32"}
SHAPES = [LayerShape(1, 8, 8), LayerShape(2, 4, 4)]


def tokens(n: int, seed: int = 1) -> list[int]:
    out: list[int] = np.random.default_rng(seed).integers(0, 64, n).tolist()
    return out


def same(a: Any, b: Any) -> bool:
    """Whether logits are equal but for the order of sums."""
    return bool(np.abs(a - b).max() < 1e-5 * (b.max() - b.min()))


def interrupted(run: Callable[..., Any], call: int) -> Callable[..., Any]:
    """``run``, interrupted at the end of its ``call``-th call."""
    calls = itertools.count(1)

    def failing(*args: Any) -> Any:
        out = run(*args)
        if next(calls) == call:
            raise KeyboardInterrupt
        return out

    return failing


def decode(ctx: Context, *rows: tuple[int, int, Sequence[int]]) -> npt.NDArray[np.float32]:
    """Logits of (token, position, sequences) in one batch."""
    batch = Batch()
    for token, pos, seqs in rows:
        batch.add(token, pos, seqs, logits=True)
    made: npt.NDArray[np.float32] = ctx.decode(batch)
    return made


def small(n_cells: int = 32, **options: Any) -> KVCache:
    return KVCache(
        SHAPES, n_cells, **{"n_seq_max": 4, "rotate": lambda layer, k, d: k, **F32, **options}
    )


def fill(cache: KVCache, picture: str) -> None:
    """Cells as in a picture of owners; positions count up per sequence, rows are the cell's number."""
    count: dict[int, int] = {}
    for cell, sign in enumerate(picture):
        if sign == ".":
            continue
        seq = int(sign)
        row = np.zeros((1, cache.cells.words), np.uint64)
        row[0, 0] = 1 << seq
        pos = count.setdefault(seq, 0)
        cache.cells.put(np.array([cell]), np.array([pos], np.int32), row)
        count[seq] += 1
        cache.key_positions[cell] = pos
        for t in cache.keys.layers + cache.values.layers:
            t[cell] = cell


def snapshot(cache: Cache) -> tuple[Any, ...]:
    owners = tuple(tuple(cache.cells.owners_of(i)) for i in range(cache.size))
    used = np.flatnonzero(cache.cells.positions >= 0)
    rows = tuple(t[used].tobytes() for t in cache.keys.layers + cache.values.layers)
    return cache.cells.positions.tobytes(), owners, tuple(cache.cells.heads), rows


def mask(
    cells: Cells,
    positions: npt.NDArray[np.int32],
    seqs: npt.NDArray[np.int32],
    out: npt.NDArray[np.bool_],
    causal: bool = True,
    window: str = "",
    width: int = 0,
    coordinates: npt.NDArray[np.int32] | None = None,
) -> int:
    """Fill ``out`` [queries, cells] with what queries see, by the lists that decoders read; how many cells."""
    listed, start, which, counts, _ = seen_cells(cells, positions, seqs, causal, None, coordinates)
    first = np.zeros(len(positions), np.int64)
    if window:
        first = before_window(cells, listed, start, which, positions, width, window == "chunked")
    out[:] = False
    for row, seq, low, high in zip(out, which.tolist(), first, counts, strict=True):
        seen = listed[start[seq] :][low:high]
        row[seen[seen < len(row)]] = True
    return int(out.sum())


def feed(ctx: Any, seq: int, tokens: list[int]) -> Any:
    """Logits after the last of a sequence's next tokens, and a check of the cache."""
    logits: Any = ctx.decode(Batch.one(tokens, None, seq))[-1]
    ctx.cache.check()
    return logits
