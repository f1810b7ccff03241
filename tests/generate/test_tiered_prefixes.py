"""What tiers are given of prompts, what is looked up in them and what comes from there: as recorded.

Texts are the same whatever a tier has (test_prompt_tiers.py).  ALEATOR_RECORD=1 records a change that is meant.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aleator.cache.block_store import Entry, Sections
from aleator.cache.disk_store import DiskStore
from aleator.generate import prefix_load, prompt_tiers
from aleator.generate.prompt_tiers import PromptTiers
from tests.drawn import recorded
from tests.generate.test_prompt_tiers import ids, load, made
from tests.generate.test_prompt_tiers import paths as paths
from tests.generate.test_prompt_tiers import reading_is_worth_it as reading_is_worth_it

PROMPTS = {
    **{f"{n}": ids(n) for n in (400, 401, 399, 256, 257, 128, 129, 127, 160, 161)},
    "one more": [*ids(400), 9],
    "another end": [*ids(400)[:390], 3],
    "another middle": [*ids(400)[:300], 3, *ids(400)[301:]],
    **{f"short {n}": ids(n, 6) for n in (31, 32, 33, 34, 65)},
    "short, twice": ids(65, 6),
    "long": ids(900),
    "longer": ids(950),
}


def plain(value: Any) -> Any:
    """An argument without what differs between two runs: keys, and the model's name."""
    if isinstance(value, Entry):
        return value.length, value.size
    if isinstance(value, bytes):
        return "key"
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, tuple | list):
        each = [plain(one) for one in value]
        return len(each) if each and set(map(str, each)) == {"key"} else each
    return bool(value) if isinstance(value, str | dict) else value


def watched(tiers: PromptTiers, noted: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def noting(name: str, done: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            noted.append([name, *map(plain, given)])
            return done(*given)

        return called

    for name in ("look_up", "known", "put", "ask", "used", "is_worth", "waits", "peek"):
        monkeypatch.setattr(tiers, name, noting(name, getattr(tiers, name)))


@pytest.mark.parametrize("kind", ["llama", "gemma3", "jamba", "mamba"])
def test_what_tiers_are_asked_and_given(
    kind: str, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(paths[kind], cache_ram=2**30)
    tiers = model.prompt_tiers
    assert tiers is not None
    noted: list[Any] = []
    watched(tiers, noted, monkeypatch)
    told: dict[str, Any] = {}
    for name, prompt in PROMPTS.items():
        for again in ("", ", again"):
            *_, reused = made(model, prompt)
            told[name + again] = [reused, *noted]
            noted.clear()
            if not again or name == "short 65":
                model.own_context().cache.forget_namespace("")
    counts = {store: dict(sorted(each.items())) for store, each in tiers.tell().items()}
    told["counts"] = [counts, dict(tiers.counts)]
    told = {name: repr(each) for name, each in told.items()}
    assert told == recorded("tiers", kind, told)


def entry(n: int, parent: bytes = b"p", size: int = 100) -> Entry:
    return Entry(b"k%d" % n, parent, 128 * n, size)


@pytest.mark.parametrize(
    ("reading", "computing", "worth"),
    [(None, None, True), (None, 1.0, True), (1.0, None, True), (1.0, 2.0, True), (1.0, 1.0, True),
     (1.0, 0.99, False)],
)  # fmt: skip
def test_reading_is_worth_it_unless_it_is_known_to_take_longer(
    reading: float | None, computing: float | None, worth: bool
) -> None:
    """Of entries of 200 bytes in place of ten tokens; what is in memory takes no time."""
    tiers = PromptTiers(1000, 0)
    if reading is not None:
        tiers.reading.observe(200, reading)
    if computing is not None:
        tiers.computing.observe(10, computing)
    assert tiers.is_worth([entry(1), entry(2)], 10) is worth
    assert tiers.tell() == {"ram": {} if worth else {"computed_instead": 1}}
    tiers.put([], [(entry(1), {})], "m")
    assert tiers.is_worth([entry(1), entry(2)], 10)


def test_what_finds_room_in_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_tiers, "QUEUED", 250)
    goes_on, put = threading.Event(), DiskStore.put
    monkeypatch.setattr(DiskStore, "put", lambda *given: goes_on.wait(60) and put(*given))
    tiers = PromptTiers(0, 2**20, tmp_path)
    assert (tiers.room, tiers.waits(b"k1"), tiers.flush(0)) == (250, False, True)
    tiers.put([b"k1"], [(entry(n), {"cells": b"x" * 100}) for n in (1, 2, 3)], "m")
    assert (tiers.room, tiers.counts["dropped"]) == (50, 1)
    assert [tiers.waits(b"k%d" % n) for n in (1, 2, 3)] == [True, True, False]
    tiers.put([], [(entry(4, size=50), {"cells": b"x" * 50})], "m")
    assert (tiers.room, tiers.counts["dropped"]) == (0, 1)
    tiers.put([], [(entry(5, size=1), {"cells": b"x"})], "m")
    assert tiers.counts["dropped"] == 2
    assert not tiers.flush(0)
    goes_on.set()
    assert tiers.flush(60)
    assert (tiers.room, tiers.waits(b"k1")) == (250, False)
    assert {key for p in (b"p",) for key in tiers.find([p])} == {b"k1", b"k2", b"k4"}
    assert tiers.known([b"p"]).keys() == {b"k1", b"k2", b"k4"}
    tiers.drop(entry(2))
    assert tiers.known([b"p"]).keys() == {b"k1", b"k4"}
    tiers.forget(b"p")
    assert not tiers.find([b"p"])
    assert not tiers.known([b"p"])
    tiers.close(60)
    assert PromptTiers(1000, 0).room == math.inf
    assert not PromptTiers(1000, 0).waits(b"k")


@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_what_a_load_costs_is_placing_and_an_estimate_of_reading(
    tier: str, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(paths["llama"], cache_ram=2**30)
    made(model, ids(400))
    context, tiers = model.own_context(), model.prompt_tiers
    context.cache.forget_namespace("")
    prefixes = model.tiers_of(context)
    assert prefixes is not None
    assert tiers is not None
    clock = itertools.count()
    monkeypatch.setattr(prefix_load, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(tiers.memory, "name", tier)
    monkeypatch.setattr(tiers.reading, "seconds", lambda amount: 2.0 * amount)
    held, loading = prefixes.begin(0, ids(400), wake=lambda: None)
    assert loading is not None
    assert (held, loading.ready) == (0, True)
    size = sum(entry.size for entry in loading._found.values())
    assert loading.go_on(0)  # a piece at least
    assert (loading.length, loading.done) == (128, False)
    assert loading.go_on()
    assert (loading.length, loading.done) == (384, True)
    assert loading.seconds == 3 + (0 if tier == "ram" else 2 * size)
    assert not loading.go_on()
    assert not loading.ready


def entry_of(i: int) -> tuple[Entry, Sections]:
    return Entry(bytes([i]) * 32, b"p" * 32, 128, 100), {"cells": bytes([i]) * 100}


def test_entries_come_from_the_first_tier_that_has_them(tmp_path: Path) -> None:
    tiers = PromptTiers(2000, 2**20, tmp_path)
    one, two = entry_of(1), entry_of(2)
    tiers.put([one[0].key], [one], "m")
    assert tiers.flush(30)
    assert tiers.memory is not None
    for name in ("ram", "disk", "ram"):
        found = tiers.get(one[0], "m")
        assert found is not None
        assert (found[0], bytes(found[1]["cells"])) == (name, one[1]["cells"])
        if name == "ram":
            tiers.memory.drop(one[0].key)
    assert tiers.get(two[0], "m") is None
    tiers.close()


def test_a_bad_entry_is_dropped_from_every_tier(tmp_path: Path) -> None:
    tiers = PromptTiers(2000, 2**20, tmp_path)
    one = entry_of(1)
    tiers.put([one[0].key], [one], "m")
    assert tiers.flush(30)
    tiers.drop(one[0])
    assert tiers.disk is not None
    end = time.monotonic() + 30
    while tiers.disk.get(one[0].key) is not None:  # a thread drops it
        assert time.monotonic() < end
    assert tiers.get(one[0], "m") is None
    assert not tiers.find([one[0].parent])
    tiers.close()
    memory = PromptTiers(2000, 0)
    memory.put([one[0].key], [one], "m")
    memory.drop(one[0])
    assert memory.get(one[0], "m") is None


def test_what_no_thread_will_do_is_cancelled_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, memory = PromptTiers(0, 2**20, tmp_path), PromptTiers(2000, 0)
    with monkeypatch.context() as patch:
        patch.setattr(DiskStore, "close", lambda store: None)  # a thread may still hold it
        closed.close()
    assert closed.look_up([b"p" * 32]).cancelled()
    for tiers in (closed, memory):
        assert tiers.ask(entry_of(1)[0], "m").cancelled()
    closed.close()
    for tiers in (closed, memory):
        assert tiers.ask(entry_of(1)[0], "m").cancelled()
        assert tiers.look_up([b"p" * 32]).result() == {}


def test_the_end_of_the_interpreter_closes_all_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    made = [SimpleNamespace(close=partial(closed.append, name)) for name in "ab"]
    monkeypatch.setattr(prompt_tiers, "_open", made)
    prompt_tiers._close_all()
    assert closed == ["a", "b"]
