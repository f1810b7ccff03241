"""The tiers of a prompt cache below the cells: memory and disk, and the threads that read and write files.

:class:`~aleator.generate.tiered_prefixes.TieredPrefixes` puts them below the prefixes of a context.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from functools import partial
from itertools import accumulate
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any
from weakref import WeakSet

from aleator.cache.block_store import Counts, Entry, MemoryStore, Sections, Store
from aleator.cache.disk_store import DiskStore
from aleator.core.errors import ParameterError

log = logging.getLogger(__name__)

QUEUED = 256 * 2**20
"""Most bytes that wait to be written; further entries are dropped."""
CLOSE_TIMEOUT = 10.0
"""Seconds that the end of the interpreter waits for the threads, since a disk may hang."""

READERS = 2
"""Threads that read: while one checks, the other waits for the disk."""
FADING = 0.9
"""Factor by which each new measurement reduces the weight of earlier ones."""
SEEN = 2**16
"""Most digests whose index entries are remembered; then all are forgotten and looked up again."""

Work = deque[tuple[Future[Any], Callable[[], object]]]
Written = tuple[Sequence[bytes], Sequence[tuple[Entry, Sections]], str]
Found = tuple[str, Sections]
"""The name of the tier where an entry was found, and its bytes."""

_open: WeakSet[PromptTiers] = WeakSet()


def nothing() -> Future[Any]:
    """A cancelled future, for work that will not be done."""
    future: Future[Any] = Future()
    leave(future)
    return future


def leave(future: Future[Any]) -> None:
    """Cancel a future that waits for a thread, and wake what waits for it."""
    if future.cancel():
        future.set_running_or_notify_cancel()


class Speed:
    """Seconds that amounts take, from recent measurements."""

    def __init__(self) -> None:
        self._amount = self._seconds = 0.0

    def observe(self, amount: float, seconds: float) -> None:
        """Learn from the seconds that an amount took."""
        self._amount = FADING * self._amount + amount
        self._seconds = FADING * self._seconds + seconds

    def seconds(self, amount: float) -> float | None:
        """Seconds that an amount will take; None if nothing has been measured yet."""
        return self._seconds / self._amount * amount if self._amount else None


class PromptTiers:
    """The tiers of one model, which all of its contexts share; any thread may use them.

    Args:
        ram: bytes in memory; 0: no such tier.
        disk: bytes on disk; 0: no such tier.
        directory: of the disk tier; None: :func:`default_directory`.

    Attributes:
        reading: how fast bytes come from disk, checks included.
        computing: how fast the model computes prompt tokens.
    """

    def __init__(
        self, ram: int, disk: int, directory: str | os.PathLike[str] | None = None
    ) -> None:
        self.memory = MemoryStore(ram) if ram else None
        self.disk = DiskStore(directory or default_directory(), disk) if disk else None
        self.stores: list[Store] = [s for s in (self.memory, self.disk) if s is not None]
        self.secret = (self.disk.secret if self.disk is not None else b"") or os.urandom(32)
        self.counts = Counts()
        self.reading, self.computing = Speed(), Speed()
        # Entries that the index was seen to have, by the digest before them; replaced as a whole.
        self._seen: dict[bytes, dict[bytes, Entry]] = {}
        self._asked: Work = deque()  # reads
        self._looking: Work = deque()  # looks at the index, which do not wait for reads
        self._queue: deque[Written] = deque()
        self._queued, self._writing, self._closed = 0, False, False
        self._changed = threading.Condition()
        self._waiting: Counter[bytes] = Counter()  # keys that are still to be written
        self._threads: list[threading.Thread] = []
        if self.disk is not None and self.disk.usable:
            of_queues = [
                partial(self._do, each) for each in (self._looking, *[self._asked] * READERS)
            ]
            for work in (partial(self._write, self.disk), *of_queues):
                thread = threading.Thread(target=work, name="aleator-cache", daemon=True)
                self._threads.append(thread)
                thread.start()
        _open.add(self)

    def find(self, parents: Sequence[bytes]) -> dict[bytes, Entry]:
        """The entries that directly follow some digests, by key; waits for the disk."""
        on_disk = () if self.disk is None else self.disk.find(parents)
        after: dict[bytes, dict[bytes, Entry]] = {parent: {} for parent in parents}
        for entry in on_disk:
            after.setdefault(entry.parent, {})[entry.key] = entry
        for parent, entries in after.items():
            self._remember(parent, entries)
        in_memory = () if self.memory is None else self.memory.find(parents)
        return {entry.key: entry for entry in (*on_disk, *in_memory)}

    def look_up(self, parents: Sequence[bytes]) -> Future[Mapping[bytes, Entry]]:
        """Have a thread :meth:`find` entries; with the memory tier alone, find them at once."""
        if self.disk is not None and self.disk.usable:
            return self._in_thread(self._looking, partial(self.find, parents))
        future: Future[Mapping[bytes, Entry]] = Future()
        future.set_result(self.find(parents))
        return future

    def known(self, parents: Sequence[bytes]) -> Mapping[bytes, Entry]:
        """The entries that need not be stored again: those last seen on disk or, without a disk, in memory.

        An entry in memory alone may have been dropped on its way to the disk.  Does not wait for the disk.
        """
        if self.disk is None or not self.disk.usable:
            return self.find(parents)
        return {k: entry for p in parents for k, entry in self._seen.get(p, {}).items()}

    def _remember(self, parent: bytes, entries: dict[bytes, Entry]) -> None:
        if not entries:
            self._seen.pop(parent, None)
            return
        if len(self._seen) >= SEEN:
            self._seen.clear()
        self._seen[parent] = entries

    def _lost(self, entry: Entry) -> None:
        """Note that an entry does not exist."""
        left = self._seen.get(entry.parent, {})
        self._remember(entry.parent, {k: each for k, each in left.items() if k != entry.key})

    def waits(self, key: bytes) -> bool:
        """Whether an entry is still to be written."""
        if self.disk is None or not self.disk.usable:
            return False
        with self._changed:
            return key in self._waiting

    def peek(self, key: bytes) -> Sections | None:
        """An entry's bytes in memory, to be stored again; None if they are not there."""
        return None if self.memory is None else self.memory.peek(key)

    @property
    def room(self) -> float:
        """Bytes that :meth:`put` would accept now; what memory has is not lost when the disk is late."""
        if self.memory is not None or self.disk is None or not self.disk.usable:
            return inf
        with self._changed:
            return 0 if self._closed else QUEUED - self._queued

    def get(self, entry: Entry, model: str) -> Found | None:
        """An entry's bytes and the name of its tier; entries from disk are put into memory."""
        for store in self.stores:
            started = perf_counter()
            sections = store.get(entry.key)
            if sections is None:
                continue
            if store is self.disk:
                self.reading.observe(entry.size, perf_counter() - started)
                if self.memory is not None:
                    self.memory.put(entry, sections, model)
            return store.name, sections
        self._lost(entry)
        return None

    def ask(self, entry: Entry, model: str) -> Future[Found | None]:
        """Have a thread :meth:`get` an entry; entries in memory are returned at once."""
        sections = None if self.memory is None else self.memory.get(entry.key)
        if self.memory is None or sections is None:
            return self._in_thread(self._asked, partial(self.get, entry, model))
        future: Future[Found | None] = Future()
        future.set_result((self.memory.name, sections))
        return future

    def _in_thread(self, queue: Work, work: Callable[[], Any]) -> Future[Any]:
        """Have a thread do disk work; the future is cancelled if there is no thread, or it has ended."""
        future: Future[Any] = Future()
        # Also in a forked child, where a lock may be held
        if self.disk is None or not self.disk.usable:
            return nothing()
        with self._changed:
            if self._closed:
                return nothing()
            queue.append((future, work))
            self._changed.notify_all()
        return future

    def is_worth(self, entries: Iterable[Entry], tokens: int) -> bool:
        """Whether reading entries takes less time than computing ``tokens`` tokens, as far as is known."""
        size = sum(e.size for e in entries if self.memory is None or e.key not in self.memory)
        reading, computing = self.reading.seconds(size), self.computing.seconds(tokens)
        if reading is None or computing is None or reading <= computing:
            return True
        self.stores[-1].counts.add("computed_instead")
        return False

    def used(self, chain: Sequence[bytes], tiers: Set[str], tokens: int) -> None:
        """Count a look-up: a hit of the lowest tier that it needed, and a miss of each tier above."""
        for store in self.stores:
            lowest = store.name in tiers and (store is self.stores[-1] or len(tiers) == 1)
            store.counts.add("hits" if lowest else "misses")
            if lowest:
                store.counts.add("tokens", tokens)
                self.put(chain, (), "")
                return

    def put(
        self, chain: Sequence[bytes], entries: Sequence[tuple[Entry, Sections]], model: str
    ) -> None:
        """Store entries, and note that their chain was used; return at once."""
        if self.memory is not None:
            for entry, sections in entries:
                self.memory.put(entry, sections, model)
            self.memory.touch(chain)
        if self.disk is None or not self.disk.usable:
            return
        with self._changed:
            room = 0 if self._closed else QUEUED - self._queued
            sizes = accumulate(entry.size for entry, _ in entries)
            taken = [each for each, size in zip(entries, sizes, strict=True) if size <= room]
            if len(taken) < len(entries):
                self.counts.add("dropped", len(entries) - len(taken))
            if self._closed or (entries and not taken):
                return
            self._queue.append((chain, taken, model))
            self._queued += sum(entry.size for entry, _ in taken)
            self._waiting.update(entry.key for entry, _ in taken)
            self._changed.notify_all()

    def drop(self, entry: Entry) -> None:
        """Remove a bad entry; on disk, a thread does it."""
        self._lost(entry)
        if self.memory is not None:
            self.memory.drop(entry.key)
        if self.disk is not None:
            self._in_thread(self._asked, partial(self.disk.drop, entry.key))

    def forget(self, root: bytes) -> None:
        """Remove all entries below a digest, directly or not; waiting entries are written first."""
        self.flush(CLOSE_TIMEOUT)
        after = [root]
        while after:
            found = list(self.find(after))
            for parent in after:
                self._remember(parent, {})
            for key in found:
                for store in self.stores:
                    store.drop(key)
            after = found

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything is written; return whether it is."""
        if self.disk is None or not self.disk.usable:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not (self._queue or self._writing), timeout)

    def close(self, timeout: float | None = CLOSE_TIMEOUT) -> None:
        """Write what is waiting, and accept nothing more; wait at most ``timeout`` seconds for the threads."""
        if self.disk is None or not self.disk.usable:
            return
        with self._changed:
            self._closed = True
            asked = [*self._looking, *self._asked]
            self._looking.clear()
            self._asked.clear()
            self._changed.notify_all()
        for future, _ in asked:
            leave(future)
        end = None if timeout is None else perf_counter() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():  # garbage collection may run in it
                thread.join(None if end is None else max(0.0, end - perf_counter()))
        if not any(thread.is_alive() for thread in self._threads):  # it may hold the disk's locks
            self.disk.close()

    def failed(self, error: Exception) -> None:
        """Count and log an error; the caller continues without the tiers."""
        self.counts.add("errors")
        log.warning("the prompt cache's tiers: %s: %s", type(error).__name__, error)

    def tell(self) -> dict[str, dict[str, int]]:
        """The counts of each tier so far, by name."""
        return {store.name: dict(store.counts) for store in self.stores}

    def _do(self, queue: Work) -> None:
        """Run a queue's work, in a thread."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: queue or self._closed)
                if not queue:
                    return
                future, work = queue.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except Exception as error:  # the caller counts it
                future.set_exception(error)

    def _write(self, disk: DiskStore) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                chain, entries, model = self._queue.popleft()
                self._writing = True
            try:
                for entry, sections in entries:
                    disk.put(entry, sections, model)
                    # Dropped entries too: they are not stored again before a new look-up.
                    self._remember(
                        entry.parent, {**self._seen.get(entry.parent, {}), entry.key: entry}
                    )
                disk.touch(chain)
            except Exception as error:  # no error may end the thread
                disk.failed(error)
            finally:
                with self._changed:
                    self._queued -= sum(entry.size for entry, _ in entries)
                    self._waiting.subtract(entry.key for entry, _ in entries)
                    self._waiting = +self._waiting
                    self._writing = False
                    self._changed.notify_all()


@atexit.register
def _close_all() -> None:
    for tiers in list(_open):
        tiers.close()


def default_directory() -> Path:
    """The default directory of the prompt cache on disk."""
    try:
        folder = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    except RuntimeError:
        why = "cache_dir=None: this user has no home folder for what cache_disk keeps: name a directory"
        raise ParameterError("cache_dir", why) from None
    return Path(folder) / "aleator" / "prompts"
