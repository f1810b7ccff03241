"""A store of a prompt cache's entries on disk, which outlives the process and may be shared.

A directory holds ``index.sqlite`` and a file for each entry, ``blocks/HEX.block``, a state file with its
checksums (:mod:`aleator.cache.formats.state_file`).  A file is written aside, synced and renamed within the
transaction that notes it, so an entry is there whole or not at all, whenever a process is killed.  Several
processes may share a directory.  "When" is a counter, so a clock that is set back changes nothing.

What the index has is remembered as it was seen last, since SQLite may wait for a disk.  A file says its block's
place and length itself, so ``verify`` can mend a wrong row.

A store never raises for what happens to its directory: that is a miss, counted and logged.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from aleator.cache.block_store import Counts, Entry, Sections
from aleator.cache.formats.state_file import StateFile, pack_state, read_state_file
from aleator.core.errors import FileFormatError

log = logging.getLogger(__name__)

FORMAT = 3
SPARED, SPARED_SHARE = 2**30, 0.05
"""A disk keeps so many bytes free, or this share of it where that is less."""
_KEPT = (
    "WITH RECURSIVE kept (key, parent) AS (SELECT key, parent FROM blocks WHERE pinned UNION "
    "SELECT b.key, b.parent FROM blocks b JOIN kept k ON b.key = k.parent) "
)
"""The entries that are pinned, and those before them in their texts."""
_MANY = 500  # parameters of one statement
_UNSOUND = (
    "SELECT 1 FROM blocks WHERE length(key) != 32 OR typeof(key) || typeof(parent) || typeof(length) || "
    "typeof(size) || typeof(used) || typeof(made) || typeof(model) || typeof(pinned) != "
    "'blobblobintegerintegerintegerrealtextinteger' LIMIT 1"
)

P = ParamSpec("P")
R = TypeVar("R")


Method = Callable[Concatenate["DiskStore", P], R]


def _or(nothing: Any) -> Callable[[Method[P, R]], Method[P, R]]:
    """Let a method give ``nothing`` where the directory fails: that is counted, and logged."""

    def decorate(method: Method[P, R]) -> Method[P, R]:
        @wraps(method)
        def guarded(self: DiskStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if self.usable:
                try:
                    return method(self, *args, **kwargs)
                except Exception as error:  # whatever a damaged index may cause
                    if self._base is not None:  # else another thread has closed it
                        self.failed(error)
            missing: R = nothing
            return missing

        return guarded

    return decorate


class Index(sqlite3.Connection):
    """Closed with its last reference: from Python 3.13 on a connection that is left open warns."""

    def __del__(self) -> None:
        with suppress(sqlite3.Error):  # it was never opened
            self.close()


class DiskStore:
    """Entries in a directory, ``quota`` bytes of files at most.

    Args:
        directory: made if it is not there; what is in it is for this user alone.
        quota: bytes.  Other processes may have other quotas: the smallest of them holds after each write.

    Attributes:
        secret: the key of this directory's digests, 32 bytes; b"" while it cannot be used.
    """

    name = "disk"

    def __init__(self, directory: str | os.PathLike[str], quota: int) -> None:
        self.directory, self.quota = Path(directory), quota
        self.counts, self.secret = Counts(), b""
        self._blocks = self.directory / "blocks"
        self._lock, self._reading, self._process = threading.Lock(), threading.Lock(), os.getpid()
        self._warned: set[str] = set()
        self._base: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._blocks.mkdir(mode=0o700, exist_ok=True)
            about = self._blocks.lstat()
            if about.st_uid != os.geteuid() or about.st_mode & 0o077 or self._blocks.is_symlink():
                why = "others could change it: give a directory of your own"
                raise PermissionError(errno.EPERM, why, str(self._blocks))
            try:
                self._open()
            except sqlite3.DatabaseError as error:
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
                if isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR:
                    raise  # locked, full, read-only
                self.failed(error)  # a damaged index: begin anew
                for each in self.directory.glob("index.sqlite*"):
                    each.unlink(missing_ok=True)
                self._open()
        except (OSError, sqlite3.Error) as error:
            self._base = self._reader = None
            self.failed(error)

    @property
    def usable(self) -> bool:
        """Whether there is an index, opened by this process and not by one that it was forked from."""
        return self._base is not None and self._process == os.getpid()

    def failed(self, error: Exception) -> None:
        """Count an error of the directory, and log the first one of each kind."""
        self.counts.add("errors")
        self._warn(f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}")

    def _no_room(self) -> bool:
        """Count an entry that is not stored, and log the first one; False."""
        self.counts.add("no_room")
        self._warn("no room: what is pinned, or other files on the disk, leave too little")
        return False

    def _warn(self, kind: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning(
                "the prompt cache in %s: %s: nothing is lost but cached prompts",
                self.directory,
                kind,
            )

    def _open(self) -> None:
        path = self.directory / "index.sqlite"
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self._base, self._reader = (
            sqlite3.connect(
                path, timeout=5, isolation_level=None, check_same_thread=False, factory=Index
            )
            for _ in range(2)
        )
        base = self._base
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA synchronous=NORMAL")
        version = base.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, FORMAT):
            raise sqlite3.DatabaseError(f"the index is of format {version}, and not {FORMAT}")
        with _Transaction(base):
            base.execute("CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value BLOB)")
            base.execute(
                "CREATE TABLE IF NOT EXISTS blocks (key BLOB PRIMARY KEY, parent BLOB, length INTEGER, "
                "size INTEGER, used INTEGER, made REAL, model TEXT, pinned INTEGER DEFAULT 0)"
            )
            base.execute("CREATE INDEX IF NOT EXISTS by_parent ON blocks (parent)")
            base.execute("CREATE INDEX IF NOT EXISTS by_use ON blocks (used)")
            base.execute("CREATE INDEX IF NOT EXISTS by_pin ON blocks (pinned) WHERE pinned")
            base.execute(f"PRAGMA user_version={FORMAT}")
            base.execute("INSERT OR IGNORE INTO about VALUES ('secret', ?)", (os.urandom(32),))
            (secret,) = base.execute("SELECT value FROM about WHERE name='secret'").fetchone()
            if not isinstance(secret, bytes) or len(secret) != 32:
                raise sqlite3.DatabaseError("the index has no key")
            if base.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
                raise sqlite3.DatabaseError("the index is damaged")
            if base.execute(_UNSOUND).fetchone() is not None:
                raise sqlite3.DatabaseError("the index has values of other types")
            self.secret = secret
            self._sweep(base)

    def _sweep(self, base: sqlite3.Connection) -> None:
        """Remove what killed processes left, and what is beyond the quota; within a transaction."""
        missing = dict(base.execute("SELECT hex(key), size FROM blocks"))
        for each in self._blocks.iterdir():
            name = each.stem.upper()
            with suppress(OSError):  # another process drops an entry, or it is no file
                if each.suffix == ".block" and each.stat().st_size == missing.get(name):
                    del missing[name]
                elif each.suffix == ".block" or (each.suffix == ".partial" and not _held(each)):
                    each.unlink()
        base.executemany("DELETE FROM blocks WHERE hex(key) = ?", [(name,) for name in missing])
        self._evict(base, self.quota)

    def _path(self, key: bytes) -> Path:
        return self._blocks / f"{key.hex()}.block"

    def close(self) -> None:
        """Close the index."""
        with self._lock, self._reading:
            if self.usable and self._base is not None and self._reader is not None:
                self._reader.close()
                self._base.close()
            self._base = self._reader = None

    def _read(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Ask without waiting for whoever writes."""
        with self._reading:
            if self._reader is None:
                return []
            return self._reader.execute(statement, values).fetchall()

    @_or(())
    def find(self, parents: Sequence[bytes]) -> Sequence[Entry]:
        found: list[tuple[object, ...]] = []
        for at in range(0, len(parents), _MANY):
            some = parents[at : at + _MANY]
            marks = ",".join("?" * len(some))
            found += self._read(
                f"SELECT key, parent, length, size FROM blocks WHERE parent IN ({marks})",
                *some,
            )
        return [
            Entry(*row)  # type: ignore[arg-type]  # their types are looked at here
            for row in found
            if [type(value) for value in row] == [bytes, bytes, int, int] and row[3] > 0  # type: ignore[operator]
        ]

    @_or(None)
    def get(self, key: bytes) -> Sections | None:
        """See :class:`Store`; its checksums are verified."""
        found = self._block(key)
        if found is None:
            return None
        self.counts.add("bytes_read", found[1])
        return found[0].sections

    def _block(self, key: bytes) -> tuple[StateFile, int] | None:
        """An entry's file and its size; where there is none, or it is damaged, the entry is dropped."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW
            with open(os.open(self._path(key), flags), "rb") as file:
                data = np.empty(os.fstat(file.fileno()).st_size, np.uint8).data
                data = data[: file.readinto(data)]
        except FileNotFoundError:
            self.counts.add("missing")
            log.info("the prompt cache: %s is gone: it is computed again", self._path(key))
            self.drop(key)
            return None
        try:
            state = read_state_file(data)
            about = state.header
            if about.get("kind") != "prompt block" or about.get("key") != key.hex():
                raise FileFormatError(self._path(key), "the block is another one", field="key")
        except FileFormatError as error:
            self.counts.add("damaged")
            log.warning("the prompt cache: %s: %s: it is removed", self._path(key), error)
            self.drop(key)
            return None
        return state, len(data)

    @_or(False)
    def check(self, key: bytes) -> bool:
        """Whether an entry's file is sound; the index is made to say what the file does."""
        found = self._block(key)
        if found is None:
            return False
        about = found[0].header
        stored = (bytes.fromhex(about["parent"]), about["length"], found[1])
        with self._lock, _Transaction(self._base) as base:
            made = base.execute(
                "UPDATE blocks SET (parent, length, size) = (?, ?, ?) "
                "WHERE key = ? AND (parent, length, size) IS NOT (?, ?, ?)",
                (*stored, key, *stored),
            )
            self.counts.add("mended", made.rowcount)
        return True

    def _holds(self, entry: Entry) -> bool:
        """Whether the index says of an entry what is so, and its file has that size."""
        rows = self._read("SELECT parent, length, size FROM blocks WHERE key = ?", entry.key)
        with suppress(OSError):
            return rows == [(entry.parent, entry.length, self._path(entry.key).lstat().st_size)]
        return False

    @_or(False)
    def put(self, entry: Entry, sections: Sections, model: str) -> bool:
        """See :class:`Store`; what the index has of it that is not so is replaced."""
        if self._holds(entry):
            return True  # by another process; a key says what the bytes are
        about = {"kind": "prompt block", "key": entry.key.hex(), "parent": entry.parent.hex()}
        pieces = pack_state({**about, "length": entry.length}, sections)
        size = sum(memoryview(piece).nbytes for piece in pieces)
        disk = os.statvfs(self._blocks)
        free = disk.f_bavail * disk.f_frsize
        spared = min(SPARED, int(SPARED_SHARE * disk.f_blocks * disk.f_frsize))
        if size > self.quota or free - size < spared:
            return self._no_room()
        partial = self._blocks / f".{os.urandom(16).hex()}.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        stored = renamed = False
        try:
            with open(os.open(partial, flags, 0o600), "wb") as file:
                # Until it is renamed: a start elsewhere leaves it alone
                fcntl.flock(file, fcntl.LOCK_EX)
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
                with self._lock, _Transaction(self._base) as base:
                    if not self._evict(base, self.quota - size):
                        return self._no_room()
                    base.execute(
                        "INSERT OR REPLACE INTO blocks VALUES (?1, ?2, ?3, ?4, "
                        "(SELECT COALESCE(MAX(used), 0) + 1 FROM blocks), ?5, ?6, "
                        "COALESCE((SELECT pinned FROM blocks WHERE key = ?1), 0))",
                        (entry.key, entry.parent, entry.length, size, time.time(), model),
                    )
                    os.replace(partial, self._path(entry.key))
                    renamed = True
            stored = True
        finally:
            with suppress(OSError):
                (self._path(entry.key) if renamed and not stored else partial).unlink()
        self.counts.add("written")
        self.counts.add("bytes_written", size)
        return True

    def _evict(self, base: sqlite3.Connection, quota: int) -> bool:
        """Remove entries until ``quota`` bytes are left; within a transaction.  Returns whether that many are.

        Files go before their rows are gone for good: a row without a file is a miss, a file without a row would
        be beyond the quota.
        """
        (used,) = base.execute("SELECT COALESCE(SUM(size), 0) FROM blocks").fetchone()
        while used > quota:
            row = base.execute(
                f"{_KEPT}SELECT key, size FROM blocks WHERE key NOT IN (SELECT key FROM kept) "
                "ORDER BY used LIMIT 1"
            ).fetchone()
            if row is None:
                return False
            self._path(row[0]).unlink(missing_ok=True)
            base.execute("DELETE FROM blocks WHERE key = ?", (row[0],))
            used -= row[1]
            self.counts.add("evicted")
        return True

    @_or(None)
    def touch(self, keys: Sequence[bytes]) -> None:
        """See :class:`Store`: the beginning of a text is newer than what follows, and goes last."""
        with self._lock, _Transaction(self._base) as base:
            (used,) = base.execute("SELECT COALESCE(MAX(used), 0) FROM blocks").fetchone()
            base.executemany(
                "UPDATE blocks SET used = ? WHERE key = ?",
                [(used + i, key) for i, key in enumerate(reversed(keys), 1)],
            )

    @_or(None)
    def drop(self, key: bytes) -> None:
        with self._lock:
            if self._base is not None:  # else another thread has closed it
                with _Transaction(self._base) as base:
                    base.execute("DELETE FROM blocks WHERE key = ?", (key,))
        self._path(key).unlink(missing_ok=True)

    # For people

    @_or(())
    def listed(self) -> Sequence[tuple[str, int, int, float, str, bool]]:
        """Of each entry its key, length, size, when it was made, the model, and whether it is pinned.

        What was used last is first.
        """
        rows = self._read(
            f"{_KEPT}SELECT key, length, size, made, model, key IN (SELECT key FROM kept) FROM blocks "
            "ORDER BY used DESC"
        )
        return [
            (bytes(key).hex(), int(n), int(size), float(made), str(model), bool(pinned))  # type: ignore[arg-type, call-overload]
            for key, n, size, made, model, pinned in rows
        ]

    @_or(None)
    def pin(self, key: bytes, pinned: bool = True) -> None:
        """Pin an entry, or end that: it and those before it in its text do not make room for others."""
        with self._lock, _Transaction(self._base) as base:
            base.execute("UPDATE blocks SET pinned = ? WHERE key = ?", (pinned, key))

    @_or(None)
    def prune(self, quota: int, *, pinned: bool = False) -> None:
        """Remove what was not used for the longest time until ``quota`` bytes are left.

        ``pinned``: what is pinned too.
        """
        with self._lock, _Transaction(self._base) as base:
            if pinned:
                base.execute("UPDATE blocks SET pinned = 0 WHERE pinned")
            self._evict(base, quota)


class _Transaction:
    """A transaction that may write, from its beginning on; ProgrammingError if the index has been closed.

    A class, as an interrupted generator would end only when the interrupt's traceback is gone.
    """

    def __init__(self, base: sqlite3.Connection | None) -> None:
        if base is None:
            raise sqlite3.ProgrammingError("the index has been closed")
        self._base = base

    def __enter__(self) -> sqlite3.Connection:
        if self._base.in_transaction:  # whose end failed
            self._base.execute("ROLLBACK")
        self._base.execute("BEGIN IMMEDIATE")
        return self._base

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self._base.execute("COMMIT")
        finally:
            if self._base.in_transaction:  # not committed, nor ended by SQLite itself
                self._base.execute("ROLLBACK")


def _held(path: Path) -> bool:
    """Whether a process is writing a file; where that cannot be told, yes.

    Ids of processes do not tell: the next process of a container has that of the killed one.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
