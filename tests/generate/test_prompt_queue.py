"""What waits to be written to the disk, and what finds no room there."""

from __future__ import annotations

import threading
from collections import Counter, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aleator.cache.block_store import Counts
from aleator.generate import prompt_tiers
from aleator.generate.prompt_tiers import PromptTiers


def tiers(queued: int = 0, closed: bool = False) -> Any:
    """Tiers whose threads do not run."""
    made: Any = PromptTiers.__new__(PromptTiers)
    made.memory, made.disk = None, SimpleNamespace(usable=True)
    made.counts, made._changed = Counts(), threading.Condition()
    made._queue, made._queued, made._closed, made._waiting = deque(), queued, closed, Counter()
    return made


def entries(*sizes: int) -> list[Any]:
    return [(SimpleNamespace(size=size, key=bytes([i])), ()) for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "queued", "closed", "taken", "dropped"),
    [
        ((10, 10, 10), 0, False, 2, 1), ((10, 10, 5), 0, False, 3, 0), ((10, 16, 1), 0, False, 1, 2),
        ((10, 10), 15, False, 1, 1), ((10, 10), 16, False, None, 2), ((10,), 0, True, None, 1),
        ((), 0, False, 0, 0),
    ],
)  # fmt: skip
def test_entries_are_taken_in_order_as_long_as_there_is_room(
    sizes: tuple[int, ...], queued: int, closed: bool, taken: int | None, dropped: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(prompt_tiers, "QUEUED", 25)
    made = tiers(queued, closed)
    given = entries(*sizes)
    made.put([b"chain"], given, "model")
    assert made.counts["dropped"] == dropped
    if taken is None:
        assert not made._queue
        assert (made._queued, made._waiting) == (queued, Counter())
        return
    assert list(made._queue) == [([b"chain"], given[:taken], "model")]
    assert made._queued == queued + sum(sizes[:taken])
    assert made._waiting == Counter(entry.key for entry, _ in given[:taken])


def test_reading_takes_the_time_that_the_disk_took(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 103.5, 200.0, 201.0])
    monkeypatch.setattr(prompt_tiers, "perf_counter", lambda: next(clock))
    made, observed, kept = tiers(), [], []
    made.disk = SimpleNamespace(name="disk", get=lambda key: [b"found"] if key == b"a" else None)
    made.stores = [made.disk]
    made.reading = SimpleNamespace(observe=lambda *given: observed.append(given))
    made.memory = SimpleNamespace(put=lambda *given: kept.append(given))
    made._lost = lambda entry: kept.append(entry.key)
    entry: Any = SimpleNamespace(size=7, key=b"a")
    assert made.get(entry, "model") == ("disk", [b"found"])
    assert observed == [(7, 3.5)]
    assert kept == [(entry, [b"found"], "model")]
    assert made.get(SimpleNamespace(size=7, key=b"b"), "model") is None
    assert kept[1:] == [b"b"]


@pytest.mark.parametrize(
    ("stores", "used", "counted"),
    [
        (("ram", "disk"), {"ram"}, {"ram": {"hits": 1, "tokens": 7}, "disk": {}}),
        (("ram", "disk"), {"disk"}, {"ram": {"misses": 1}, "disk": {"hits": 1, "tokens": 7}}),
        (("ram", "disk"), {"ram", "disk"}, {"ram": {"misses": 1}, "disk": {"hits": 1, "tokens": 7}}),
        (("ram", "disk"), set(), {"ram": {"misses": 1}, "disk": {"misses": 1}}),
        (("disk",), {"disk"}, {"disk": {"hits": 1, "tokens": 7}}),
        (("disk",), set(), {"disk": {"misses": 1}}),
    ],
)  # fmt: skip
def test_a_look_up_is_a_hit_of_the_lowest_tier_that_it_needed(
    stores: tuple[str, ...], used: set[str], counted: dict[str, Any]
) -> None:
    made, touched = tiers(), list[Any]()
    made.stores = [SimpleNamespace(name=name, counts=Counts()) for name in stores]
    made.put = lambda *given: touched.append(given)
    made.used([b"chain"], used, 7)
    assert made.tell() == counted
    assert touched == ([([b"chain"], (), "")] if used else [])


def test_few_digests_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then all are forgotten, and looked up again."""
    monkeypatch.setattr(prompt_tiers, "SEEN", 3)
    made = tiers()
    made._seen = {}
    entry: Any = SimpleNamespace(key=b"k")
    for parent in (b"1", b"2", b"3"):
        made._remember(parent, {b"k": entry})
    made._remember(b"2", {})
    made._remember(b"4", {b"k": entry})
    assert [*made._seen] == [b"1", b"3", b"4"]
    made._remember(b"5", {b"k": entry})
    assert [*made._seen] == [b"5"]


def test_prompts_are_kept_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert prompt_tiers.default_directory() == Path("/somewhere/aleator/prompts")
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("XDG_CACHE_HOME")
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", unset)
        monkeypatch.setenv("HOME", "/home/someone")
        assert prompt_tiers.default_directory() == Path("/home/someone/.cache/aleator/prompts")


@pytest.mark.parametrize(("timeout", "waits"), [(None, [None, None]), (5.0, [4.0, 0.0])])
def test_a_close_waits_for_all_threads_together(
    timeout: float | None, waits: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 11.0, 19.0])
    monkeypatch.setattr(prompt_tiers, "perf_counter", lambda: next(clock))
    for alive in (False, True):
        made, joined, closed = tiers(), list[Any](), list[str]()
        made._looking, made._asked = deque(), deque()
        thread = SimpleNamespace(join=joined.append, is_alive=lambda alive=alive: alive)
        made._threads = [thread, thread]
        made.disk = SimpleNamespace(usable=True, close=lambda closed=closed: closed.append("disk"))
        made.close(timeout)
        assert joined == waits
        assert closed == ([] if alive else ["disk"])
        clock = iter([10.0, 11.0, 19.0])
