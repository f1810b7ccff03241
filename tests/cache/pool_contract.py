"""What every pool does alike: a suite to inherit by the tests of a new one.

A subclass says how a pool is made, and what can be seen of it::

    class TestMine(PoolContract):
        def make(self) -> Pool:
            return MyPool(...)
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import aleator
from aleator.cache.batches import Cuts
from aleator.cache.cache import Step
from aleator.cache.journal import Journal
from aleator.cache.options import END
from aleator.cache.pools.pool import Pool
from aleator.core.errors import CacheError, CannotRewind, CannotShift, InvalidBatch, ParameterError
from aleator.generate import Batch

PACKAGE = str(Path(aleator.__file__).parent)
REFUSALS = (CannotRewind, CannotShift, ParameterError)


class PoolContract(ABC):
    """The tests; ``n_seq_max`` of the pools is 3, and they have room for 24 tokens at least."""

    @abstractmethod
    def make(self) -> Pool:
        """An empty pool."""

    def seen(self, pool: Pool) -> Any:
        """What can be seen of a pool."""
        ranges = [(pool.seq_pos_min(s), pool.seq_pos_max(s)) for s in range(3)]
        rewinds = [pool.oldest_rewind(s) for s in range(3)]
        return ranges, rewinds, pool.version, pool.journal.depth

    def plan(self, pool: Pool, n: int, seq: int = 0) -> Any:
        return pool.plan(Batch.one([1] * n, None, seq), Cuts(4, 8))

    def decode(self, pool: Pool, n: int, seq: int = 0) -> None:
        def change() -> None:
            plan = self.plan(pool, n, seq)
            pool.prepare(plan)
            for part in pool.micro_batches(plan):
                assert len(part.positions) <= 4

        pool.journal.run(change)

    def filled(self) -> Pool:
        pool = self.make()
        self.decode(pool, 8)
        self.decode(pool, 3, 1)
        pool.check()
        return pool

    def test_sequences_go_on(self) -> None:
        pool = self.filled()
        self.decode(pool, 2, 1)
        assert [pool.seq_pos_max(s) for s in range(3)] == [7, 4, -1]
        assert pool.has_exactly(0, 8)
        pool.check()

    def test_plans_change_nothing_and_become_void(self) -> None:
        pool = self.filled()
        before = self.seen(pool)
        plan = self.plan(pool, 6)
        assert len(plan) == 6
        assert self.seen(pool) == before
        self.decode(pool, 1)
        with pytest.raises(CacheError, match="plan again"), Step(pool, plan):
            pass

    def test_gaps_and_empty_batches_are_refused(self) -> None:
        pool = self.filled()
        for batch in (Batch(), Batch.one([1], 99, 0)):
            with pytest.raises(InvalidBatch):
                pool.plan(batch, Cuts(4, 8))

    def verbs(self) -> dict[str, Callable[[Pool], object]]:
        """What a pool may do or refuse."""
        return {
            "decode": lambda pool: self.decode(pool, 6),
            "seq_rm": lambda pool: pool.seq_rm(0, 0, END),
            "seq_rm_all": lambda pool: pool.seq_rm(-1, 0, END),
            "rewind": lambda pool: pool.seq_rm(0, 7, END),
            "middle": lambda pool: pool.seq_rm(0, 2, 4),
            "seq_cp": lambda pool: pool.seq_cp(0, 2, 0, END),
            "seq_keep": lambda pool: pool.seq_keep(1),
            "seq_add": lambda pool: pool.seq_add(0, 0, END, 3),
            "seq_div": lambda pool: pool.seq_div(0, 0, END, 2),
            "unshare": lambda pool: pool.unshare(0, 0, END),
            "clear": lambda pool: pool.clear(True),
            "shifts": lambda pool: pool.apply_shifts(),
        }

    def test_every_verb_does_it_or_refuses_with_a_typed_error(self) -> None:
        for name, verb in self.verbs().items():
            pool = self.filled()
            before = self.seen(pool)
            try:
                pool.journal.run(verb, pool)
            except REFUSALS:
                assert self.seen(pool) == before, name
            pool.check()

    def test_what_fails_is_taken_back(self) -> None:
        for name, verb in self.verbs().items():
            pool = self.filled()
            before = self.seen(pool)

            def fail(pool: Pool = pool, verb: Callable[[Pool], object] = verb) -> None:
                verb(pool)
                raise KeyError

            with pytest.raises((KeyError, *REFUSALS)):
                pool.journal.run(fail)
            assert self.seen(pool) == before, name
            pool.check()

    def test_an_interrupt_at_any_line_leaves_the_state_before_or_after(self) -> None:
        for name, verb in self.verbs().items():
            reference = self.filled()
            before = self.seen(reference)
            try:
                reference.journal.run(verb, reference)
            except REFUSALS:
                continue
            allowed = [before, self.seen(reference)]
            for stop in range(10**6):
                pool, reached = self.filled(), interrupted(verb, stop)
                if not reached(pool):
                    break
                assert self.seen(pool) in allowed, (name, stop)
                pool.check()

    def test_a_copy_that_is_held_serves_another_sequence(self) -> None:
        pool = self.filled()
        if not pool.holds(0, 8):
            pytest.skip("this pool holds no prefixes by itself")
        text = pool.n_seq_max
        pool.journal.run(pool.hold, 0, text, 8)
        pool.journal.run(pool.seq_rm, 0, 0, END)
        served = pool.usable_length(text, 8)
        pool.journal.run(pool.reuse_prefix, text, 2, served)
        assert pool.seq_pos_max(2) == served - 1
        pool.journal.run(pool.shorten, text, 0)
        pool.journal.run(pool.seq_rm, 2, 0, END)
        assert pool.usable_length(text, 8) in (0, 8)
        pool.check()

    def test_it_says_what_it_takes(self) -> None:
        pool = self.make()
        assert pool.bytes_k + pool.bytes_v > 0
        assert all(pool.addresses())
        assert all(leaf.leaves == [leaf] for leaf in pool.leaves)

    def test_it_joins_a_whole(self) -> None:
        pool, journal = self.make(), Journal()
        pool.join(journal)
        before = self.seen(pool)

        def fail() -> None:
            self.decode(pool, 5)
            raise KeyError

        with pytest.raises(KeyError):
            journal.run(fail)
        assert self.seen(pool) == before

    def test_owners_are_bits(self) -> None:
        pool = self.filled()
        owners = np.array([[0b100], [0b100]], np.uint64)
        at, seqs = np.array([0, 1], np.int32), np.array([2, 2], np.int32)
        batch = pool.journal.run(pool.place, at, seqs, owners)
        assert batch.positions.tolist() == [0, 1]
        assert pool.seq_pos_max(2) == 1
        pool.check()


def interrupted(verb: Callable[[Pool], object], stop: int) -> Callable[[Pool], bool]:
    """Makes a verb be interrupted at the package's line number ``stop``; whether there is such a line."""

    def attempt(pool: Pool) -> bool:
        count, reached = 0, False

        def tracer(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal count, reached
            if not frame.f_code.co_filename.startswith(PACKAGE):
                return None
            if event == "line":
                count += 1
                if count > stop:
                    sys.settrace(None)
                    reached = True
                    raise KeyboardInterrupt
            return tracer

        old = sys.gettrace()
        sys.settrace(tracer)
        try:
            pool.journal.run(verb, pool)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(old)
        return reached

    return attempt
