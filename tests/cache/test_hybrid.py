"""Caches of several pools: random edits, failures and cached prefixes against the texts that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from aleator._native import fail_allocation
from aleator.cache.kv_cache import HybridCache, LayerShape
from aleator.cache.pools.kept_states import kept_rows
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.recurrent_rows import RecurrentShape
from aleator.cache.pools.window import WindowPool
from aleator.cache.prefix_index import PrefixConfig
from aleator.cache.rows.rows import Rows
from aleator.core.errors import CacheFull, CannotRewind, ParameterError
from aleator.generate import Batch

ONE = LayerShape(1, 1, 1)
WINDOW = 4
SEQS = st.integers(0, 2)


def hashed(text: list[int]) -> int:
    """What the state after a text holds."""
    value = 0
    for token in text:
        value = (value * 31 + token) % 65521
    return value


class Pools(RuleBasedStateMachine):
    """A key is its token, a state a hash of its text; so what a cell or row stands for can be read from it."""

    windowed = stateful = keeps = True
    room = 0  # more window cells for cached prefixes
    policy = "unified"

    def __init__(self) -> None:
        super().__init__()
        prefix = PrefixConfig(block=2, texts=3, spacing=4, bytes=96) if self.keeps else None
        f32: Any = {"type_k": "f32", "type_v": "f32", "rotate": lambda layer, keys, deltas: keys}
        f32["policy"] = self.policy
        self.window = self.states = None
        if self.windowed:
            self.window = WindowPool(
                [ONE],
                (16 if self.policy == "unified" else 36) + self.room,
                window=WINDOW,
                n_seq_max=3,
                n_kept=3 if self.keeps else 0,
                ring=not self.keeps,
                **f32,
            )
        if self.stateful:
            shapes = [RecurrentShape(1, 1, 1)]
            self.states = RecurrentPool(
                shapes, n_seq_max=3, rollback=2, kept_rows=kept_rows(prefix, 3, shapes)
            )
        self.cache = HybridCache(
            [ONE], 48, window=self.window, recurrent=self.states, n_seq_max=3, prefix=prefix, **f32
        )
        self.texts: dict[int, list[int]] = {s: [] for s in range(3)}
        self.marks: list[tuple[Any, list[int]]] = []
        self.counter = 0

    def seen(self) -> tuple[Any, ...]:
        """Everything that can be seen of the cache."""
        pools: list[Any] = [self.cache.first, *([self.window] if self.window else [])]
        cells = [(p.cells.positions.tolist(), p.cells.owners.tolist()) for p in pools]
        keys = [p.rows.keys.layers[0].reshape(-1)[p.cells.positions >= 0] for p in pools]
        kept = [(t.seq, t.tokens.tolist(), list(t.used)) for t in self.cache.prefix or ()]
        rows: list[Any] = []
        if self.states:
            held = dict(sorted(self.states.states.book().items()))
            rows = [
                (s, [(float(self.states.ssm[0][r].item()), p) for r, p in h])
                for s, h in held.items()
            ]
        return cells, [k.tolist() for k in keys], sorted(kept), rows

    @rule(
        lengths=st.dictionaries(SEQS, st.integers(1, 7), min_size=1),
        fail=st.one_of(st.none(), st.none(), st.integers(0, 3)),
        n_ubatch=st.integers(1, 8),
    )
    def decode(self, lengths: dict[int, int], fail: int | None, n_ubatch: int = 4) -> None:
        batch, tokens = Batch(), []
        for seq, n in lengths.items():
            for _ in range(n):
                self.counter += 1
                batch.add(0, None, [seq])
                tokens.append(self.counter)
        before = self.seen()
        try:
            with self.cache.step(self.cache.plan(batch, n_ubatch=n_ubatch)) as step:
                for index, part in enumerate(step):
                    self._write(part, np.array(tokens)[part.tokens].tolist())
                    if index == fail:
                        raise KeyboardInterrupt
        except (KeyboardInterrupt, CacheFull):
            assert self.seen() == before
            return
        for owners, token in zip(batch.sequences, tokens, strict=True):
            self.texts[owners[0]].append(token)

    def _write(self, part: Any, tokens: list[int]) -> None:
        values = np.array(tokens, np.float32).reshape(-1, 1, 1)
        for cells, pool in ((part.base, self.cache.first), (part.window, self.window)):
            if cells is not None and pool is not None:
                for side in (pool.rows.keys, pool.rows.values):
                    side.parts[0].write(cells.cell_ids, values)
        for run in part.recurrent.runs if part.recurrent else ():
            value = 0 if run.source < 0 else int(part.recurrent.ssm[0][run.source].item())
            stores = dict(run.stores)
            for i, token in enumerate(run.tokens):
                value = (value * 31 + tokens[token]) % 65521
                if i in stores:
                    part.recurrent.ssm[0][stores[i]] = value

    def _try(
        self, change: Callable[[], object], texts: dict[int, list[int]], failing: int = -1
    ) -> bool:
        """Make a change, or see that nothing has changed; ``failing``: the allocation that fails."""
        before = self.seen()
        fail_allocation(failing)
        try:
            change()
        except (CannotRewind, ParameterError, CacheFull, MemoryError):
            fail_allocation(-1)
            assert self.seen() == before
            return False
        finally:
            fail_allocation(-1)
        self.texts = texts
        return True

    @rule(seq=SEQS, back=st.integers(0, 9), failing=st.integers(1, 12))
    def rewind_without_memory(self, seq: int, back: int, failing: int) -> None:
        n = max(0, len(self.texts[seq]) - back)
        left = self.texts | {seq: self.texts[seq][:n]}
        self._try(lambda: self.cache.seq_rm(seq, n, -1), left, failing)

    @rule(src=SEQS, dst=SEQS, failing=st.integers(1, 12))
    def fork_without_memory(self, src: int, dst: int, failing: int) -> None:
        if src != dst:
            self.cache.seq_rm(dst)
            self.texts[dst] = []
            copied = self.texts | {dst: list(self.texts[src])}
            self._try(lambda: self.cache.seq_cp(src, dst), copied, failing)

    @rule(seq=SEQS, back=st.integers(0, 9))
    def rewind(self, seq: int, back: int) -> None:
        n = max(0, len(self.texts[seq]) - back)
        oldest = self.cache.oldest_rewind(seq)
        done = self._try(
            lambda: self.cache.seq_rm(seq, n, -1), self.texts | {seq: self.texts[seq][:n]}
        )
        assert done or 0 < n < oldest
        assert self.cache.oldest_rewind(seq) <= oldest
        if not done:
            with pytest.raises(CannotRewind) as caught:
                self.cache.seq_rm(seq, n, -1)
            assert caught.value.oldest_legal == oldest

    @rule(src=SEQS, dst=SEQS, upto=st.one_of(st.none(), st.integers(0, 20)))
    def fork(self, src: int, dst: int, upto: int | None) -> None:
        if src != dst:
            self.cache.seq_rm(dst)
            self.texts[dst] = []
            end = -1 if upto is None else upto
            text = self.texts[src][:upto]
            oldest = self.cache.oldest_rewind(src)
            done = self._try(lambda: self.cache.seq_cp(src, dst, 0, end), self.texts | {dst: text})
            exact = upto is None or upto == 0 or upto >= oldest
            # With room a window may hold a whole beginning and lack later cells.
            assert done == exact or (done and self.room) or self.policy == "streams"

    @rule(seq=SEQS)
    def mark(self, seq: int) -> None:
        if self.texts[seq]:
            self.marks.append((self.cache.checkpoint(seq), list(self.texts[seq])))

    @rule(seq=SEQS, data=st.data())
    def restore(self, seq: int, data: st.DataObject) -> None:
        fits = [m for m in self.marks if self.texts[seq][: len(m[1])] == m[1]]
        if fits:
            mark, text = data.draw(st.sampled_from(fits))
            self._try(lambda: self.cache.restore(seq, mark), self.texts | {seq: list(text)})

    @rule(seq=SEQS, length=st.integers(1, 16))
    def keep(self, seq: int, length: int) -> None:
        if self.texts[seq]:
            self.cache.keep(seq, self.texts[seq][:length])

    @rule(src=SEQS, dst=SEQS, length=st.integers(1, 20))
    def reuse(self, src: int, dst: int, length: int) -> None:
        text = [*self.texts[src][:length], 0]
        if src != dst:
            self.cache.seq_rm(dst)
            n = self.cache.reuse(dst, text)
            assert n == max([0, *(self._longest(kept, text) for kept in self.cache.prefix or ())])
            self.texts[dst] = text[:n]

    def _longest(self, kept: Any, text: list[int]) -> int:
        """The longest beginning of a text that all pools can go on from, one by one."""
        n, same = 0, 0
        while same < min(len(text), len(kept.tokens)) and kept.tokens[same] == text[same]:
            same += 1
        for length in range(1, min(same, len(text) - 1) + 1):
            ok = True
            if self.window:
                cells = self.window.cells.seq_cell_list(kept.seq)
                held = set(self.window.cells.positions[cells].tolist())
                ok = set(range(max(0, length - WINDOW + 1), length)) <= held
            if self.states:
                ok &= any(p == length - 1 for _, p in self.states.states.book().get(kept.seq, ()))
            n = length if ok else n
        return n

    @invariant()
    def agrees(self) -> None:
        self.cache.check()
        kept = {text.seq: text.tokens.tolist() for text in self.cache.prefix or ()}
        for seq, text in (self.texts | kept).items():
            self._holds(self.cache.first, seq, text, range(len(text)))
            if self.window:
                low = max(0, len(text) - WINDOW + 1) if seq < 3 else len(text)
                self._holds(self.window, seq, text, range(low, len(text)))
        if self.states:
            books: Any = self.cache.kept
            kept |= {books.number(seq): text for seq, text in self.texts.items()}
            for seq, history in self.states.states.book().items():
                text = self.texts[seq] if seq < 3 else kept[seq]
                for row, position in history:
                    assert int(self.states.ssm[0][row].item()) == hashed(text[: position + 1])
            self._bounded(books)

    def _bounded(self, books: Any) -> None:
        assert books.held() <= books.limit

    def _holds(self, pool: Any, seq: int, text: list[int], least: range) -> None:
        cells = pool.cells.seq_cell_list(seq)
        positions = pool.cells.positions[cells].tolist()
        assert set(least) <= set(positions) <= set(range(len(text)))
        keys = pool.rows.keys.layers[0].reshape(-1)[cells]
        assert [int(k) for k in keys] == [text[p] for p in positions]


class WindowPools(Pools):
    stateful = False


class RoomyWindowPools(Pools):
    stateful = False
    room = 12


class RingPools(Pools):
    """As llama.cpp takes cells."""

    stateful = keeps = False


class RingsPools(RingPools):
    policy = "streams"


class RecurrentPools(Pools):
    windowed = False


ALL = [Pools, WindowPools, RoomyWindowPools, RingPools, RingsPools, RecurrentPools]


@pytest.mark.parametrize("machine", ALL)
def test_random_edits(machine: type[Pools]) -> None:
    checked = settings(max_examples=30, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(machine, settings=checked)


@pytest.mark.parametrize("machine", [Pools, RingPools])
def test_a_clear_is_all_or_none(machine: type[Pools], monkeypatch: pytest.MonkeyPatch) -> None:
    pools = machine()
    pools.decode({0: 5, 1: 3}, None)
    before = pools.seen()
    last = pools.cache.followers[-1]

    def fail(data: bool = True) -> None:
        raise KeyError

    with monkeypatch.context() as patch:
        patch.setattr(last, "clear", fail)
        with pytest.raises(KeyError):
            pools.cache.clear()
    assert pools.seen() == before
    pools.agrees()
    pools.cache.clear()
    stored = [p.rows.keys.layers[0] for p in (pools.cache.first, pools.window) if p]
    stored += pools.states.ssm if pools.states else []
    assert not any(t.any() for t in stored)
    pools.texts = {s: [] for s in range(3)}
    pools.agrees() if pools.keeps else pools.cache.check()


@pytest.mark.parametrize(("window", "recurrent"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("changed", ["window", "recurrent", "both"])
def test_a_checkpoint_of_other_pools_is_refused(
    window: bool, recurrent: bool, changed: str
) -> None:
    class Some(Pools):
        windowed, stateful, keeps = window, recurrent, False

    class All(Pools):
        keeps = False

    pools, other = Some(), All()
    for each in (pools, other):
        each.decode({0: 3}, None)
    mark, foreign = pools.cache.checkpoint(0), other.cache.checkpoint(0)
    parts: dict[str, Any] = {}
    for name in ("window", "recurrent"):
        if changed in (name, "both"):  # what is there goes away, what is not there comes
            parts[name] = None if getattr(mark, name) is not None else getattr(foreign, name)
    pools.cache.seq_rm(0, 2, -1)
    before = pools.seen()
    with pytest.raises(ParameterError, match="of a cache with other pools"):
        pools.cache.restore(0, replace(mark, **parts))
    assert pools.seen() == before


def test_a_checkpoint_whose_window_has_other_rows_is_refused_before_anything_changes() -> None:
    class Other(Pools):
        keeps = False

    pools = Other()
    pools.decode({0: 3}, None)
    mark: Any = pools.cache.checkpoint(0)
    pools.cache.seq_rm(0, 2, -1)
    before = pools.seen()
    foreign = replace(mark.window, rows=())
    with pytest.raises(ParameterError, match="of another shape or type"):
        pools.cache.restore(0, replace(mark, window=foreign))
    assert pools.seen() == before


@pytest.mark.parametrize("how", ["clear", "seq_rm", "seq_keep", "state_read"])
def test_what_is_gone_is_not_incomplete(how: str) -> None:
    pools = WindowPools()
    pools.decode({1: 3}, None)
    cache: Any = pools.cache
    given = {"clear": (), "seq_rm": (-1,), "seq_keep": (1,), "state_read": (cache.state_write(),)}
    cache.pool.begin(0)
    getattr(cache, how)(*given[how])
    assert not cache.pool.incomplete
    cache.pool.begin(1)
    cache.seq_keep(1)
    assert cache.pool.incomplete == {1}


@pytest.mark.parametrize("machine", [WindowPools, RingPools])
def test_a_state_that_is_read_keeps_aside_only_what_was_used(
    machine: type[Pools], monkeypatch: pytest.MonkeyPatch
) -> None:
    aside: list[int] = []
    preserve = Rows.preserve

    def counted(rows: Rows, journal: Any, cells: Any) -> None:
        aside.extend(cells.tolist())
        preserve(rows, journal, cells)

    monkeypatch.setattr(Rows, "preserve", counted)
    pools = machine()
    pools.decode({0: 6}, None, n_ubatch=8)
    state = pools.cache.state_write(0)
    pools.cache.state_read(state, 1)
    pools.texts[1] = list(pools.texts[0])
    pools.agrees()
    assert aside == []
    pools.decode({0: 7, 2: 7}, None, n_ubatch=8)
    before = pools.seen()

    def fails() -> None:
        for seq in range(3):
            pools.cache.seq_rm(seq)
        for seq in range(3):
            pools.cache.state_read(state, seq)
        raise KeyError

    with pytest.raises(KeyError):
        pools.cache.journal.run(fails)
    assert aside
    assert pools.seen() == before
    pools.agrees()


def test_a_sequence_is_incomplete_until_all_of_it_is_removed() -> None:
    window = WindowPool([LayerShape(1, 4, 4)], 12, window=4, n_seq_max=2)
    pool: Any = HybridCache([], 12, window=window, n_seq_max=2).pool
    for start, left in ((1, {0}), (2, {0}), (0, set()), (-1, set())):
        pool.begin(0)
        pool.seq_rm(0, start, -1)
        assert pool.incomplete == left
    pool.begin(0)
    pool.begin(1)
    pool.complete(1)
    assert pool.incomplete == {0}
    pool.complete(-1)
    assert pool.incomplete == frozenset()
