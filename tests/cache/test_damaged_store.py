"""Stores on disk whose files or index are damaged: a miss, and never a wrong text or an error."""

from __future__ import annotations

import random
import shutil
import sqlite3
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from aleator.cache import disk_store
from aleator.cache.disk_store import DiskStore
from tests.cache.test_block_store import cells, files, put


@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_bit_anywhere_is_a_miss(seed: int, tmp_path: Path) -> None:
    store, rng = DiskStore(tmp_path, 10**6), random.Random(seed)
    key = put(store, 1, 300)
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    for place in [*range(0, 400, 3), *(rng.randrange(len(whole)) for _ in range(60))]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        assert store.get(key) is None, place
        assert not path.exists()
        key = put(store, 1, 300)
    for length in (0, 8, 15, 40, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert store.get(key) is None
        key = put(store, 1, 300)
    assert cells(store.get(key)) == bytes([1]) * 300


def test_a_file_under_another_name_is_a_miss(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10**6)
    first, second = put(store, 1), put(store, 2)
    one, two = files(tmp_path)
    shutil.copy(one, two)
    assert cells(store.get(first)) == bytes([1]) * 1000
    assert store.get(second) is None
    assert store.counts["damaged"] == 1


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "c", 10**6)
    key = put(store, 1)
    (path,) = files(tmp_path / "c")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert store.get(key) is None
    assert store.counts["errors"] == 1


def test_an_index_of_another_format_begins_anew(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10**6)
    key = put(store, 1)
    store.close()
    changed(tmp_path, f"PRAGMA user_version={disk_store.FORMAT + 1}")
    store = DiskStore(tmp_path, 10**6)
    assert store.usable
    assert store.get(key) is None
    assert files(tmp_path) == []
    assert cells(store.get(put(store, 2))) == bytes([2]) * 1000


@pytest.mark.parametrize("seed", range(20))
def test_bits_flipped_in_the_index_raise_nothing(seed: int, tmp_path: Path) -> None:
    store, rng = DiskStore(tmp_path, 10**6), random.Random(seed)
    keys = [put(store, i) for i in range(8)]
    store.close()
    path = tmp_path / "index.sqlite"
    data = bytearray(path.read_bytes())
    for _ in range(40):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    store = DiskStore(tmp_path, 10**6)
    store.find([b"p" * 32])
    for i, key in enumerate(keys):
        assert cells(store.get(key)) in (None, bytes([i]) * 1000)
    put(store, 20)
    store.touch(keys)
    store.close()


@pytest.mark.parametrize(
    "change",
    [
        "key = 7", "key = 2 << 60", "size = 'y'", "size = size + 1", "used = x'00'", "made = 'then'",
        "parent = NULL",
    ],
)  # fmt: skip
def test_a_start_with_an_unsound_index_begins_anew(change: str, tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10**6)
    key = put(store, 1)
    store.close()
    base = sqlite3.connect(tmp_path / "index.sqlite")
    base.execute(f"UPDATE blocks SET {change}")
    base.commit()
    base.close()
    store = DiskStore(tmp_path, 10**6)
    assert list(store.listed()) == []
    assert files(tmp_path) == []
    assert store.get(key) is None
    assert cells(store.get(put(store, 2))) == bytes([2]) * 1000


def test_an_index_that_is_damaged_in_use_raises_nothing(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10**6)
    keys = [put(store, i) for i in range(3)]
    base = sqlite3.connect(tmp_path / "index.sqlite")
    base.execute("UPDATE blocks SET key = 'text' || rowid, size = 1e400, made = 'then'")
    base.commit()
    base.close()
    assert list(store.listed()) == []
    store.prune(0)
    put(store, 5)
    store.touch(keys)


def test_a_transaction_whose_end_fails_does_not_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = ["COMMIT", "ROLLBACK"]

    class Failing(disk_store.Index):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if failing and statement == failing[0]:
                raise sqlite3.OperationalError(f"disk I/O error at {failing.pop(0)}")
            return super().execute(statement, *values)

    monkeypatch.setattr(disk_store, "Index", Failing)
    held, failing[:] = failing[:], []
    store = DiskStore(tmp_path, 10**6)
    failing[:] = held
    put(store, 1)
    assert (failing, files(tmp_path)) == ([], [])
    assert cells(store.get(put(store, 2))) == bytes([2]) * 1000
    assert cells(DiskStore(tmp_path, 10**6).get(put(store, 3))) == bytes([3]) * 1000


@pytest.mark.parametrize("name", ["put", "touch", "pin", "prune", "drop", "check"])
def test_an_interrupt_leaves_a_store_that_goes_on(name: str, tmp_path: Path) -> None:
    for stop in range(40):
        store = DiskStore(tmp_path / str(stop), 10**6)
        key, calls = put(store, 1), 0

        def tracer(frame: FrameType, event: str, arg: Any, stop: int = stop) -> None:
            nonlocal calls
            if Path(frame.f_code.co_filename).stem in ("disk_store", "contextlib"):
                calls += 1
                if calls > stop:
                    sys.settrace(None)
                    raise KeyboardInterrupt

        changes: dict[str, Callable[[], object]] = {
            "put": partial(put, store, 2),
            "touch": partial(store.touch, [key]),
            "prune": partial(store.prune, 10**5),
        }
        change = changes.get(name) or partial(getattr(store, name), key)
        sys.settrace(tracer)
        try:
            change()
        except KeyboardInterrupt as interrupt:
            held = interrupt  # as the interpreter and a debugger hold it
        else:
            break
        finally:
            sys.settrace(None)
        assert not store._lock.locked(), traceback.extract_tb(held.__traceback__)
        assert cells(store.get(put(store, 3))) == bytes([3]) * 1000
        assert store.counts["errors"] == 0
    assert 2 < stop < 39


def test_a_file_stays_where_its_row_cannot_go(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10**6)
    key = put(store, 1)
    assert store._base is not None
    store._base.execute("PRAGMA busy_timeout=0")
    other = sqlite3.connect(tmp_path / "index.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.drop(key)
    other.close()
    assert store.counts["errors"] == 1
    assert cells(store.get(key)) == bytes([1]) * 1000


WRONG = ["parent = x'07'", "length = 5", "size = 1 << 40", "size = 1"]


def changed(directory: Path, statement: str) -> None:
    base = sqlite3.connect(directory / "index.sqlite")
    base.execute(statement)
    base.commit()
    base.close()


@pytest.mark.parametrize(
    "change", [*(f"UPDATE blocks SET {w}" for w in WRONG), "DELETE FROM blocks"]
)
def test_a_wrong_row_is_replaced_when_its_block_comes_again(change: str, tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 2**50)
    key = put(store, 1)
    store.pin(key)
    changed(tmp_path, change)
    put(store, 1)
    (found,) = store.find([b"p" * 32])
    assert (found.key, found.length, found.size) == (key, 128, files(tmp_path)[0].stat().st_size)
    assert cells(store.get(key)) == bytes([1]) * 1000
    assert store.counts["written"] == 2
    assert [pinned for *_, pinned in store.listed()] == ["DELETE" not in change]
    put(store, 1)
    assert store.counts["written"] == 2
    assert not store.counts["errors"]


def test_a_file_that_is_gone_is_a_miss_and_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    store = DiskStore(tmp_path, 10**6)
    for looked_for in (False, True):
        key = put(store, 1)
        files(tmp_path)[0].unlink()
        assert not looked_for or store.get(key) is None
    assert store.counts["missing"] == 1
    assert "is gone" in caplog.text
    put(store, 1)
    assert cells(store.get(key)) == bytes([1]) * 1000


@pytest.mark.parametrize("wrong", WRONG)
def test_a_check_mends_a_wrong_row(wrong: str, tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 2**50)
    key = put(store, 1)
    before = list(store.find([b"p" * 32]))
    changed(tmp_path, f"UPDATE blocks SET {wrong}")
    assert store.check(key)
    assert list(store.find([b"p" * 32])) == before
    assert store.check(key)
    assert store.counts["mended"] == 1
    files(tmp_path)[0].write_bytes(b"damaged")
    assert not store.check(key)
    assert list(store.listed()) == []
    assert not store.check(b"x" * 32)
