"""Random operations on the cells against the plain model, with every invariant checked after each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aleator import _native
from aleator.cache import Cells
from tests.cache.caches import mask
from tests.cache.cells_model import CellsModel

POSITIONS = st.integers(-2, 40)
IDS = st.integers(0, 199)
END = 2**31 - 2


def owner_rows(cells: Cells, owners: set[int], n: int) -> np.ndarray[tuple[int, int], np.dtype]:
    row = np.zeros(cells.words, dtype=np.uint64)
    for s in owners:
        row[s // 64] |= np.uint64(1 << (s % 64))
    return np.tile(row, (n, 1))


def rows_of(extras: np.ndarray[tuple[int, int], np.dtype] | None) -> list[tuple[int, ...]] | None:
    return None if extras is None else [tuple(row) for row in extras.tolist()]


class CellsMachine(RuleBasedStateMachine):
    """Every operation, in any order; a failing allocation must change nothing."""

    streams = False
    operations = 0

    @initialize(
        size=st.sampled_from([1, 7, 63, 64, 65, 130, 300]),
        n_seq_max=st.sampled_from([1, 2, 3, 64, 70, 200]),
        llama_2024=st.booleans(),
        extras=st.booleans(),
    )
    def create(self, size: int, n_seq_max: int, llama_2024: bool, extras: bool) -> None:
        if self.streams:
            size, llama_2024, n_seq_max = size * min(n_seq_max, 3), False, min(n_seq_max, 3)
        self.cells = Cells(size, n_seq_max, self.streams, llama_2024, extras)
        self.extras = extras
        self.model = CellsModel(size, n_seq_max, self.streams, llama_2024)
        self.depth = 0

    def drawn_extras(self, n: int, seed: int) -> np.ndarray[tuple[int, int], np.dtype] | None:
        """y, x and token of n tokens."""
        if not self.extras:
            return None
        return np.random.default_rng(seed).integers(-1, 4, (n, 3)).astype(np.int32)

    def seq(self, number: int) -> int:
        """Few ids more often than many."""
        return number % min(self.model.n_seq_max, 4 if number % 8 else 200)

    @rule(
        n=st.integers(1, 40),
        a=IDS,
        b=IDS,
        start=st.one_of(st.none(), st.integers(0, 30)),
        step=st.sampled_from([1, 1, 1, 0, -1]),
        contiguous=st.booleans(),
    )
    def place(self, n: int, a: int, b: int, start: int | None, step: int, contiguous: bool) -> None:
        a, b = self.seq(a), self.seq(b)
        owners = {a} if self.streams or a < b else {a, b}
        stream = a if self.streams else 0
        expected = self.model.find(n, contiguous, stream)
        assert self.cells.find(n, contiguous, stream).tolist() == expected
        if not expected:
            return
        if start is None:
            start = self.cells.seq_pos_max(a) + 1
        positions = [max(0, start + step * i) for i in range(n)]
        if max(positions) > END:  # after a shift to the last position there is none to go on at
            return
        extras = self.drawn_extras(n, n + start + self.cells.used)
        placed = self.cells.place(
            np.array(positions, dtype=np.int32),
            owner_rows(self.cells, owners, n),
            contiguous,
            extras,
        )
        assert placed.tolist() == expected
        self.model.put(expected, positions, owners, rows_of(extras))

    @precondition(lambda self: not self.streams)
    @rule(k=st.sampled_from([2, 3, 4, 66]), m=st.integers(1, 9), first=IDS)
    def side_by_side(self, k: int, m: int, first: int) -> None:
        """Sequences that take turns lie in every k-th cell."""
        k = min(k, self.model.n_seq_max)
        m = min(m, (self.model.size - self.model.used) // k)
        seqs = [(first + i) % self.model.n_seq_max for i in range(k)]
        starts = [self.cells.seq_pos_max(s) + 1 for s in seqs]
        if m < 1 or max(starts) + m > END:
            return
        expected = self.model.find(m * k)
        tokens = [(starts[i] + j, seqs[i]) for j in range(m) for i in range(k)]
        rows = np.concatenate([owner_rows(self.cells, {s}, 1) for _, s in tokens])
        extras = self.drawn_extras(m * k, first)
        positions = np.array([p for p, _ in tokens], np.int32)
        assert self.cells.place(positions, rows, False, extras).tolist() == expected
        drawn = rows_of(extras)
        for i, (cell, (pos, seq)) in enumerate(zip(expected, tokens, strict=True)):
            self.model.put([cell], [pos], {seq}, drawn and [drawn[i]])

    @rule(seq=IDS, p0=POSITIONS, p1=POSITIONS, everyone=st.integers(0, 4))
    def seq_rm(self, seq: int, p0: int, p1: int, everyone: int) -> None:
        which = -1 if everyone == 0 else self.seq(seq)
        self.cells.seq_rm(which, p0, p1)
        self.model.seq_rm(which, p0, p1)

    @precondition(lambda self: not self.streams)
    @rule(src=IDS, dst=IDS, p0=POSITIONS, p1=POSITIONS, whole=st.booleans())
    def seq_cp(self, src: int, dst: int, p0: int, p1: int, whole: bool) -> None:
        src, dst = self.seq(src), self.seq(dst)
        if whole:
            p0 = p1 = -1
        self.cells.seq_cp(src, dst, p0, p1)
        self.model.seq_cp(src, dst, p0, p1)

    @rule(seq=IDS)
    def seq_keep(self, seq: int) -> None:
        seq = self.seq(seq)
        if self.streams:
            return
        self.cells.seq_keep(seq)
        self.model.seq_keep(seq)

    @rule(seq=IDS, p0=POSITIONS, p1=POSITIONS, delta=st.one_of(st.integers(-9, 9), st.just(END)))
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        seq = self.seq(seq)
        if self.model.seq_add(seq, p0, p1, delta):
            self.cells.seq_add(seq, p0, p1, delta)
        else:
            with pytest.raises(ValueError, match="out of range"):
                self.cells.seq_add(seq, p0, p1, delta)

    @rule(seq=IDS, p0=POSITIONS, p1=POSITIONS, divisor=st.integers(1, 4))
    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        seq = self.seq(seq)
        self.cells.seq_div(seq, p0, p1, divisor)
        self.model.seq_div(seq, p0, p1, divisor)

    @rule(often=st.integers(0, 4))
    def clear(self, often: int) -> None:
        if often == 0:
            self.cells.clear()
            self.model.clear()

    @rule()
    def clear_shifts(self) -> None:
        self.cells.clear_shifts()
        self.model.clear_shifts()

    @precondition(lambda self: not self.streams)
    @rule(seq=IDS, p0=POSITIONS, p1=POSITIONS)
    def unshare(self, seq: int, p0: int, p1: int) -> None:
        seq = self.seq(seq)
        source = self.cells.shared(seq, p0, p1)
        shared = [
            i for i in self.model.matching(seq, p0, p1) if len(self.model.cells[i].owners) > 1
        ]
        assert sorted(source.tolist()) == shared
        others = {s for i in shared for s in self.model.cells[i].owners} - {seq}
        assert self.cells.sharers(seq, p0, p1) == sorted(others)
        target = self.cells.find(len(source))
        if len(target):
            self.cells.duplicate(source, target, seq, True)
            self.model.duplicate(source.tolist(), target.tolist(), seq, True)

    @precondition(lambda self: not self.streams)
    @rule(max_moves=st.integers(-1, 3))
    def defrag(self, max_moves: int) -> None:
        moves = self.cells.defrag_plan(max_moves)
        ids = self.model.defrag_ids(max_moves)
        planned = {a + i: b + i for a, b, n in moves for i in range(n)}
        top = self.model.top
        assert ids == [
            planned.get(i, i if c.pos >= 0 and i < self.model.used else top)
            for i, c in enumerate(self.model.cells[:top])
        ]
        self.cells.move(moves)
        self.model.move(ids)

    @precondition(lambda self: self.depth < 3)
    @rule()
    def begin(self) -> None:
        self.cells.begin()
        self.model.begin()
        self.depth += 1

    @precondition(lambda self: self.depth > 0)
    @rule(keep=st.booleans())
    def end(self, keep: bool) -> None:
        self.depth -= 1
        if keep:
            self.cells.commit()
            self.model.commit()
        else:
            self.cells.rollback()
            self.model.rollback()

    @rule(
        allowed=st.integers(0, 12),
        kind=st.integers(0, 7),
        a=IDS,
        b=IDS,
        p0=st.integers(0, 10),
        p1=st.integers(8, 40),
        journal=st.booleans(),
    )
    def fail_at_an_allocation(
        self, allowed: int, kind: int, a: int, b: int, p0: int, p1: int, journal: bool
    ) -> None:
        """An operation runs out of memory somewhere, or just does not; then it is done or undone."""
        a, b = self.seq(a), self.seq(b)
        cells, model = self.cells, self.model
        n = 3 if len(model.find(3, False, a if self.streams else 0)) else 0
        owners = {a} if self.streams else {a, b}
        rows, positions = owner_rows(cells, owners, n), np.array([p1, p0, p1][:n], dtype=np.int32)
        extras = self.drawn_extras(n, p0 + p1)
        moves = cells.defrag_plan(-1)
        ids = model.defrag_ids()
        if self.streams and kind in (1, 2, 7):
            return
        verbs: dict[int, Callable[[Any], None]] = {
            1: lambda of: of.seq_cp(a, b, p0, p1),
            2: lambda of: of.seq_keep(a),
            3: lambda of: of.seq_add(a, p0, p1, -4),
            4: lambda of: of.seq_div(a, p0, p1, 2),
            5: lambda of: of.seq_rm(a, p0, p1),
            6: lambda of: of.seq_rm(-1, p0, p1),
        }
        if journal:
            cells.begin()
        _native.fail_allocation(allowed)
        try:
            if kind == 0:
                placed = cells.place(positions, rows, False, extras)
            elif kind == 7:
                cells.move(moves)
            else:
                verbs[kind](cells)
        except MemoryError:
            _native.fail_allocation(-1)
            if journal:
                cells.rollback()
            return
        finally:
            _native.fail_allocation(-1)
        if journal:
            cells.rollback()
            return
        if kind == 0:
            model.put(placed.tolist(), positions.tolist(), owners, rows_of(extras))
        elif kind == 7:
            model.move(ids)
        else:
            verbs[kind](model)

    @rule(
        queries=st.lists(st.tuples(IDS, st.integers(0, 40)), min_size=1, max_size=4),
        causal=st.booleans(),
        window=st.sampled_from(["", "standard", "chunked"]),
        width=st.integers(1, 9),
    )
    def mask(self, queries: list[tuple[int, int]], causal: bool, window: str, width: int) -> None:
        seqs = np.array([self.seq(s) for s, _ in queries], dtype=np.int32)
        positions = np.array([p for _, p in queries], dtype=np.int32)
        n = self.cells.top
        out = np.ones((len(queries), n), dtype=np.bool_)
        yx = None
        if (extras := self.drawn_extras(len(queries), width)) is not None:
            yx = np.ascontiguousarray(extras[:, :2])
        count = mask(self.cells, positions, seqs, out, causal, window, width, yx)
        assert count == out.sum()
        for i, (s, p) in enumerate(zip(seqs.tolist(), positions.tolist(), strict=True)):
            at = None if yx is None else tuple(yx[i].tolist())
            seen = self.model.sees(s, p, causal, window, width, at)[:n]
            assert out[i].tolist() == seen
        listed, start, which, counts, _ = _native.seen_cells(
            self.cells, positions, seqs, causal, None, yx
        )
        for i, (s, p) in enumerate(zip(seqs.tolist(), positions.tolist(), strict=True)):
            at = None if yx is None else tuple(yx[i].tolist())
            first = start[which[i]]
            seen = self.model.sees(s, p, causal, yx=at)
            assert (
                sorted(listed[first : first + counts[i]].tolist()) == np.flatnonzero(seen).tolist()
            )

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "cells"):
            return
        type(self).operations += 1
        cells, model = self.cells, self.model
        cells.check()
        assert cells.positions.tolist() == [c.pos for c in model.cells]
        assert cells.shifts.tolist() == model.shifts()
        assert cells.has_shift == any(model.shifts())
        assert [set(cells.owners_of(i)) for i in range(model.size)] == [
            c.owners for c in model.cells
        ]
        if (kept := cells.extras) is not None:
            rows = zip(kept.tolist(), model.cells, strict=True)
            assert all(tuple(row) == c.extra for row, c in rows if c.pos >= 0)
        else:
            assert not self.extras
        assert cells.heads == model.heads
        assert (cells.used, cells.top, cells.map()) == (model.used, model.top, model.map())
        for s in {0, 1, model.n_seq_max - 1}:
            if s < model.n_seq_max:
                assert (cells.seq_pos_min(s), cells.seq_pos_max(s)) == model.span(s)
                assert cells.seq_cells(s) == len(model.positions(s))
                runs = cells.seq_runs(s)
                held = [(p + i, c + i) for p, c, n in runs for i in range(n)]
                own = [(c.pos, i) for i, c in enumerate(model.cells) if s in c.owners]
                assert sorted(held) == sorted(own)
                assert all((a[0] + a[2], a[1] + a[2]) != b[:2] for a, b in itertools.pairwise(runs))


class StreamsMachine(CellsMachine):
    streams = True


@pytest.mark.parametrize(("machine", "examples"), [(CellsMachine, 100), (StreamsMachine, 25)])
def test_random_operations(machine: type[CellsMachine], examples: int) -> None:
    machine.operations = 0
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert machine.operations >= 35 * examples
