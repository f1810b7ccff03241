"""Keys, values and states of a text that a cache keeps, as the sections of a session's file and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from aleator.cache.cache import Cache
from aleator.cache.formats import llama
from aleator.cache.formats.state_file import StateFile
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.pools.kept_states import ENDS, KeptStates
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.core.errors import CacheError
from aleator.core.records import dataclass
from aleator.generate.context import Context


@dataclass(frozen=True)
class Rows:
    """What a cache keeps of a text.

    Attributes:
        held: tokens whose keys and values these are, from the first on.
        rows: their cells, in llama.cpp's layout.
        turned: what their keys are rotated to, where that differs from their positions.
        states: earlier states of recurrent layers.
        rotation: tells what rotated their keys, see
            :attr:`~aleator.models.decoder.Decoder.rotation_identity`.
    """

    held: int
    rows: bytes = field(repr=False)
    turned: bytes = field(repr=False)
    states: bytes = field(repr=False)
    rotation: str = ""


def rows_of(context: Context, tokens: Sequence[int], namespace: str = "", seq: int = 0) -> Rows:
    """Copy what a context's cache keeps of a text; nothing of the cache changes.

    Args:
        context: caches prefixes.
        tokens: the text.
        namespace: where it is kept.
        seq: a sequence that is empty.
    """
    # Nothing of it stays in the cache, whatever comes in between.
    cache = context.cache
    rows: Rows = cache.journal.attempt(_rows, cache, tokens, namespace, seq)
    return replace(rows, rotation=context.decoder.rotation_identity)


def put_rows(context: Context, seq: int, state: StateFile, held: int) -> None:
    """Give an empty sequence what :func:`rows_of` copied.

    Args:
        context: of the same model.
        seq: the sequence; where this raises, its caller empties it.
        state: the file.
        held: tokens of the text that the file has rows of.

    Raises:
        CacheError: the rows do not fit this cache, there is no room for them, or their keys were rotated for a
            context of another length.
    """
    if state.header.get("rotation", "") != context.decoder.rotation_identity:
        raise CacheError(
            "its keys were rotated for a context of another length: the model has other frequencies there, and "
            f"the context here has n_ctx={context.n_ctx}"
        )
    cache = context.cache
    cache.state_read(state.sections["rows"], seq, format="llama")
    if not cache.stands_for(seq, held):
        raise CacheError(f"its rows are not those of positions 0 to {held - 1}")
    _turn(cache, seq, state.sections.get("turned", b""))
    _put_states(cache, seq, state.sections.get("states", b""), held)


def _rows(cache: Cache, tokens: Sequence[int], namespace: str, seq: int) -> Rows:
    """See :func:`rows_of`.

    Changes the cache; called by ``journal.attempt``, which takes that back.
    """
    # What is asked for is one token longer: a match leaves the last one to be computed.
    held = cache.reuse(seq, [*tokens, 0], namespace)
    if not held:
        return Rows(0, b"", b"", b"")
    turned = _without_shift(cache, seq)
    rows = llama.write(cache.pool, seq, windows_only=False)
    return Rows(held, rows, turned, _earlier_states(cache, seq, held))


def _without_shift(cache: Cache, seq: int) -> bytes:
    """Make as if no shift of a sequence were pending; gives what its keys are rotated to, "" if none is.

    So they are stored as they are: rotated and rounded they would be others than those of the first run.
    """
    pools = [(pool, cells) for pool, cells in _cells(cache, seq) if pool.rows.k_storage != "raw"]
    rotations = [pool.rows.key_positions[cells] for pool, cells in pools]
    moved = False
    for (pool, cells), at in zip(pools, rotations, strict=True):
        own = pool.cells.positions[cells]
        moved = moved or bool((own != at).any())
        pool.journal.undo(pool.rows.key_positions.__setitem__, cells, at)
        pool.rows.key_positions[cells] = own
    return b"".join(at.astype("<i4").tobytes() for at in rotations) if moved else b""


def _turn(cache: Cache, seq: int, turned: bytes | memoryview) -> None:
    """Say what the keys of a sequence are rotated to, as :func:`_without_shift` gave it."""
    if len(turned) == 0:
        return
    pools = _cells(cache, seq)
    n = sum(len(cells) for _, cells in pools)
    positions = np.frombuffer(turned, "<i4") if len(turned) == 4 * n else np.empty(0, "<i4")
    if n == 0 or len(positions) != n or positions.min() < 0:
        raise CacheError("what its keys are rotated to does not fit its rows")
    if any(pool.rows.k_storage == "raw" for pool, _ in pools):
        raise CacheError("its keys are rotated, and k_storage='raw' has those of position 0")
    for pool, cells in pools:
        pool.rows.key_positions[cells], positions = positions[: len(cells)], positions[len(cells) :]


def _cells(cache: Cache, seq: int) -> list[tuple[AttentionPool, npt.NDArray[np.int64]]]:
    """The pools of cells, each with those that a sequence's state has, by position."""
    found = []
    for pool in cache.pools:
        if isinstance(pool, AttentionPool):
            found.append((pool, pool.cells.seq_cell_list(seq)))
    return found


def _earlier_states(cache: Cache, seq: int, held: int) -> bytes:
    """The latest recurrent states kept of a sequence's text before its end: positions, and rows by layer."""
    found = _recurrent(cache)
    if found is None:
        return b""
    states, keeper = found
    kept = [each for each in keeper.of(seq) if each[1] < held - 1][-ENDS:]
    rows = [row for row, _ in kept]
    parts = [np.asarray([position for _, position in kept], "<i4").tobytes()]
    parts += [arrays.host(t, rows).astype("<f4").tobytes() for arrays, t in states.rows.made]
    return b"".join(parts)


def _put_states(cache: Cache, seq: int, data: bytes | memoryview, held: int) -> None:
    """Give a sequence the states that :func:`_earlier_states` gave, as far as there is room."""
    found = _recurrent(cache)
    if len(data) == 0 or found is None:
        return
    states, keeper = found
    sizes = [math.prod(t.shape[1:]) for t in states.conv + states.ssm]
    n, rest = divmod(len(data), 4 * (1 + sum(sizes)))
    at = np.frombuffer(data, "<i4")[:n].tolist() if rest == 0 else []
    values = np.frombuffer(data, "<f4")[n:] if rest == 0 else np.empty(0, "<f4")
    ascending = all(a < b for a, b in pairwise([-1, *at, held - 1]))
    if rest or not ascending or not np.isfinite(values).all():
        raise CacheError("its earlier states are none of its text")
    rows = states.free_rows(min(n, max(0, keeper.limit - keeper.held())))
    for (arrays, t), size in zip(states.rows.made, sizes, strict=True):
        latest = values[: n * size].reshape(n, *t.shape[1:])[n - len(rows) :]
        t[rows] = arrays.of_host(latest.astype(np.float32))
        values = values[n * size :]
    states.states.change({keeper.number(seq): tuple(zip(rows, at[n - len(rows) :], strict=True))})


def _recurrent(cache: Cache) -> tuple[RecurrentPool, KeptStates] | None:
    """The pool of recurrent states and those of cached prefixes, if the cache has them."""
    for pool in cache.pools:
        if isinstance(pool, RecurrentPool) and isinstance(pool.keeper, KeptStates):
            return pool, pool.keeper
    return None
