"""Random scripts on caches of every kind: what they answer, and what is there after each step, is on record.

The record notices changes of what is chosen where any choice gives right logits: cells, rows, evictions.
ALEATOR_RECORD=1 records a change that is meant.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator.cache.batches import RULES
from aleator.cache.cache import Cache
from aleator.cache.formats import llama, pieces, recurrent
from aleator.cache.formats.state_file import read_state_file
from aleator.cache.kv_cache import HybridCache, KVCache, LayerShape, WindowCache
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.pools.cell_pool import CellPool
from aleator.cache.pools.hybrid import parts_of
from aleator.cache.pools.kept_states import kept_rows
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.recurrent_rows import RecurrentShape
from aleator.cache.pools.window import WindowPool
from aleator.cache.prefix_index import PrefixConfig
from aleator.cache.recurrent import RecurrentCache
from aleator.cache.rows.batch import MicroBatch, WindowBatch
from aleator.cache.rows.rows import read_keys
from aleator.cache.sequence import Sequence
from aleator.cache.sequence_verbs import Checkpoint
from aleator.cache.storage.storage import Storage
from aleator.cache.view import take_frame
from aleator.generate import Batch
from tests.cache.scripted import Operations, digest, listed, rotate

RECORD = Path(__file__).parents[1] / "golden" / "cache" / "accounts.json"
STEPS = 120
SHAPES = [LayerShape(1, 2, 2), LayerShape(2, 1, 3, rope=1), LayerShape(1, 2, 2)]
STATES = [RecurrentShape(2, 1, 2), RecurrentShape(1, 2, 1, inner=3)]
ALL: dict[str, Any] = {"n_seq_max": 5, "type_k": "f32", "type_v": "f32", "rotate": rotate}
KEPT = PrefixConfig(block=4, texts=3, spacing=8, bytes=20 * 4 * (2 * 3 + 2 + 3))


def cells(n: int = 64, **options: Any) -> Cache:
    return KVCache(SHAPES, n, **ALL | options)


def windows(n: int, prefix: PrefixConfig | None = None, states: int = 0, **options: Any) -> Cache:
    """Cells beside windows of 4, in ``n`` cells, and beside states with so many to rewind to."""
    texts = 0 if prefix is None else prefix.texts
    shared = {name: options.pop(name) for name in ("policy",) if name in options}
    pool = WindowPool(SHAPES[:2], n, **ALL | shared | {"window": 4, "n_kept": texts} | options)
    recurrent = None
    if states:
        rows = kept_rows(prefix, 5, STATES)
        recurrent = RecurrentPool(STATES, n_seq_max=5, rollback=states, kept_rows=rows)
    both: Any = {"window": pool, "recurrent": recurrent, "prefix": prefix}
    return HybridCache(SHAPES[1:], 100, **ALL | shared | both)


def beside_states(prefix: PrefixConfig | None) -> Cache:
    rows = kept_rows(prefix, 5, STATES)
    pool = RecurrentPool(STATES, n_seq_max=5, rollback=3, kept_rows=rows)
    return HybridCache(SHAPES, 90, recurrent=pool, prefix=prefix, **ALL)


CELLS: dict[str, Callable[[], Cache]] = {
    "kept": lambda: cells(prefix=KEPT),
    "cells of 2024": lambda: cells(compat="llama-2024", pad=16),
    "pictures": lambda: cells(rotate=None, n_pos_per_embd=4),
    "many sequences": lambda: cells(n_seq_max=70),
    "raw keys": lambda: cells(k_storage="raw"),
    "cells": cells,
    "cells by channel": lambda: cells(v_layout="channel", type_k="f16", type_v="f16"),
    "a large cache": lambda: cells(300, compat="llama-2024"),
    "no rotation": lambda: KVCache([LayerShape(1, 3, 0)], 64, **ALL | {"rotate": None}),
}
SHARES: dict[str, Callable[[], Cache]] = {
    "rings": lambda: windows(60, ring=True, policy="streams"),
    "two streams": lambda: cells(50, policy="streams", n_seq_max=2),
    "streams": lambda: cells(100, policy="streams"),
    "shares": lambda: windows(60, policy="streams"),
}
WINDOWS: dict[str, Callable[[], Cache]] = {
    "sinks": lambda: windows(40, sinks=2),
    "windows alone": lambda: WindowCache(SHAPES, 40, window=4, **ALL),
    "windows": lambda: windows(40),
    "few window cells": lambda: windows(26),
    "a ring": lambda: windows(36, ring=True),
    "chunks": lambda: windows(40, chunked=True),
}
OF_STATES: dict[str, Callable[[], Cache]] = {
    "kept states": lambda: RecurrentCache(STATES, n_seq_max=5, rollback=1, prefix=KEPT),
    "states": lambda: RecurrentCache(STATES, n_seq_max=5, rollback=2),
}
SEVERAL: dict[str, Callable[[], Cache]] = {
    "all": lambda: windows(60, KEPT, states=2),
    "kept windows with sinks": lambda: windows(50, KEPT, sinks=2),
    "kept windows": lambda: windows(60, KEPT),
    "beside states": lambda: beside_states(None),
    "beside kept states": lambda: beside_states(KEPT),
}
KINDS = CELLS | SHARES | WINDOWS | OF_STATES | SEVERAL


class Script(Operations):
    """Operations, with what can be seen within pools."""

    marks: list[Checkpoint]

    def account(self) -> Any:
        """Everything that can be seen."""
        cache = self.cache
        seqs = [0, *range(1 + self.high, cache.n_seq_max)]
        seen: list[Any] = [[
            (cache.seq_pos_min(s), cache.seq_pos_max(s), cache.oldest_rewind(s),
             [n for n in range(40) if cache.has_exactly(s, n)]) for s in seqs
        ]]  # fmt: skip
        seen.append([cache.can_shift(), cache.rewindable, [m.valid_to for m in self.marks]])
        for pool in self.leaves:
            seen.append(
                self._states(pool) if isinstance(pool, RecurrentPool) else self._cells(pool)
            )
        for text in sorted(cache.prefix or (), key=lambda t: t.seq):
            seen.append([text.seq, text.namespace, text.tokens.tolist(), text.used, text.pins])
        return seen

    @staticmethod
    def _states(pool: RecurrentPool) -> Any:
        numbers = [[listed(t[r]) for t in pool.conv + pool.ssm] for r in range(pool.states.n_rows)]
        held = [
            (seq, [(row, position, numbers[row]) for row, position in history])
            for seq, history in sorted(pool.states.book().items())
        ]
        return [held, digest(recurrent.write(pool, -1))]

    @staticmethod
    def _cells(pool: CellPool) -> Any:
        cells, rows, frame = pool.cells, pool.rows, take_frame(pool.cells)
        used = np.flatnonzero(cells.positions >= 0)
        data = [
            [read_keys(cells, rows, i, used).astype(int).tolist() for i in range(len(rows.shapes))],
            [part.read(used).astype(int).tolist() for part in rows.values.parts],
            None if cells.extras is None else cells.extras[used].tolist(),
        ]
        numbers = [cells.positions[used], rows.key_positions[used], cells.shifts[used]]
        return [
            used.tolist(), [cells.owners_of(c) for c in used.tolist()], list(map(listed, numbers)),
            list(cells.heads), pool.n, pool.do_defrag, pool.used, pool.free, data, frame.summary(),
        ]  # fmt: skip

    def carry_out(self, batch: Batch, tokens: list[int]) -> Any:
        n = len(tokens)
        causal = not self.chance(0.08)
        plan = self.cache.plan(
            batch,
            n_ubatch=n + self.below(3) - 1 if not causal else self.random.choice((2, 3, 5, 8, 30)),
            n_batch=self.random.choice((None, None, 4, 30)),
            rule=self.random.choice(("simple", *RULES)),
            keep_tail=self.below(3) if self.chance(0.2) else 0,
            causal=causal,
        )
        told: list[Any] = [len(plan), listed(plan.rows), listed(plan.positions)]
        with self.cache.step(plan) as step:
            for part in step:
                told.append(self.write_rows(part, np.array(tokens)[part.tokens].tolist()))
                told += [listed(part.tokens), listed(part.outputs), listed(part.positions)]
        for token, group in zip(tokens, batch.sequences, strict=True):
            for s in group:
                self.texts[s].append(token)
        return digest(told)

    def write_rows(self, part: Any, tokens: list[int]) -> Any:
        """Keys and values tell the token and the layer, and a state its text; what the batch says of itself."""
        whole, window, states = parts_of(part)
        told: list[Any] = []
        cells: MicroBatch
        side: Storage
        for cells in filter(None, (whole, window)):
            seen = cells.seen
            told += [listed(cells.cell_ids), listed(cells.positions), list(map(listed, seen))]
            told += [listed(cells.seen_positions()), listed(cells.sections)]
            told += (
                [listed(cells.first), listed(cells.sunk)] if isinstance(cells, WindowBatch) else []
            )
            stored = 0 if cells.rows.k_storage == "raw" else cells.positions
            for side, turns in ((cells.rows.keys, 1), (cells.rows.values, 0)):
                for layer, (heads, dim) in enumerate(side.shapes):
                    base = np.array(tokens)[:, None, None] * 10 + layer
                    base = base + np.arange(heads * dim).reshape(heads, dim)
                    base = base + turns * (layer + 1) * np.asarray(stored).reshape(-1, 1, 1)
                    side.parts[layer].write(cells.cell_ids, base.astype(np.float32))
        if states is not None:
            told += [
                listed(x) for x in (states.order, states.starts, states.sources, states.stores)
            ]
            for run in states.runs:
                told += [run.owners, run.stores]
                kept = dict(run.stores)
                for t in states.conv + states.ssm:
                    value = t[run.source] * 1 if run.source >= 0 else t[0] * 0
                    for i, token in enumerate(run.tokens):
                        value = (value * 31 + tokens[token] + 1) % 65521
                        if i in kept:
                            t[kept[i]] = value
        return told

    def handle(self) -> Any:
        """What a handle does."""
        seq = self.seq()
        handle = self.cache.sequence(seq)
        a, b, n = self.below(12), self.below(30), self.below(8)
        calls: list[Callable[[], Any]] = [
            lambda: handle.truncate(b), lambda: handle.drop(a, a + n), lambda: handle.slide(a, n),
            lambda: handle.slide(a), lambda: handle.shift(a, b, n - 3), lambda: handle.divide(a, b, n),
            lambda: self._fork(handle, b), lambda: self._fork(handle, None), lambda: self._mark(handle),
        ]  # fmt: skip
        calls += [lambda: handle.restore(self.random.choice(self.marks))] * 2 if self.marks else []
        result = self.random.choice(calls)()
        self.texts[seq] = self.texts[seq][: handle.next]
        can = [handle.can_truncate(i) for i in range(20)]
        told = [handle.positions, handle.cells, handle.pos_min, handle.pos_max, len(handle)]
        return [seq, repr(handle), result, can, *map(listed, told)]

    def _fork(self, handle: Sequence, upto: int | None) -> Any:
        other = handle.fork(upto)
        self.texts[other.id] = self.texts[handle.id][: other.next]
        return [other.id, other.next]

    def _mark(self, handle: Sequence) -> Any:
        self.marks = [*self.marks[-3:], handle.checkpoint()]
        return self.marks[-1].nbytes

    def session(self) -> Any:
        result = super().session()
        return [result, read_state_file(self.saved[-1]).header if self.saved else None]

    def piecewise(self) -> Any:
        """A sequence cut into pieces, and put together in another."""
        pool, src, dst = self.cache.pool, self.seq(), self.seq()
        n = self.cache.seq_pos_max(src) + 1
        whole = pieces.cells_of(pool)
        block = 2 + self.below(4)
        cut = [(a, min(a + block, n)) for a in range(0, n, block)] if whole is not None else []
        made = [pieces.write_cells(whole, src, a, b) for a, b in cut]  # type: ignore[arg-type]
        told = [src, dst, n, pieces.has_states(pool), [m is None or digest(m) for m in made]]
        if not n or src == dst or None in made or self.cache.seq_pos_max(dst) >= 0:
            return told
        state = pieces.write_state(pool, src) if pieces.has_states(pool) else None
        back = self.chance(0.3)

        def change() -> None:
            for (a, b), piece in zip(cut, made, strict=True):
                if piece is not None:
                    pieces.read_cells(pool, dst, range(a, b), piece, range(a, b))
            if state is not None and not back:
                pieces.read_state(pool, dst, n, state)
            elif back:
                pieces.take_back(pool, dst, 0)

        self.cache.journal.run(change)
        self.texts[dst] = self.texts[src][: self.cache.seq_pos_max(dst) + 1]
        return [*told, state is None or digest(state)]

    def window_of(self) -> Any:
        """What a window pool thinks of each sequence."""
        pool = self.cache.window
        if pool is None:
            return None
        whole: AttentionPool = self.cache.first
        assert isinstance(pool, WindowPool)
        numbers = range(pool.cells.n_seq_max)
        return [
            [pool.missing(whole, s) for s in numbers],
            [[pool.complete(whole, s, p) for p in range(20)] for s in numbers],
            [[pool.usable_beside(whole, s, n) for n in range(20)] for s in numbers],
            [pool.in_state(s, np.arange(40, dtype=np.int32)).tolist() for s in numbers],
            [
                digest(llama.write(self.cache.pool, s, windows_only=False))
                for s in range(self.n_seq)
            ],
        ]


def play(kind: str) -> None:
    """Play a script, and compare it with the record."""
    script = Script(KINDS[kind](), len(kind))
    lines = [script.step() for _ in range(STEPS)]
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if os.environ.get("ALEATOR_RECORD"):
        known = {**known, kind: " ".join(map(digest, lines))}
        RECORD.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n")
    for i, (line, expected) in enumerate(zip(lines, known[kind].split(), strict=True)):
        assert digest(line) == expected, f"step {i} is another one: {line}"


@pytest.mark.parametrize("kind", CELLS)
def test_cells(kind: str) -> None:
    play(kind)


@pytest.mark.parametrize("kind", SHARES)
def test_cells_that_sequences_have_to_themselves(kind: str) -> None:
    play(kind)


@pytest.mark.parametrize("kind", WINDOWS)
def test_windows(kind: str) -> None:
    play(kind)


@pytest.mark.parametrize("kind", OF_STATES)
def test_states(kind: str) -> None:
    play(kind)


@pytest.mark.parametrize("kind", SEVERAL)
def test_pools_beside_one_another(kind: str) -> None:
    play(kind)


def test_every_kind_is_on_record() -> None:
    assert set(json.loads(RECORD.read_text())) == set(KINDS)
