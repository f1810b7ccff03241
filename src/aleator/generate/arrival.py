"""The beginning of a text on its way from a tier of the prompt cache into a sequence.

What a store has is read block by block.  Where everything in a pool can be cut, a block is put into the
sequence when it has come, and what has come is of use if the rest does not; windows and recurrent states are of
use only whole, so all is put in together at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from math import inf
from time import perf_counter

from aleator.cache.block_store import Entry, MemoryStore, Sections
from aleator.cache.cache import Cache
from aleator.cache.formats import pieces
from aleator.core.errors import CacheError, CacheFull
from aleator.core.records import dataclass
from aleator.generate.prompt_tiers import Found, PromptTiers

BLOCK = 128
"""Tokens of a block."""
LEAST = 32
"""Tokens that a tier must have beyond the pool, for bringing them up to be worth its while."""
AHEAD = 16 * 2**20
"""Bytes that are asked for before those that came are taken in, beside the next block."""
LONGEST = 30.0
"""Seconds to wait for a tier while it is not known how long computing would take."""

Wake = Callable[[], None]


@dataclass(frozen=True)
class Candidate:
    """A beginning that could be restored: its length, its blocks, and the entry after them if one is needed."""

    length: int
    blocks: Sequence[bytes]
    end: bytes | None

    @property
    def pieces(self) -> Sequence[bytes]:
        """The keys of all its entries, in their order."""
        return self.blocks if self.end is None else [*self.blocks, self.end]


class Arrival:
    """Brings the longest candidate that is sound into a sequence, unless computing it is cheaper.

    Nobody else uses the sequence until it is :attr:`done`.

    Args:
        cache: the sequence's.
        tiers: where from.
        model: the model's name, for whoever looks at the store.
        seq: a sequence that holds the first ``held`` tokens of the text.
        held: how many.
        found: entries by their keys.
        candidates: the longest first.
        keep: called with the length at the end, if that is more than ``held``.
        wake: called in any thread when something has come, so that :meth:`go_on` has something to do; None: it
            waits itself.

    Attributes:
        length: tokens of the text that the sequence holds.
        done: nothing more will come.
        read_seconds: for which other threads have read what was taken in, about.
    """

    def __init__(
        self,
        cache: Cache,
        tiers: PromptTiers,
        model: str,
        seq: int,
        held: int,
        found: Mapping[bytes, Entry],
        candidates: Iterable[Candidate],
        keep: Callable[[int], object],
        wake: Wake | None = None,
    ) -> None:
        self._keep = keep
        self._cache, self._tiers, self._model, self._wake = cache, tiers, model, wake
        self._cells, self._uncut = pieces.cells_of(cache.pool), pieces.has_states(cache.pool)
        self._found, self._candidates = found, iter(candidates)
        self.seq, self.length, self._held = seq, held, held
        self.done, self.read_seconds = False, 0.0
        self._spoiled: set[bytes] = set()
        self._goal = Candidate(held, (), None)
        self._asked: deque[tuple[bytes, Future[Found | None]]] = deque()
        self._left: deque[bytes] = deque()  # keys that were not asked for yet
        self._come: list[tuple[Entry, Sections]] = []  # what waits to be put in whole
        self._tiers_used: set[str] = set()
        self._latest = inf
        self._choose()

    def go_on(self, seconds: float = inf) -> bool:
        """Take in what has come, for about so many seconds; returns whether the sequence has changed."""
        before, end = self.length, perf_counter() + seconds
        try:
            while not self.done:
                self._ask()
                if self._asked and not self._has_come():
                    break
                self._take_next()
                if perf_counter() >= end:
                    break
        except CacheFull:
            self.stop()
        except Exception as error:  # a step goes on without the tiers
            self._tiers.failed(error)
            self.stop()
        return self.length > before

    @property
    def ready(self) -> bool:
        """Whether :meth:`go_on` has something to do at once."""
        return not self.done and (not self._asked or self._asked[0][1].done())

    def _has_come(self) -> bool:
        """Whether the next entry is there; waits no longer for it than computing would take."""
        future, alone = self._asked[0][1], self._wake is None
        if alone:
            wait([future], max(0.0, self._latest - perf_counter()))
        if future.done():
            return True
        if alone or perf_counter() > self._latest:
            self._tiers.stores[-1].counts.add("given_up")
            self.stop()
        return False

    def stop(self) -> None:
        """Wait for nothing more; what the sequence holds stays."""
        if not self.done:
            self.done = True
            self._drop_asked()
            gained = self.length - self._held
            chain = self._goal.pieces if gained else ()
            self._tiers.used(chain, self._tiers_used if gained else set(), gained)
            if gained:
                self._keep(self.length)

    def _drop_asked(self) -> None:
        for _, future in self._asked:
            future.cancel()
        self._asked.clear()
        self._left.clear()
        self._come.clear()

    def _choose(self) -> None:
        """Go for the longest of the candidates that are left; stop where none is worth its while."""
        self._drop_asked()
        for each in self._candidates:
            missing = each.length - self.length
            if missing < LEAST:
                break
            first = min(self.length // BLOCK, len(each.blocks)) if self._cells is not None else 0
            keys = each.pieces[first:]
            if not self._spoiled.isdisjoint(keys):
                continue
            if not self._tiers.is_worth([self._found[key] for key in keys], missing):
                break
            self._goal, self._left = each, deque(keys)
            patience = self._tiers.computing.seconds(missing)
            self._latest = perf_counter() + (LONGEST if patience is None else patience)
            self._ask()  # at once: its turn to be taken in may come late
            return
        self.stop()

    def _ask(self) -> None:
        """Ask for what comes next."""
        size = sum(self._found[key].size for key, _ in self._asked)
        while self._left and (not self._asked or size < AHEAD):
            entry = self._found[self._left.popleft()]
            size += entry.size
            future = self._tiers.ask(entry, self._model)
            if self._wake is not None:
                future.add_done_callback(lambda _, wake=self._wake: wake())  # type: ignore[misc]
            self._asked.append((entry.key, future))

    def _take_next(self) -> None:
        """Take in the next entry, which has come."""
        key, future = self._asked.popleft()
        found = None if future.cancelled() else future.result()
        if found is None:
            self._spoil([key])
            return
        self._tiers_used.add(found[0])
        if found[0] != MemoryStore.name:
            self.read_seconds += self._tiers.reading.seconds(self._found[key].size) or 0.0
        self._come.append((self._found[key], found[1]))
        if self._uncut and (self._asked or self._left):
            return
        keys = [entry.key for entry, _ in self._come]
        try:
            self._cache.journal.run(self._put_in)
        except CacheFull:
            raise
        except CacheError as error:
            self._tiers.failed(error)
            for each in keys:
                self._tiers.drop(each)
            self._spoil(keys)
            return
        self.length = min(self._come[-1][0].length, self._goal.length)
        self._come.clear()
        if not (self._asked or self._left):
            self.stop()

    def _spoil(self, keys: Iterable[bytes]) -> None:
        self._spoiled.update(keys)
        self._choose()

    def _put_in(self) -> None:
        """Within a frame, put what has come into the sequence."""
        for entry, sections in self._come:
            if self._cells is not None:
                whole = entry.key != self._goal.end
                first = entry.length - BLOCK if whole else len(self._goal.blocks) * BLOCK
                places = range(max(first, self.length), min(entry.length, self._goal.length))
                of = range(first, entry.length)
                pieces.read_cells(self._cells, self.seq, places, sections["cells"], of)
            if entry.key == self._goal.end:
                pieces.read_state(self._cache.pool, self.seq, entry.length, sections["state"])
