"""Stores of prompts that are exactly full: what just fits is kept, and one byte more is not."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from aleator.cache import disk_store
from aleator.cache.block_store import MemoryStore
from aleator.cache.disk_store import DiskStore
from tests.cache.test_block_store import cells, entry, files, put
from tests.cache.test_damaged_store import changed

PARENT = b"p" * 32


def held(store: DiskStore | MemoryStore) -> set[int]:
    return {int.from_bytes(each.key, "big") for each in store.find([PARENT])}


@pytest.mark.parametrize("size", [99, 100, 101])
def test_memory_that_is_exactly_full(size: int) -> None:
    store = MemoryStore(300)
    for i in (1, 2):
        put(store, i, 100)
    put(store, 3, size)
    expected = {1, 2, 3} if size <= 100 else {2, 3}
    assert held(store) == expected
    assert store.used == sum(size if i == 3 else 100 for i in expected)
    assert dict(store.counts) == {
        "written": 3,
        "bytes_written": 200 + size,
        **({"evicted": 1} if size > 100 else {}),
    }
    assert store.put(*entry(3, 500), "m") is True  # it is there already
    assert store.put(*entry(4, 301), "m") is False
    assert store.put(*entry(4, 300), "m") is True
    assert (held(store), store.used, entry(4)[0].key in store) == ({4}, 300, True)
    assert len(store.get(entry(4)[0].key)["cells"]) == 300  # type: ignore[index]
    assert store.peek(b"x" * 32) is None
    assert store.counts["bytes_read"] == 300
    store.drop(entry(4)[0].key)
    store.drop(entry(4)[0].key)
    assert (store.used, store._after, list(store.find([PARENT]))) == (0, {}, [])


def test_entries_of_several_texts_in_memory() -> None:
    store = MemoryStore(1000)
    keys = [put(store, i, 10, parent) for i, parent in enumerate([PARENT, b"q" * 32, PARENT])]
    assert {each.key for each in store.find([PARENT, b"x" * 32])} == {keys[0], keys[2]}
    store.drop(keys[0])
    assert [each.key for each in store.find([PARENT, b"q" * 32])] == [keys[2], keys[1]]
    store.touch([keys[1], b"x" * 32, keys[2]])
    store.budget = 30
    for i in (7, 8):
        put(store, i, 10)
    assert held(store) == {7, 8}
    assert cells(store.get(keys[1])) is not None  # used after the one that follows it


def file_size(tmp_path: Path, size: int = 1000) -> int:
    put(DiskStore(tmp_path / "measured", 10**6), 1, size)
    (path,) = files(tmp_path / "measured")
    return path.stat().st_size


@pytest.mark.parametrize("less", [0, 1])
def test_a_disk_quota_that_is_exactly_full(less: int, tmp_path: Path) -> None:
    size = file_size(tmp_path)
    store = DiskStore(tmp_path / "c", 3 * size - less)
    for i in (1, 2, 3):
        put(store, i)
    assert held(store) == ({2, 3} if less else {1, 2, 3})
    assert store.counts["evicted"] == less
    assert store.counts["bytes_written"] == 3 * size
    store.prune(2 * size)
    assert held(store) == {2, 3}
    store.prune(2 * size - 1)
    assert held(store) == {3}
    assert store.quota == 3 * size - less
    store.quota = size - less
    assert store.put(*entry(4), "m") is (less == 0)
    assert store.counts["no_room"] == less
    store.close()
    assert held(DiskStore(tmp_path / "c", size - less)) == (set() if less else {4})


@pytest.mark.parametrize("less", [0, 1])
def test_free_space_that_is_just_left(
    less: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = file_size(tmp_path)
    store = DiskStore(tmp_path / "c", 10**9)
    assert size % 2 == 0
    # 10,000 bytes stay free: so many, or a quarter of the disk.
    for i, (spared, share) in enumerate(((10_000, 1.0), (10**9, 0.25))):
        blocks = (10_000 + size) // 2 - less
        disk = SimpleNamespace(f_bavail=blocks, f_frsize=2, f_blocks=20_000)
        with monkeypatch.context() as patch:
            patch.setattr(disk_store, "SPARED", spared)
            patch.setattr(disk_store, "SPARED_SHARE", share)
            patch.setattr(os, "statvfs", lambda path, made=disk: made)
            assert store.put(*entry(i), "m") is (less == 0)


def test_many_parents_are_asked_for_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(tmp_path, 10**7)
    parents = [i.to_bytes(32, "big") for i in range(7)]
    for i, parent in enumerate(parents):
        put(store, i, 10, parent)
    for most in (1, 2, 3, 7, 8):
        monkeypatch.setattr(disk_store, "_MANY", most)
        assert sorted(each.key for each in store.find(parents)) == parents
        assert [each.key for each in store.find(parents[6:])] == parents[6:]
    assert list(store.find([])) == []


def test_what_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1234.5)
    store = DiskStore(tmp_path, 10**6)
    first = put(store, 1)
    second = put(store, 2, 2000, parent=first)
    found = {each.key: each.size for each in store.find([PARENT, first])}
    size = [found[first], found[second]]
    assert list(store.listed()) == [
        (second.hex(), 128, size[1], 1234.5, "a model", False),
        (first.hex(), 128, size[0], 1234.5, "a model", False),
    ]
    store.pin(second)
    assert [pinned for *_, pinned in store.listed()] == [True, True]
    store.pin(second, False)
    store.pin(first)
    assert [pinned for *_, pinned in store.listed()] == [False, True]
    assert store.counts["bytes_written"] == sum(size)
    store.get(first)
    assert store.counts["bytes_read"] == size[0]
    store.touch([first, second])
    changed(tmp_path, "UPDATE blocks SET size = 0 WHERE used = (SELECT MAX(used) FROM blocks)")
    assert [each.key for each in store.find([PARENT, first])] == [second]


def test_another_thread_may_ask(tmp_path: Path) -> None:
    store, seen = DiskStore(tmp_path, 10**6), []
    key = put(store, 1)

    def ask() -> None:
        put(store, 2)
        seen.extend([cells(store.get(key)), held(store)])
        store.close()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen == [bytes([1]) * 1000, {1, 2}]
    assert not store.usable


@pytest.mark.parametrize(
    ("error", "begun_anew"),
    [
        (sqlite3.OperationalError("locked"), sqlite3.SQLITE_BUSY),
        (sqlite3.OperationalError("odd"), sqlite3.SQLITE_ERROR),
        (sqlite3.DatabaseError("damaged"), sqlite3.SQLITE_CORRUPT),
        (sqlite3.DatabaseError("not said"), None),
    ],
)
def test_an_index_is_given_up_only_if_it_is_damaged(
    error: sqlite3.Error, begun_anew: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is locked, or on a disk that is full, stays."""
    key = put(DiskStore(tmp_path, 10**6), 1)
    if begun_anew is not None:
        error.sqlite_errorcode = begun_anew
    failing, opened = [error], DiskStore._open

    def fails_once(store: DiskStore) -> None:
        if failing:
            raise failing.pop()
        opened(store)

    monkeypatch.setattr(DiskStore, "_open", fails_once)
    store = DiskStore(tmp_path, 10**6)
    assert store.counts["errors"] == 1
    assert store.usable == (begun_anew != sqlite3.SQLITE_BUSY)
    kept = cells(DiskStore(tmp_path, 10**6).get(key)) is not None
    assert kept == (begun_anew == sqlite3.SQLITE_BUSY)


@pytest.mark.parametrize("secret", ["x'07'", "'a text of thirty-two characters!'", "zeroblob(33)"])
def test_a_directory_without_its_key_begins_anew(secret: str, tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10**6)
    put(store, 1)
    store.close()
    changed(tmp_path, f"UPDATE about SET value = {secret}")
    again = DiskStore(tmp_path, 10**6)
    assert (len(again.secret), again.secret == store.secret, held(again)) == (32, False, set())


def test_a_file_that_is_gone_makes_room_too(tmp_path: Path) -> None:
    size = file_size(tmp_path)
    store = DiskStore(tmp_path / "c", 2 * size)
    for i in (1, 2):
        assert store.put(*entry(i), "m") is True
        assert store.put(*entry(i), "m") is True
    files(tmp_path / "c")[0].unlink()
    assert store.put(*entry(3), "m") is True
    assert held(store) == {2, 3}
    files(tmp_path / "c")[0].unlink()
    assert store.get(entry(2)[0].key) is None
    assert (store.counts["missing"], store.counts["errors"]) == (1, 0)
