"""llama.cpp 0.5's state blobs and session files.

Little endian, without padding.  A memory is: u32 streams; for each stream u32 cells, and if there are
any, per cell i32 position, u32 owners, with M-RoPE i32 x, y and token, i32 each owner; u32 whether values lie
by channel; u32 layers; for each layer i32 type of K, u64 bytes of a row, the rows; then for each layer the
same for V, if it stores any, or by channel i32 type, u32 bytes of an element, u32 channels, each channel's
elements.  A model with window layers has two memories: one of the layers that see everything, and one of the
window layers, with a sequence's window only.  :mod:`aleator.cache.formats.recurrent` has recurrent models.

A whole state is u32 length and name of the architecture, then the memory.  A sequence's state is u32 magic,
i32 its id, then a memory whose cells have one owner.  A session file is u32 "ggsn", u32 version 10, u32
number of tokens, i32 tokens, a whole state; a sequence's file is u32 "ggsq", u32 version 3, tokens the
same way, a memory.

Input is untrusted: everything is checked before anything changes.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aleator.cache.batches import bits_of
from aleator.cache.formats import recurrent
from aleator.cache.formats.source import Source
from aleator.cache.pools.attention import AttentionPool, first_of
from aleator.cache.pools.hybrid import HybridPool
from aleator.cache.pools.pool import Pool
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.rows.rows import read_keys
from aleator.cache.storage.layer import LayerStorage
from aleator.core.arrays import Bytes, Int32s, Int64s, UInt64s
from aleator.core.errors import Corrupt, Incompatible
from aleator.core.integers import token_ids
from aleator.core.records import dataclass

SEQUENCE_MAGIC = 0xAF143CD8
SESSION_MAGIC, SESSION_VERSION = 0x6767736E, 10
SEQUENCE_FILE_MAGIC, SEQUENCE_FILE_VERSION = 0x67677371, 3
MAX_TOKENS = 1 << 28

_XYT = [1, 0, 2]
"""The permutation between an extra's (y, x, token) and the order of the file; its own inverse."""


@dataclass
class Section:
    """The cells of one stream, n of them.

    ``owners`` are bits, uint64 [n, words]; ``extras`` y, x and token of each, int32 [n, 3].  Keys and values of
    a layer are uint8 [n, bytes of a row]; values by channel are [channels, n * bytes of an element].
    """

    positions: Int32s
    owners: UInt64s
    extras: Int32s | None
    keys: list[Bytes]
    values: list[Bytes]


# Writing


def write(pool: Pool, seq: int, partial: bool = False, windows_only: bool = True) -> bytes:
    """The state of everything (-1) or of one sequence, with shifts applied.

    ``windows_only=False`` writes all that window layers hold of a sequence, which llama.cpp does not do.
    """
    if seq >= 0:
        head = struct.pack("<Ii", SEQUENCE_MAGIC, seq)
        return head + _memories(pool, seq, partial, windows_only)
    name = pool.architecture.encode()
    return struct.pack("<I", len(name)) + name + _memories(pool, -1)


def write_session(pool: Pool, tokens: Sequence[int], seq: int) -> bytes:
    """A session file (-1) or a sequence's file; ``tokens`` are those of the state."""
    ids = token_ids(tokens).astype("<i4")
    if seq >= 0:
        head = struct.pack("<III", SEQUENCE_FILE_MAGIC, SEQUENCE_FILE_VERSION, len(ids))
        return head + ids.tobytes() + _memories(pool, seq)
    head = struct.pack("<III", SESSION_MAGIC, SESSION_VERSION, len(ids))
    return head + ids.tobytes() + write(pool, -1)


def _memories(pool: Pool, seq: int, partial: bool = False, windows_only: bool = True) -> bytes:
    """The memories of all pools, one after the other."""
    return b"".join(
        recurrent.write(leaf, seq)
        if isinstance(leaf, RecurrentPool)
        else _memory(first_of(leaf), seq, windows_only)
        for leaf in (pool.leaves[1:] if partial else pool.leaves)
    )


def _memory(pool: AttentionPool, seq: int, windows_only: bool) -> bytes:
    parts = [struct.pack("<I", pool.cells.n_streams)]
    share = pool.cells.size // pool.cells.n_streams
    bits = bits_of(pool.cells.owners[: pool.cells.top])
    bits = bits[:, : pool.n_seq_max]  # cached prefixes are not part of the state
    own = bits[:, seq] if seq >= 0 else bits.any(1)
    if seq >= 0 and windows_only:
        own = own & pool.in_state(seq, pool.cells.positions[: len(bits)])
    used = np.flatnonzero(own)
    for stream in range(pool.cells.n_streams):
        cells = used[(used >= stream * share) & (used < (stream + 1) * share)]
        parts.append(struct.pack("<I", len(cells)))
        if len(cells):
            own_bits = bits[cells]
            if seq >= 0:
                own_bits[:] = np.arange(own_bits.shape[1]) == seq
            parts += [cells_as_bytes(pool, cells, own_bits), *rows_as_bytes(pool, cells)]
    return b"".join(parts)


def cells_as_bytes(pool: AttentionPool, cells: Int64s, owners: Bytes) -> bytes:
    """Positions and owners of cells; ``owners`` are bits [n, n_seq_max]."""
    row, ids = np.nonzero(owners)
    counts = np.bincount(row, minlength=len(cells))
    columns = [pool.cells.positions[cells], counts]
    if pool.cells.extras is not None:
        columns += list(pool.cells.extras[cells][:, _XYT].T)
    start = np.concatenate(([0], np.cumsum(counts + len(columns))))
    out = np.empty(start[-1], "<i4")
    for i, column in enumerate(columns):
        out[start[:-1] + i] = column
    rank = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    out[start[row] + len(columns) + rank] = ids
    return out.tobytes()


def rows_as_bytes(pool: AttentionPool, cells: Int64s) -> list[bytes]:
    """The rows that every layer stores in cells."""
    keys, values = pool.rows.keys, pool.rows.values
    parts = [struct.pack("<II", values.by_channel, len(pool.rows.shapes))]
    behind = pool.cells.positions[cells] != pool.rows.key_positions[cells]
    for side in (keys, values):
        for layer, part in enumerate(side.parts):
            if part.dim == 0:
                continue
            rows = part.bytes_of(cells)
            if side is keys and behind.any():
                rotated = read_keys(pool.cells, pool.rows, layer, cells[behind])
                rows[behind] = part.encoded(rotated)
            head = struct.pack("<iQ", part.type.ggml, part.row_bytes)
            if part.by_channel:
                sizes = part.type.block_bytes, part.heads * part.dim
                head = struct.pack("<iII", part.type.ggml, *sizes)
            parts += [head, rows.tobytes()]
    return parts


# Reading


def read(pool: Pool, blob: bytes | memoryview, seq: int, partial: bool = False) -> int:
    """Replace everything (-1) or one sequence by a state; return its number of cells.

    The state of an empty sequence changes nothing, but in a recurrent cache it empties the destination.
    Corrupt if the bytes are not such a state; Incompatible if they are of another kind of cache.
    """
    source = Source(blob)
    _head(pool, source, seq)
    return _read_memories(pool, source, seq, partial)


def read_session(pool: Pool, data: bytes | memoryview, seq: int) -> list[int]:
    """Read a session file or a sequence's file; return its tokens."""
    source = Source(data)
    magic, version = source.u32("magic"), source.u32("version")
    want = (SEQUENCE_FILE_MAGIC, SEQUENCE_FILE_VERSION)
    if seq < 0:
        want = (SESSION_MAGIC, SESSION_VERSION)
    if magic != want[0]:
        if magic in (SESSION_MAGIC, SEQUENCE_FILE_MAGIC):
            whole, one = "a whole session", "one sequence"
            raise Incompatible("kind", *((one, whole) if seq < 0 else (whole, one)))
        raise Corrupt(0, f"the file does not begin like a session file: magic {magic:#x}")
    if version != want[1]:
        raise Incompatible("version", version, want[1])
    n = source.u32("n_tokens")
    if n > MAX_TOKENS:
        raise Corrupt(source.offset - 4, f"{n} tokens")
    tokens: list[int] = source.array("<i4", n, "tokens").tolist()
    if seq < 0:
        _head(pool, source, seq)
    _read_memories(pool, source, seq)
    return tokens


def _read_memories(pool: Pool, source: Source, seq: int, partial: bool = False) -> int:
    """Within a frame, check the states of all pools, then replace them; return the first's number of cells."""
    filled = seq < 0
    restores: list[Callable[[], int]] = []
    for leaf in pool.leaves[1:] if partial else pool.leaves:
        if isinstance(leaf, RecurrentPool):
            states = recurrent.read(leaf, source, seq)
            restores.append(functools.partial(recurrent.restore, leaf, states, seq))
            filled = True
        else:
            sections = _sections(first_of(leaf), source, seq)
            restores.append(functools.partial(restore_sections, first_of(leaf), sections, seq))
            filled = filled or bool(sections)
    if source.left:
        raise Corrupt(source.offset, f"{source.left} bytes follow the end of the state")
    # llama.cpp's attention caches ignore the state of an empty sequence; its recurrent ones empty the sequence.
    if not filled:
        return 0
    if isinstance(pool, HybridPool):
        pool.complete(seq)
    cells = [restore() for restore in restores]
    if partial and isinstance(pool, HybridPool):
        pool.rewind_to_followers(seq)
    pool.require_complete()
    return cells[0]


def _head(pool: Pool, source: Source, seq: int) -> None:
    first = source.u32("the head")
    if seq >= 0:
        if first != SEQUENCE_MAGIC:
            raise Corrupt(0, f"not a sequence's state: magic {first:#x}, not {SEQUENCE_MAGIC:#x}")
        source.u32("sequence id")  # of the sequence when written; it may be read into any other
        return
    if first == SEQUENCE_MAGIC:
        raise Incompatible("kind", "the state of one sequence", "a whole state: pass seq")
    if first > 256:
        raise Corrupt(0, f"not a whole state: a name of {first} bytes")
    name = bytes(source.take(first, "architecture")).decode(errors="replace")
    if name != pool.architecture:
        raise Incompatible("architecture", name, pool.architecture)


def _sections(pool: AttentionPool, source: Source, seq: int) -> list[Section]:
    """The cells of the streams that have any."""
    source.expect("n_stream", source.u32("n_stream"), pool.cells.n_streams)
    sections: list[Section] = []
    for _ in range(pool.cells.n_streams):
        at = source.offset
        n = source.u32("cell_count")
        if n * (12 if pool.n_pos_per_embd == 1 else 24) > source.left:
            raise Corrupt(at, f"{n} cells do not fit into the {source.left} bytes left")
        if n:
            section = Section(*_read_cells(pool, source, n, seq), *_read_data(pool, source, n))
            if seq >= 0 and sections:
                raise Corrupt(at, "a sequence's state has cells in several streams")
            sections.append(section)
    return sections


def _read_cells(
    pool: AttentionPool, source: Source, n: int, seq: int
) -> tuple[Int32s, UInt64s, Int32s | None]:
    start = source.offset
    owners = np.zeros((n, pool.cells.words), np.uint64)
    width = 0 if pool.n_pos_per_embd == 1 else 3
    extras = np.empty((n, width), np.int32)
    simple = np.frombuffer(source.take(n * (12 + 4 * width), "cells"), "<i4").reshape(n, -1)
    if (simple[:, 1] == 1).all():  # one owner each
        positions = simple[:, 0].copy()
        extras[:] = simple[:, 2 : 2 + width]
        ids = simple[:, 2 + width]
        if seq < 0 and not ((ids >= 0) & (ids < pool.n_seq_max)).all():
            bad = int(ids[(ids < 0) | (ids >= pool.n_seq_max)][0])
            raise Incompatible("n_seq_max", f"a cell of sequence {bad}", pool.n_seq_max)
        ids = ids.astype(np.int64) if seq < 0 else np.full(n, seq)
        owners[np.arange(n), ids // 64] = np.uint64(1) << (ids % 64).astype(np.uint64)
    elif seq >= 0:
        raise Corrupt(start, "a cell of a sequence's state has not exactly one owner")
    else:
        source.offset = start
        positions = np.empty(n, np.int32)
        for i in range(n):
            at = source.offset
            positions[i], count = struct.unpack("<iI", source.take(8, "a cell"))
            if count == 0 or count * 4 > source.left:
                raise Corrupt(at, f"cell {i} has {count} owners")
            if count > pool.n_seq_max:
                raise Incompatible("n_seq_max", f"at least {count}", pool.n_seq_max)
            extras[i] = source.array("<i4", width, "x, y and token")
            each = tuple(source.array("<i4", count, "owners").tolist())
            if len(set(each)) != count:
                raise Corrupt(at, f"cell {i} names an owner twice")
            if min(each) < 0 or max(each) >= pool.n_seq_max:
                raise Incompatible("n_seq_max", f"a cell of sequences {each}", pool.n_seq_max)
            for s in each:
                owners[i, s // 64] |= np.uint64(1 << (s % 64))
    if not ((positions >= 0) & (positions < 2**31 - 1)).all():
        raise Corrupt(start, "a cell's position is not in [0, 2^31 - 1)")
    if width == 0:
        return positions, owners, None
    if extras[:, 2].min() < -1:
        raise Corrupt(start, "a cell's token is below -1")
    return positions, owners, np.ascontiguousarray(extras[:, _XYT])


def _read_data(pool: AttentionPool, source: Source, n: int) -> tuple[list[Bytes], list[Bytes]]:
    by_channel = source.u32("v_trans")
    if by_channel > 1:
        raise Corrupt(source.offset - 4, f"v_trans is {by_channel}")
    source.expect("v_trans", by_channel, int(pool.rows.values.by_channel))
    source.expect("n_layer", source.u32("n_layer"), len(pool.rows.shapes))

    def rows(name: str, layer: int, part: LayerStorage[Any]) -> Bytes:
        if part.dim == 0:
            return np.empty(0, np.uint8)
        source.expect(f"type_{name}", source.u32(f"type_{name}"), part.type.ggml)
        shape = n, part.row_bytes
        if part.by_channel:
            element, width = part.type.block_bytes, part.heads * part.dim
            source.expect(f"{name} element bytes", source.u32("element bytes"), element)
            source.expect(f"{name} channels", source.u32("channels"), width)
            shape = width, n * element
        else:
            source.expect(f"{name} row bytes", source.u64("row bytes"), part.row_bytes)
        found = source.rows(*shape, f"{name} of layer {layer}")
        if not part.type.is_finite(found):
            at = source.offset - found.size
            raise Corrupt(at, f"{name} of layer {layer} holds NaN or an infinity")
        return found

    keys, values = pool.rows.keys.parts, pool.rows.values.parts
    return (
        [rows("k", layer, part) for layer, part in enumerate(keys)],
        [rows("v", layer, part) for layer, part in enumerate(values)],
    )


def restore_sections(pool: AttentionPool, sections: list[Section], seq: int) -> int:
    """Within a frame, put checked sections into the cache."""
    if seq >= 0:
        pool.cells.seq_rm(seq)
    else:
        pool.cells.clear()
    for section in sections:
        pool.make_room(len(section.positions))
        cells = pool.find(section.positions, section.owners, section.extras)
        pool.keep_rows(cells)
        raw = pool.rows.k_storage == "raw"
        pool.rows.key_positions[cells] = section.positions
        for layer in range(len(pool.rows.shapes)):
            pool.rows.values.parts[layer].put_bytes(cells, section.values[layer])
            if raw:
                _put_raw(pool, layer, cells, section)
            else:
                pool.rows.keys.parts[layer].put_bytes(cells, section.keys[layer])
        if raw:
            pool.rows.key_positions[cells] = 0
    if seq < 0:
        for stream in range(pool.cells.n_streams):
            pool.cells.seq_add(stream, 1, 0, 1)  # an empty range: it only sets the head to 0
    return sum(len(section.positions) for section in sections)


def _put_raw(pool: AttentionPool, layer: int, cells: Int64s, section: Section) -> None:
    """Store keys, rotated to their positions, as at position 0."""
    assert pool.rows.rotate is not None  # noqa: S101  raw storage has one
    pool.rows.keys.parts[layer].put_bytes(cells, section.keys[layer])
    keys = pool.rows.keys.parts[layer].read(cells)
    back = -section.positions.astype(np.int64)
    pool.rows.keys.parts[layer].write(cells, pool.rows.rotate(layer, keys, back))
