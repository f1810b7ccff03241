"""The journal itself: frames that nest, old values put back, interrupts at any line, a second thread."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import numpy as np
import pytest

from aleator.cache import Cells
from aleator.cache.journal import Journal, Transaction, atomic
from aleator.core.errors import CacheBusy


class Thing:
    """One value of each kind that the journal knows."""

    def __init__(self) -> None:
        self.journal, self.cells = Journal(), Cells(8, 2)
        self.journal.enlist(self.cells)
        self.name, self.table, self.numbers = "a", {1: "one", 2: "two"}, np.arange(4)

    def seen(self) -> Any:
        positions = self.cells.positions.tolist()
        return self.name, dict(self.table), self.numbers.tolist(), positions

    def change(self, name: str) -> None:
        self.journal.set(self, "name", name)
        self.journal.put(self.table, 1, name)
        self.journal.put(self.table, 3, name)
        self.journal.drop(self.table, 2)
        self.journal.drop(self.table, 9)
        self.journal.undo(self.numbers.__setitem__, slice(0, 2), self.numbers[:2].copy())
        self.numbers[:2] += 7
        self.cells.place(np.array([len(name)], np.int32), np.ones((1, 1), np.uint64))

    @atomic
    def whole(self, name: str) -> str:
        """Changes it."""
        self.change(name)
        self.change(name * 2)
        return name


def test_what_is_raised_takes_everything_back() -> None:
    thing = Thing()
    before = thing.seen()

    def fail() -> None:
        thing.change("x")
        thing.change("xy")
        raise KeyError("no")

    with pytest.raises(KeyError):
        thing.journal.run(fail)
    assert thing.seen() == before
    assert thing.journal.depth == 0
    assert thing.journal.attempt(thing.whole, "xyz") == "xyz"
    assert thing.seen() == before
    assert thing.whole("q") == "q"
    assert thing.seen() == ("qq", {1: "qq", 3: "qq"}, [14, 15, 2, 3], [1, 2, *[-1] * 6])


def test_an_inner_frame_is_taken_back_alone_or_with_the_outer_one() -> None:
    thing = Thing()
    before = thing.seen()

    def inner() -> None:
        with Transaction(thing.journal):
            thing.change("xy")
            raise ValueError("inner")

    def outer() -> None:
        with Transaction(thing.journal):
            thing.change("x")
            middle = thing.seen()
            with pytest.raises(ValueError, match="inner"):
                inner()
            assert thing.seen() == middle
            thing.whole("xyz")
            with Transaction(thing.journal) as cancelled:
                assert thing.journal.current is cancelled
                thing.change("xyz")
                cancelled.cancel()
            raise KeyError

    with pytest.raises(KeyError):
        outer()
    assert thing.seen() == before
    assert thing.journal.current is None


def test_frames_have_numbers_of_their_own() -> None:
    journal = Journal()
    seen = [journal.frame]
    for _ in range(2):
        with Transaction(journal):
            seen.append(journal.frame)
            with Transaction(journal):
                seen.append(journal.frame)
            assert journal.frame == seen[-2]
    assert seen[0] == 0
    assert len(set(seen)) == 5


def test_calls_after_the_commit_are_made_once_all_is_done() -> None:
    thing = Thing()
    calls: list[int] = []
    with Transaction(thing.journal):
        with Transaction(thing.journal):
            thing.journal.after_commit(calls.append, thing.journal.depth)
        with Transaction(thing.journal) as other:
            thing.journal.after_commit(calls.append, -1)
            other.cancel()
        assert not calls
    assert calls == [2]
    thing.journal.after_commit(calls.append, 0)
    assert calls == [2, 0]


def test_a_step_entered_by_hand_ends_with_the_call_that_made_it() -> None:
    thing = Thing()
    before = thing.seen()

    def forget() -> None:
        Transaction(thing.journal).__enter__()
        thing.change("x")

    thing.journal.run(forget)
    assert (thing.seen(), thing.journal.depth) == (before, 0)


def test_a_call_that_is_interrupted_is_made_again() -> None:
    journal, left, done = Journal(), [3], []

    def put_back() -> None:
        left[0] -= 1
        if left[0]:
            raise KeyboardInterrupt
        done.append(journal.depth)

    def fail() -> None:
        journal.undo(put_back)
        raise ValueError

    with pytest.raises(KeyboardInterrupt):
        journal.run(fail)
    assert (done, journal.depth) == ([1], 0)


def test_an_interrupt_at_any_line_leaves_the_state_before_or_after() -> None:
    after = Thing()
    after.whole("zz")
    states = {}
    for stop in range(100):
        thing, count = Thing(), 0

        def tracer(frame: FrameType, event: str, arg: Any, stop: int = stop) -> Any:
            nonlocal count
            if event == "line":
                count += 1
                if count > stop:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return tracer

        sys.settrace(tracer)
        try:
            thing.whole("zz")
        except KeyboardInterrupt:
            states[stop] = thing.seen()
        finally:
            sys.settrace(None)
        if stop not in states:
            break
    assert len(states) > 15
    assert {str(s) for s in states.values()} <= {str(Thing().seen()), str(after.seen())}


def test_parts_cannot_join_within_a_frame() -> None:
    journal = Journal()
    with Transaction(journal), pytest.raises(RuntimeError, match="under way"):
        journal.enlist(Cells(4))


@pytest.mark.parametrize("timeout", [0.0, 0.05, None])
def test_a_second_thread_waits_or_is_told(timeout: float | None) -> None:
    thing = Thing()
    thing.journal.lock_timeout = timeout
    inside, leave, raised = threading.Event(), threading.Event(), []

    def first() -> None:
        def hold() -> None:
            inside.set()
            leave.wait(10)

        thing.journal.run(hold)

    def second() -> None:
        try:
            thing.whole("second")
        except CacheBusy as error:
            raised.append(error.timeout)

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    if timeout is not None:
        threads[1].join(10)
    assert thing.name == "a"
    leave.set()
    for thread in threads:
        thread.join(10)
    assert raised == ([] if timeout is None else [timeout])
    assert thing.name == ("secondsecond" if timeout is None else "a")
