"""Loads a prefix of a text from a tier of the prompt cache into a sequence.

Threads look up and read what a store has, block by block, and each block is put into the sequence when it
arrives.  In a pool whose entries can all be cut, the blocks that have arrived are of use without the rest;
with windows and recurrent states they need the entry for the end, which comes last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from math import inf
from time import perf_counter
from typing import Any

from aleator.cache.block_store import Entry, MemoryStore, Sections
from aleator.cache.cache import Cache
from aleator.cache.formats import pieces
from aleator.core.errors import CacheError, CacheFull
from aleator.core.records import dataclass
from aleator.generate.prompt_tiers import Found, PromptTiers, nothing

BLOCK = 128
"""Tokens per block."""
LEAST = 32
"""Tokens that a tier must have beyond the pool for loading them to pay."""
AHEAD = 16 * 2**20
"""Bytes that are requested before those that arrived are taken in, besides the next block."""
MAX_WAIT = 30.0
"""Seconds to wait for a tier while the time of computing is unknown."""
LOOKING = 0.02
"""Least time in seconds to wait for an index look-up, however fast computing is."""

Wake = Callable[[], None]


@dataclass(frozen=True)
class Candidate:
    """A prefix that could be restored: its length, its blocks, and the entry after them if one is needed."""

    length: int
    blocks: Sequence[bytes]
    end: bytes | None

    @property
    def pieces(self) -> Sequence[bytes]:
        """Keys of all its entries, in order."""
        return self.blocks if self.end is None else [*self.blocks, self.end]


@dataclass(frozen=True)
class LookUp:
    """What the tiers have of a text, looked up before its turn."""

    digests: Sequence[bytes]  # of the empty prefix, and after each whole block
    found: Future[Mapping[bytes, Entry]]  # entries by their keys, once a thread has looked
    # their bytes, if these were read too; None: each is requested when it is needed
    read: Mapping[bytes, Future[Found | None]] | None = None


class PrefixLoad:
    """Loads the longest sound candidate into a sequence, unless computing it is cheaper.

    Nothing else may use the sequence until this is :attr:`done`.

    Attributes:
        length: tokens of the text that the sequence holds.
        done: nothing more will arrive.
        seconds: cost so far: the time of putting entries in, and an estimate of the reading threads' time.
    """

    def __init__(
        self,
        cache: Cache,  # the sequence's
        tiers: PromptTiers,  # source of the entries
        model: str,  # the model's name, for people who inspect the store
        seq: int,  # a sequence that holds the first ``held`` tokens of the text
        held: int,  # how many
        most: int,  # most tokens of the text that it may hold
        look_up: LookUp,  # what the tiers have of the text
        # candidates among the entries that were found, longest first
        candidates: Callable[[Mapping[bytes, Entry]], Iterable[Candidate]],
        # called at the end with the length, if that exceeds ``held``
        keep: Callable[[int], object],
        # called in any thread when something has arrived and ``go_on`` has work to do; None: ``go_on`` waits
        wake: Wake | None = None,
    ) -> None:
        self._keep = keep
        self._cache, self._tiers, self._model, self._wake = cache, tiers, model, wake
        self._has_cells = pieces.cells_of(cache.pool) is not None
        self._uncut = pieces.has_states(cache.pool)
        self._look_up, self._candidates_of = look_up, candidates
        self._found: Mapping[bytes, Entry] = {}
        self._candidates: Iterator[Candidate] = iter(())
        self.seq, self.length, self._held = seq, held, held
        self._placed = held  # positions that have cells
        self.done, self.seconds = False, 0.0
        self._spoiled: set[bytes] = set()
        self._goal: Candidate | None = None  # None until the look-up is done
        self._asked: deque[tuple[bytes, Future[Found | None]]] = deque()
        self._left: deque[bytes] = deque()  # keys that have not been requested
        self._tiers_used: set[str] = set()
        self._latest = perf_counter() + max(LOOKING, self._patience(most - held))
        if look_up.found.done():
            self._look()
        else:
            self._wake_after(look_up.found)

    def go_on(self, seconds: float = inf) -> bool:
        """Take in what has arrived, for about ``seconds`` seconds; return whether the sequence has changed."""
        before, end = self.length, perf_counter() + seconds
        try:
            while not self.done:
                if not self._has_arrived():
                    break
                if self._goal is None:
                    self._look()
                else:
                    self._take_next(self._goal)
                if perf_counter() >= end:
                    break
        except CacheFull:
            self.stop()
        except Exception as error:  # the step continues without the tiers
            self._tiers.failed(error)
            self.stop()
        return self.length > before

    @property
    def ready(self) -> bool:
        """Whether :meth:`go_on` has work to do now."""
        return not self.done and self._awaited.done()

    @property
    def late(self) -> bool:
        """Whether the wait has been as long as computing the missing tokens would take."""
        return perf_counter() > self._latest

    @property
    def _awaited(self) -> Future[Any]:
        """The future to wait for: the look-up, or the next entry, which has always been requested."""
        return self._look_up.found if self._goal is None else self._asked[0][1]

    def _has_arrived(self) -> bool:
        """Whether that future is done; wait for it at most as long as computing would take."""
        future, alone = self._awaited, self._wake is None
        if alone and not future.done():
            wait([future], max(0.0, self._latest - perf_counter()))
        if future.done():
            return True
        if alone or self.late:
            self._tiers.stores[-1].counts.add("given_up")
            self.stop()
        return False

    def stop(self) -> None:
        """Stop waiting for more; the sequence keeps what it holds."""
        if not self.done:
            self.done = True
            self._drop_asked()
            if self._placed > self.length:
                self._cache.journal.run(pieces.take_back, self._cache.pool, self.seq, self.length)
            gained = self.length - self._held
            chain = self._goal.pieces if gained and self._goal is not None else ()
            self._tiers.used(chain, self._tiers_used if gained else set(), gained)
            if gained:
                self._keep(self.length)

    def _drop_asked(self) -> None:
        for _, future in self._asked:
            future.cancel()
        self._asked.clear()
        self._left.clear()

    def _patience(self, tokens: int) -> float:
        """Seconds that computing ``tokens`` tokens would take."""
        seconds = self._tiers.computing.seconds(tokens)
        return MAX_WAIT if seconds is None else seconds

    def _look(self) -> None:
        """Select candidates among the entries that were found."""
        looked = self._look_up.found
        self._found = {} if looked.cancelled() else looked.result()
        self._candidates = iter(self._candidates_of(self._found))
        self._choose()

    def _choose(self) -> None:
        """Load the longest of the remaining candidates; stop if none is worth it."""
        self._drop_asked()
        for each in self._candidates:
            missing = each.length - self.length
            if missing < LEAST:
                break
            first = min(self._placed // BLOCK, len(each.blocks)) if self._has_cells else 0
            keys = each.pieces[first:]
            if not self._spoiled.isdisjoint(keys):
                continue
            entries = [self._found[key] for key in keys]
            if self._look_up.read is None and not self._tiers.is_worth(entries, missing):
                break
            self._goal, self._left = each, deque(keys)
            self._latest = perf_counter() + self._patience(missing)
            self._ask()  # now, since its turn to be taken in may come late
            return
        self.stop()

    def _ask(self) -> None:
        """Request the next entries."""
        size = sum(self._found[key].size for key, _ in self._asked)
        while self._left and (not self._asked or size < AHEAD):
            entry = self._found[self._left.popleft()]
            size += entry.size
            if self._look_up.read is None:
                future = self._tiers.ask(entry, self._model)
            else:
                future = self._look_up.read.get(entry.key, nothing())
            self._wake_after(future)
            self._asked.append((entry.key, future))

    def _wake_after(self, future: Future[Any]) -> None:
        if self._wake is not None:
            future.add_done_callback(lambda _, wake=self._wake: wake())  # type: ignore[misc]

    def _take_next(self, goal: Candidate) -> None:
        """Take in the next entry, which has arrived; the following ones are read meanwhile."""
        key, future = self._asked.popleft()
        self._ask()
        found, entry = None if future.cancelled() else future.result(), self._found[key]
        if found is None:
            self._spoil(key)
            return
        started = perf_counter()
        try:
            self._cache.journal.run(self._put_in, goal, entry, found[1])
        except CacheFull:
            raise
        except CacheError as error:
            self._tiers.failed(error)
            self._tiers.drop(entry)
            self._spoil(key)
            return
        self._tiers_used.add(found[0])
        self.seconds += perf_counter() - started
        if found[0] != MemoryStore.name:
            self.seconds += self._tiers.reading.seconds(entry.size) or 0.0
        self._placed = min(entry.length, goal.length)
        if key == goal.end or not self._uncut:
            self.length = self._placed
        if not (self._asked or self._left):
            self.stop()

    def _spoil(self, key: bytes) -> None:
        self._spoiled.add(key)
        self._choose()

    def _put_in(self, goal: Candidate, entry: Entry, sections: Sections) -> None:
        """Put an entry into the sequence, within a frame."""
        pool = self._cache.pool
        if self._has_cells:
            first = len(goal.blocks) * BLOCK if entry.key == goal.end else entry.length - BLOCK
            places = range(max(first, self._placed), min(entry.length, goal.length))
            of = range(first, entry.length)
            pieces.read_cells(pool, self.seq, places, sections["cells"], of)
        if entry.key == goal.end:
            pieces.read_state(pool, self.seq, entry.length, sections["state"])
