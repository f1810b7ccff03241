"""How long a load waits for a tier, by a clock that is told, and how much it asks of it ahead."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from aleator.cache.block_store import Counts
from aleator.generate import prefix_load
from aleator.generate.prefix_load import (
    AHEAD,
    LEAST,
    LOOKING,
    MAX_WAIT,
    Candidate,
    LookUp,
    PrefixLoad,
)


class Waiting:
    """A load of ten tokens beyond two that are held, whose look-up has not come; and what is done meanwhile."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        speed: float | None,
        alone: bool,
        candidates: Sequence[Candidate] = (),
    ) -> None:
        self.now, self.waits, self.used = 100.0, list[float](), list[Any]()
        self.asked = list[bytes]()
        pool = SimpleNamespace(cells_of=lambda pool: None, has_states=lambda pool: False)
        monkeypatch.setattr(prefix_load, "pieces", pool)
        monkeypatch.setattr(prefix_load, "perf_counter", lambda: self.now)
        monkeypatch.setattr(
            prefix_load, "wait", lambda futures, timeout: self.waits.append(timeout)
        )
        self.counts = Counts()
        tiers: Any = SimpleNamespace(
            computing=SimpleNamespace(seconds=lambda n: None if speed is None else speed * n),
            stores=[SimpleNamespace(counts=Counts()), SimpleNamespace(counts=self.counts)],
            used=lambda *given: self.used.append(given), failed=pytest.fail, ask=self.ask,
            is_worth=lambda entries, missing: True,
        )  # fmt: skip
        cache: Any = SimpleNamespace(pool=None)
        self.future: Future[Any] = Future()
        self.load = PrefixLoad(
            cache, tiers, "m", 0, 2, 12, LookUp([], self.future), lambda found: candidates,
            lambda n: pytest.fail(f"kept {n}"), None if alone else (lambda: None),
        )  # fmt: skip

    def ask(self, entry: Any, model: str) -> Future[Any]:
        self.asked.append(entry.key)
        return Future()


@pytest.mark.parametrize(
    ("speed", "seconds"), [(0.5, 5.0), (None, MAX_WAIT), (LOOKING / 100, LOOKING), (0.1, 1.0)]
)
def test_a_load_is_late_when_computing_would_have_been_done(
    speed: float | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(monkeypatch, speed, alone=False)
    for after, late in ((0.0, False), (seconds, False), (seconds * 1.001, True)):
        waiting.now = 100.0 + after
        assert waiting.load.late is late
        assert not waiting.load.ready
        assert not waiting.load.go_on()
        assert waiting.load.done is late
        assert waiting.counts["given_up"] == late
    assert waiting.waits == []  # steps go on meanwhile
    assert waiting.used == [((), set(), 0)]


@pytest.mark.parametrize(("after", "waits"), [(0.0, 5.0), (2.0, 3.0), (5.0, 0.0), (7.0, 0.0)])
def test_who_loads_alone_waits_for_the_rest_of_that_time(
    after: float, waits: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(monkeypatch, 0.5, alone=True)
    waiting.now += after
    assert not waiting.load.go_on()
    assert waiting.waits == [waits]
    assert waiting.load.done
    assert waiting.counts["given_up"] == 1


@pytest.mark.parametrize("alone", [True, False])
def test_a_look_up_that_finds_nothing_ends_a_load(
    alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(monkeypatch, 0.5, alone)
    waiting.future.set_result({})
    assert waiting.load.ready
    assert not waiting.load.go_on()
    assert (waiting.load.done, waiting.load.length, waiting.load.ready) == (True, 2, False)
    assert (waiting.waits, waiting.counts["given_up"]) == ([], 0)


KEYS = [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize(
    ("size", "asked"), [(1, 5), (AHEAD // 2 - 1, 3), (AHEAD // 2, 2), (AHEAD - 1, 2), (AHEAD, 1)]
)
def test_entries_are_asked_for_ahead_up_to_so_many_bytes(
    size: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(monkeypatch, 0.5, False, [Candidate(100, KEYS, None)])
    waiting.future.set_result({key: SimpleNamespace(key=key, size=size) for key in KEYS})
    assert not waiting.load.go_on()
    assert waiting.asked == KEYS[:asked]
    assert not waiting.load.done


@pytest.mark.parametrize(("n", "loads"), [(LEAST - 1, False), (LEAST, True), (40, True)])
def test_few_tokens_are_not_loaded_and_many_have_their_time(
    n: int, loads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(monkeypatch, 0.5, False, [Candidate(2 + n, KEYS[:1], b"end")])
    waiting.future.set_result({key: SimpleNamespace(key=key, size=9) for key in (*KEYS, b"end")})
    waiting.now = 104.0
    assert not waiting.load.go_on()
    assert waiting.load.done is not loads
    assert waiting.asked == ([b"a", b"end"] if loads else [])
    if loads:  # from when it was asked for
        for after, late in ((0.5 * n, False), (0.5 * n + 0.1, True)):
            waiting.now = 104.0 + after
            assert waiting.load.late is late
