"""What a store is asked for comes back as it was put, or not at all, whatever happens to its directory."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from aleator.cache.block_store import Entry, MemoryStore, Sections
from aleator.cache.disk_store import DiskStore


def entry(i: int, size: int = 1000, parent: bytes = b"p" * 32) -> tuple[Entry, Sections]:
    data = bytes([i % 251]) * size
    return Entry(i.to_bytes(32, "big"), parent, 128, size), {"cells": data}


def put(
    store: DiskStore | MemoryStore, i: int, size: int = 1000, parent: bytes = b"p" * 32
) -> bytes:
    made, sections = entry(i, size, parent)
    store.put(made, sections, "a model")
    return made.key


def cells(sections: Sections | None) -> bytes | None:
    return None if sections is None else bytes(sections["cells"])


def files(directory: Path) -> list[Path]:
    return sorted((directory / "blocks").iterdir())


@pytest.fixture(params=["ram", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> DiskStore | MemoryStore:
    return MemoryStore(10_000) if request.param == "ram" else DiskStore(tmp_path / "c", 14_000)


def test_both_stores_keep_what_was_used_last(store: DiskStore | MemoryStore) -> None:
    keys = [put(store, i) for i in range(5)]
    assert {each.key for each in store.find([b"q" * 32, b"p" * 32])} == set(keys)
    assert cells(store.get(keys[3])) == bytes([3]) * 1000
    assert store.get(b"x" * 32) is None
    store.touch(keys[:2])
    for i in range(5, 12):
        put(store, i)
    held = {each.key for each in store.find([b"p" * 32])}
    assert set(keys[:2]) <= held
    assert not set(keys[2:4]) & held
    assert store.counts["evicted"]
    store.drop(keys[0])
    assert keys[0] not in {each.key for each in store.find([b"p" * 32])}
    assert store.get(keys[0]) is None


def test_what_is_larger_than_the_store_is_not_stored(store: DiskStore | MemoryStore) -> None:
    kept = put(store, 1)
    put(store, 2, 20_000)
    assert [each.key for each in store.find([b"p" * 32])] == [kept]


def test_the_beginning_of_a_chain_goes_last(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 8_000)
    keys = [put(store, i) for i in range(4)]
    store.touch(keys)
    for i in range(4, 7):
        put(store, i)
    held = {each.key for each in store.find([b"p" * 32])}
    assert keys[0] in held
    assert keys[3] not in held


def test_another_store_of_the_directory_has_the_same(tmp_path: Path) -> None:
    first, second = DiskStore(tmp_path, 10**6), DiskStore(tmp_path, 10**6)
    assert len(first.secret) == 32
    assert first.secret == second.secret
    key = put(first, 7)
    assert cells(second.get(key)) == bytes([7]) * 1000
    second.drop(key)
    assert first.get(key) is None
    assert first.counts["missing"] == 1


def test_what_is_there_is_the_users_alone(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    for directory in (tmp_path / "new" / "c", tmp_path / "open"):
        store = DiskStore(directory, 10**6)
        put(store, 1)
        assert store.counts["written"] == 1
        for path in directory.rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path
    assert (tmp_path / "new" / "c").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o755


def test_a_folder_that_others_may_change_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "a" / "blocks").mkdir(parents=True)
    (tmp_path / "a" / "blocks").chmod(0o777)
    assert not DiskStore(tmp_path / "a", 10**6).usable
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "blocks").symlink_to(tmp_path / "own")
    assert not DiskStore(tmp_path / "b", 10**6).usable


def test_a_full_disk_stores_nothing_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = DiskStore(tmp_path, 10**6)
    kept = put(store, 1)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for i in range(2, 5):
        put(store, i)
    monkeypatch.undo()
    assert [each.key for each in store.find([b"p" * 32])] == [kept]
    assert len(files(tmp_path)) == 1
    assert store.counts["errors"] == 3
    assert sum("No space left" in each.message for each in caplog.records) == 1
    assert cells(store.get(put(store, 9))) == bytes([9]) * 1000


def test_where_no_directory_can_be_there_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = DiskStore(tmp_path / "file", 10**6)
    assert not store.usable
    assert list(store.find([b"p" * 32])) == []
    assert store.get(put(store, 1)) is None
    store.touch([b"p" * 32])
    store.close()
    assert store.counts["errors"] == 1


def test_a_directory_that_is_removed_is_a_miss(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "c", 10**6)
    key = put(store, 1)
    shutil.rmtree(tmp_path / "c")
    assert store.get(key) is None
    assert store.get(put(store, 2)) is None
    store.close()
    assert not (tmp_path / "c").exists()


def test_a_start_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10**6)
    key = put(store, 1)
    store.close()
    blocks = tmp_path / "blocks"
    stale, mine = blocks / f".{'ab' * 16}.partial", blocks / f".{'cd' * 16}.partial"
    for each in (stale, mine, blocks / f"{'ef' * 32}.block"):
        each.write_bytes(b"half")
    written = mine.open("rb")
    fcntl.flock(written, fcntl.LOCK_EX)
    store = DiskStore(tmp_path, 10**6)
    assert not stale.exists()
    assert mine.exists()
    written.close()
    assert [each.name for each in blocks.glob("*.block")] == [f"{key.hex()}.block"]


def test_a_file_that_goes_away_during_a_start_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(tmp_path, 10**6)
    key = put(store, 1)
    store.close()
    gone = tmp_path / "blocks" / f"{'ab' * 32}.block"
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([gone, *listed(self)]))
    store = DiskStore(tmp_path, 10**6)
    assert store.usable
    assert cells(store.get(key)) == bytes([1]) * 1000


def test_a_forked_process_leaves_the_store_alone(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10**6)
    key = put(store, 1)
    pid = os.fork()
    if pid == 0:
        os._exit(int(store.usable or store.get(key) is not None))
    assert os.waitpid(pid, 0)[1] == 0
    assert cells(store.get(key)) == bytes([1]) * 1000


def test_what_is_pinned_stays_with_what_comes_before_it(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 8_000)
    first = put(store, 0)
    second = put(store, 1, parent=first)
    store.pin(second)
    for i in range(2, 9):
        put(store, i)
    held = {key: pinned for key, *_, pinned in store.listed()}
    assert held[first.hex()]
    assert held[second.hex()]
    assert sum(held.values()) == 2
    assert sum(each.stat().st_size for each in files(tmp_path)) <= 8_000
    store.pin(second, False)
    for i in range(9, 16):
        put(store, i)
    assert {first.hex(), second.hex()}.isdisjoint(key for key, *_ in store.listed())


def test_what_does_not_fit_beside_pins_is_not_kept(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 4_000)
    kept = [put(store, i) for i in range(2)]
    for key in kept:
        store.pin(key)
    put(store, 5, 2_500)
    assert store.counts["no_room"] == 1
    assert {key for key, *_ in store.listed()} == {key.hex() for key in kept}
    assert len(files(tmp_path)) == 2
    store.prune(0)
    assert len(files(tmp_path)) == 2
    store.prune(0, pinned=True)
    assert files(tmp_path) == []


def test_a_start_goes_on_beside_what_is_no_file(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10_000)
    key = put(store, 1)
    store.close()
    (tmp_path / "blocks" / "00.block").mkdir()
    assert cells(DiskStore(tmp_path, 10_000).get(key)) is not None


def other_disk(tmp_path: Path) -> Path:
    """A folder on another file system, where there is one."""
    shared = Path("/dev/shm")
    if os.access(shared, os.W_OK) and shared.stat().st_dev != tmp_path.stat().st_dev:
        return Path(tempfile.mkdtemp(dir=shared))
    pytest.skip("there is no other file system")


@pytest.mark.parametrize("what", ["", "blocks"])
@pytest.mark.parametrize("same", [True, False])
def test_a_folder_swapped_for_a_link_serves_nothing_wrong(
    what: str, same: bool, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere" if same else other_disk(tmp_path)
    try:
        store = DiskStore(tmp_path / "c", 10**6)
        key = put(store, 1)
        folder = tmp_path / "c" / what
        shutil.copytree(folder, elsewhere, dirs_exist_ok=True)
        folder.rename(tmp_path / "aside")
        folder.symlink_to(elsewhere)
        for i in (2, 3):
            put(store, i)
        for i in (1, 2, 3):
            assert cells(store.get(entry(i)[0].key)) in (None, bytes([i]) * 1000)
        store.close()
        store = DiskStore(tmp_path / "c", 10**6)
        assert store.usable == (what != "blocks")
        assert cells(store.get(key)) in (None, bytes([1]) * 1000)
        assert not list(elsewhere.rglob("*.partial"))
    finally:
        shutil.rmtree(elsewhere)


def test_a_clock_that_is_set_back_changes_no_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", iter(range(10**6, -(10**6), -1000)).__next__)
    store = DiskStore(tmp_path, 8_000)
    keys = [put(store, i) for i in range(6)]
    store.touch(keys[1:2])
    for i in range(6, 9):
        put(store, i)
    held = {each.key for each in store.find([b"p" * 32])}
    assert keys[1] in held
    assert keys[0] not in held
    assert not {*keys[2:4]} & held


def test_the_smallest_quota_of_two_holds_after_its_writes(tmp_path: Path) -> None:
    small, large = DiskStore(tmp_path, 5_000), DiskStore(tmp_path, 20_000)
    for i in range(20):
        put(large, i)
        assert sum(each.stat().st_size for each in files(tmp_path)) <= 20_000
    put(small, 100)
    assert sum(each.stat().st_size for each in files(tmp_path)) <= 5_000
    assert cells(large.get(entry(100)[0].key)) == bytes([100]) * 1000
    small.close()
    larger = DiskStore(tmp_path, 10**6)  # as after a start with a larger one
    for i in range(30):
        put(larger, i)
    assert {entry(i)[0].key for i in range(30)} <= {each.key for each in larger.find([b"p" * 32])}


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_store_that_is_closed_finds_and_changes_nothing(
    meanwhile: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another thread closes it while it is asked."""
    store = DiskStore(tmp_path / "c", 14_000)
    kept, gone = put(store, 1), put(store, 2)
    before = files(tmp_path / "c")
    store.close()
    if meanwhile:
        monkeypatch.setattr(DiskStore, "usable", True)
    assert not store.listed()
    assert not store.find([b"p" * 32])
    assert not store.put(*entry(3), "a model")
    store.touch([kept])
    store.pin(kept)
    store.prune(0)
    store.check(kept)
    assert files(tmp_path / "c") == before
    store.drop(gone)
    monkeypatch.undo()
    again = DiskStore(tmp_path / "c", 14_000)
    left = {each.key for each in again.find([b"p" * 32])}
    assert left == ({kept} if meanwhile else {kept, gone})
    assert not any(pinned for *_, pinned in again.listed())
    assert again.counts["errors"] == store.counts["errors"] == 0
