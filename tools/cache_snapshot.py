"""Everything that a context's cache holds, as plain values that can be compared.

What free cells and free rows store is left out: nothing reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from aleator.cache.handle.sequence import Checkpoint
from aleator.cache.pools.attention import AttentionPool, first_of
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.generate import Context

Snapshot = dict[str, Any]


def snapshot(context: Context, marks: Iterable[Checkpoint] = ()) -> Snapshot:
    """Cells, stored rows, states, cached prefixes, flags, handles, checkpoints and logits, by name.

    Args:
        context: the context.
        marks: checkpoints whose validity is to be compared.

    Returns:
        Plain values; equal if and only if nothing that can be seen has changed.

    """
    cache: Any = context.cache
    found: Snapshot = {}
    for i, pool in enumerate(cache.pools):
        part = _states(pool) if isinstance(pool, RecurrentPool) else _cells(first_of(pool))
        found |= {f"pool {i} {name}": value for name, value in part.items()}
    found["cached prefixes"] = sorted(
        (t.seq, t.namespace, t.tokens.tolist(), list(t.digests), list(t.used), list(t.pins))
        for t in (cache.prefix or ())
    )
    found["step under way"] = cache.journal.current is not None
    found["handles"] = sorted(seq for seq, ref in cache._handles.items() if ref() is not None)
    found["checkpoints"] = [(m.seq, m.length, m.valid_to) for m in marks]
    found["logits"] = None if context.rows is None else _digest([np.asarray(context.rows)])
    found["inference mode"] = torch.is_inference_mode_enabled()
    return found


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Names of what differs between two snapshots."""
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def _cells(pool: AttentionPool) -> Snapshot:
    cells = pool.cells
    used = np.flatnonzero(cells.positions >= 0)
    found: Snapshot = {
        "positions": cells.positions.tobytes(),
        "owners": cells.owners.tobytes(),
        "shifts": (cells.has_shift, cells.shifts[used].tobytes()),
        "head": (cells.head, cells.used, cells.top),
        "rotations": pool.rows.key_positions[used].tobytes(),
        "do_defrag": pool.do_defrag,
    }
    for name, side in (("keys", pool.rows.keys), ("values", pool.rows.values)) if len(used) else ():
        found[name] = _digest(side.bytes_of(layer, used) for layer in range(len(side.layers)))
    return found


def _states(pool: RecurrentPool) -> Snapshot:
    states = {seq: tuple(history) for seq, history in pool.states.book().items()}
    rows = sorted({row for history in states.values() for row, _ in history})
    return {
        "states": states,
        "rows": _digest(t[rows] for t in [*pool.conv, *pool.ssm]),
    }


def _digest(arrays: Iterable[np.ndarray[Any, Any]]) -> bytes:
    made = hashlib.blake2b(digest_size=16)
    for array in arrays:
        made.update(np.ascontiguousarray(array).tobytes())
    return made.digest()
