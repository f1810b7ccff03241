"""llama.cpp 0.5's states of recurrent layers, as parts of :mod:`aleator.cache.formats.llama`'s files.

u32 cells; per cell i32 position, u32 owners (0 in a sequence's state), i32 each owner; u32 0, u32 layers,
then for each layer i32 type of the convolution's values, u64 bytes of a row, the rows; then for each layer
the same for the state.  Everything is float32.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from aleator.cache.formats.source import Source
from aleator.cache.options import END
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.core.arrays import Bytes
from aleator.core.errors import Corrupt, Incompatible
from aleator.core.records import dataclass

_F32 = 0


@dataclass
class States:
    """The position and owners of each state, and the rows: each layer's convolution, then its state."""

    cells: list[tuple[int, tuple[int, ...]]]
    rows: list[Bytes]


def write(pool: RecurrentPool, seq: int) -> bytes:
    """The newest states of all sequences (-1) or of one."""
    owners: dict[tuple[int, int], list[int]] = {}
    for each in range(pool.n_seq_max) if seq < 0 else [seq]:
        newest = pool.states.newest(each)
        if newest is not None:
            owners.setdefault(newest, []).append(each)
    parts = [struct.pack("<I", len(owners))]
    for (_, position), ids in owners.items():
        listed = ids if seq < 0 else []
        parts.append(struct.pack(f"<iI{len(listed)}i", position, len(listed), *listed))
    rows = [row for row, _ in owners]
    parts.append(struct.pack("<II", 0, pool.n_layers))
    for arrays, t in pool.rows.made:
        taken = arrays.host(t, rows)
        parts += [struct.pack("<iQ", _F32, _row_bytes(t)), taken.tobytes()]
    return b"".join(parts)


def _row_bytes(array: Any) -> int:
    """Bytes per row of an array of states."""
    return int(array.nbytes) // len(array)


def read(pool: RecurrentPool, source: Source, seq: int) -> States:
    """Read and check what :func:`write` or llama.cpp wrote; nothing changes."""
    at = source.offset
    n = source.u32("cell_count")
    most = 1 if seq >= 0 else pool.n_seq_max
    if n > most:
        raise Incompatible("n_seq_max", f"at least {n}", most)
    cells: list[tuple[int, tuple[int, ...]]] = []
    for i in range(n):
        at = source.offset
        position, count = struct.unpack("<iI", source.take(8, "a cell"))
        if not 0 <= position < 2**31 - 1:
            raise Corrupt(at, f"state {i} is at position {position}")
        if count != 0 and seq >= 0:
            raise Corrupt(at, "a sequence's state names owners")
        if seq < 0 and not 1 <= count <= pool.n_seq_max:
            raise Incompatible("n_seq_max", f"a state of {count} sequences", pool.n_seq_max)
        ids = tuple(source.array("<i4", count, "owners").tolist()) if seq < 0 else (seq,)
        if min(ids) < 0 or max(ids) >= pool.n_seq_max:
            raise Incompatible("n_seq_max", f"a state of sequences {ids}", pool.n_seq_max)
        cells.append((position, ids))
    named = [s for _, ids in cells for s in ids]
    if len(set(named)) != len(named):
        raise Corrupt(at, "a sequence has two states")
    if (transposed := source.u32("s_trans")) != 0:
        raise Corrupt(source.offset - 4, f"s_trans is {transposed}")
    source.expect("n_layer", source.u32("n_layer"), pool.n_layers)
    rows: list[Bytes] = []
    for name, t in [("conv", t) for t in pool.conv] + [("ssm", t) for t in pool.ssm]:
        source.expect(f"type of {name}", source.u32("type"), _F32)
        size = _row_bytes(t)
        source.expect(f"{name} row bytes", source.u64("row bytes"), size)
        found = source.rows(n, size, name)
        if not np.isfinite(found.view("<f4")).all():
            raise Corrupt(source.offset, f"{name} holds NaN or an infinity")
        rows.append(found)
    return States(cells, rows)


def restore(pool: RecurrentPool, states: States, seq: int) -> int:
    """Within a frame, replace everything (-1) or one sequence by what was read; return the number of states."""
    if seq < 0:
        pool.clear(data=False)
    else:
        pool.seq_rm(seq, 0, END)
    for i, (position, ids) in enumerate(states.cells):
        made = [
            arrays.of_host(rows[i].view("<f4").astype(np.float32).reshape(t.shape[1:]))
            for (arrays, t), rows in zip(pool.rows.made, states.rows, strict=True)
        ]
        pool.put(ids, position, made)
    return len(states.cells)
