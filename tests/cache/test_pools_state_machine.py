"""Random edits of several pools within steps that stand within one another, some of them interrupted.

``ALEATOR_OPERATIONS=20000`` makes so many operations per kind of cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from interrupts import Raiser

from tests.cache.test_hybrid import ALL, SEQS, Pools

OPERATIONS = int(os.environ.get("ALEATOR_OPERATIONS", "300"))
STEPS = 30


class SteppedPools(Pools):
    """Edits, and around them steps; an edit may be interrupted at a line of the package."""

    counted = interrupted = undone = 0

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[Any, dict[int, list[int]], Any]] = []
        self.at: int | None = None

    @precondition(lambda self: len(self.open) < 3)
    @rule()
    def begin(self) -> None:
        step = self.cache.step()
        texts = {seq: list(text) for seq, text in self.texts.items()}
        self.open.append((step, texts, self.seen()))
        step.__enter__()

    @precondition(lambda self: self.open)
    @rule()
    def commit(self) -> None:
        before = self.seen()
        self.open.pop()[0].__exit__(None, None, None)
        # States of cached prefixes beyond their limit go at the end of the outermost step.
        same = 4 if self.open else 3
        assert self.seen()[:same] == before[:same]

    @precondition(lambda self: self.open)
    @rule(cancelled=st.booleans())
    def roll_back(self, cancelled: bool) -> None:
        step, texts, before = self.open.pop()
        if cancelled:
            step.cancel()
            step.__exit__(None, None, None)
        else:
            error = KeyError()
            step.__exit__(KeyError, error, None)
        type(self).undone += 1
        assert self.seen() == before
        self.texts = texts

    @rule(at=st.integers(1, 250))
    def interrupt_the_next(self, at: int) -> None:
        self.at = at

    @rule(threshold=st.sampled_from([None, 0.1]), asked=st.booleans())
    def defrag(self, threshold: float | None, asked: bool) -> None:
        def change() -> None:
            if asked:
                self.cache.do_defrag = True
                self.cache.update()
            else:
                self.cache.defrag(threshold)

        if self.policy == "unified":
            self._try(change, self.texts)
            self.cache.do_defrag = False

    @rule(seq=SEQS)
    def through_a_handle(self, seq: int) -> None:
        """A handle's end gives up the sequence."""
        handle = self.cache.sequence(seq)
        assert handle.next == len(self.texts[seq])
        self._try(handle.close, self.texts | {seq: []})

    @rule(
        lengths=st.dictionaries(SEQS, st.integers(1, 7), min_size=1),
        fail=st.one_of(st.none(), st.none(), st.integers(0, 3)),
        n_ubatch=st.integers(1, 8),
    )
    def decode(self, lengths: dict[int, int], fail: int | None, n_ubatch: int = 4) -> None:
        self._counted()
        self._interrupted(lambda: super(SteppedPools, self).decode(lengths, fail, n_ubatch))

    @rule(seq=SEQS, length=st.integers(1, 16))
    def keep(self, seq: int, length: int) -> None:
        self._counted()
        self._interrupted(lambda: super(SteppedPools, self).keep(seq, length))

    def _bounded(self, books: Any) -> None:
        if not self.open:  # rows that an open step would bring back are held beside the others
            super()._bounded(books)

    def _counted(self) -> None:
        type(self).counted += 1

    def _interrupted(self, change: Callable[[], object]) -> None:
        """Make a change under the interrupt that was asked for; what it does is compared elsewhere."""
        at, self.at = self.at, None
        if at is None:
            change()
            return
        error = Raiser("line", at).run(change)
        if error is not None and not isinstance(error, KeyboardInterrupt):
            raise error
        type(self).interrupted += error is not None

    def _try(
        self, change: Callable[[], object], texts: dict[int, list[int]], failing: int = -1
    ) -> bool:
        """Make a change; interrupted, it has been made or not, and then it is made again."""
        self._counted()
        at, self.at = self.at, None
        if at is not None:
            before = self.seen()
            error = Raiser("line", at).run(change)
            if isinstance(error, KeyboardInterrupt):
                type(self).interrupted += 1
            changed = self.seen() != before
            if error is None or changed:
                assert error is None or isinstance(error, KeyboardInterrupt)
                self.texts = texts
                return True
        return super()._try(change, texts, failing)

    def teardown(self) -> None:
        while self.open:
            self.open.pop()[0].__exit__(None, None, None)
        self.cache.check()
        assert self.cache.journal.current is None


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_random_edits_within_steps(kind: type[Pools]) -> None:
    machine: Any = type(f"Stepped{kind.__name__}", (SteppedPools, kind), {})
    checked = settings(
        max_examples=max(1, OPERATIONS // STEPS),
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    run_state_machine_as_test(machine, settings=checked)
    if OPERATIONS >= 2000:
        assert machine.undone
        assert machine.interrupted
