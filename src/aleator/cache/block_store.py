"""Where a prompt cache keeps its entries outside of the pool: what stores have in common, and one in memory.

A store can ``find`` the entries that follow some digests, ``get`` one, ``put`` one, ``touch`` those that were
used.  What was not used for the longest time goes first when it is full.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Protocol

from aleator.cache.formats.state_file import Buffer
from aleator.core.records import dataclass

Sections = Mapping[str, Buffer]


@dataclass(frozen=True)
class Entry:
    """What the store has of an entry beside its bytes."""

    key: bytes  # its name, a keyed digest of everything that it depends on
    parent: bytes  # the digest of the whole blocks before it
    length: int  # tokens of the text up to its end
    size: int  # its bytes


class Counts(Counter[str]):
    """Counts that several threads add to."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()  # garbage that is collected in between may count something

    def add(self, name: str, n: int = 1) -> None:
        """Count something, or n of it."""
        with self._lock:
            self[name] += n


class Store(Protocol):
    """One tier; ``counts`` has hits, misses, entries written, bytes each way, and what went wrong."""

    name: str
    counts: Counts

    def find(self, parents: Sequence[bytes]) -> Sequence[Entry]:
        """The entries that follow directly after one of some digests."""

    def get(self, key: bytes) -> Sections | None:
        """An entry's bytes; None if they are not there, or not sound."""

    def put(self, entry: Entry, sections: Sections, model: str) -> bool:
        """Store an entry, if there is room for it; returns whether it is there."""

    def touch(self, keys: Sequence[bytes]) -> None:
        """Note that entries were used, the last one first."""

    def drop(self, key: bytes) -> None:
        """Forget an entry."""


class MemoryStore:
    """Entries in this process's memory, ``budget`` bytes at most."""

    name = "ram"

    def __init__(self, budget: int) -> None:
        self.budget, self.counts, self.used = budget, Counts(), 0
        self._entries: OrderedDict[bytes, tuple[Entry, Sections]] = OrderedDict()
        self._after: dict[bytes, set[bytes]] = {}
        self._lock = threading.Lock()

    def find(self, parents: Sequence[bytes]) -> Sequence[Entry]:
        with self._lock:
            return [self._entries[k][0] for p in parents for k in self._after.get(p, ())]

    def get(self, key: bytes) -> Sections | None:
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self.counts.add("bytes_read", found[0].size)
            return found[1]

    def peek(self, key: bytes) -> Sections | None:
        """What :meth:`get` would give, for whoever does not read it."""
        with self._lock:
            found = self._entries.get(key)
            return None if found is None else found[1]

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def put(self, entry: Entry, sections: Sections, model: str) -> bool:
        with self._lock:
            if entry.size > self.budget or entry.key in self._entries:
                return entry.key in self._entries
            while self.used + entry.size > self.budget:
                self._forget(next(iter(self._entries)))
                self.counts.add("evicted")
            self._entries[entry.key] = entry, sections
            self._after.setdefault(entry.parent, set()).add(entry.key)
            self.used += entry.size
            self.counts.add("written")
            self.counts.add("bytes_written", entry.size)
            return True

    def touch(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in reversed(keys):
                if key in self._entries:
                    self._entries.move_to_end(key)

    def drop(self, key: bytes) -> None:
        with self._lock:
            if key in self._entries:
                self._forget(key)

    def _forget(self, key: bytes) -> None:
        entry = self._entries.pop(key)[0]
        after = self._after[entry.parent]
        after.discard(key)
        if not after:
            del self._after[entry.parent]
        self.used -= entry.size
