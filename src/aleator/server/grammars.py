"""Grammars of requests: compiled once, within the server's time limit (grammar_limits.py)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from aleator.core.errors import AleatorError, EngineClosed
from aleator.samplers.as_json import constraint_as_json, constraint_from_json
from aleator.samplers.constrained import ConstraintSampler
from aleator.samplers.params import CHAIN_OPTIONS, CONSTRAINTS
from aleator.server.auth import current_caller
from aleator.server.bodies import in_thread
from aleator.server.fields import constrained
from aleator.server.grammar_limits import KEPT, KeptGrammars, Trials
from aleator.text.tokenizer import Tokenizer

R = TypeVar("R")

MAX_CONCURRENT = 2
"""Most new grammars that are compiled at the same time, each for another key, each in its own process."""


class FairSemaphore:
    """A semaphore for one event loop with several holders; each caller holds it at most once at a time.

    The next holder is the caller that has waited longest since it last held the semaphore, however many of its
    requests wait: those wait for one another first.
    """

    def __init__(self, most: int) -> None:
        self._places, self._closed = asyncio.Semaphore(most), False
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by caller
        self._waiting: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def acquire(self, who: str) -> AsyncIterator[None]:
        """Wait for the semaphore, and hold it within the block."""
        if self._closed:
            raise _closed()
        turn = self._turns.setdefault(who, asyncio.Lock())
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(None) as waiting:  # which close() ends
                    self._waiting.add(waiting)
                    await held.enter_async_context(turn)
                    await held.enter_async_context(self._places)
            except TimeoutError:
                raise _closed() from None
            finally:
                self._waiting.discard(waiting)
            yield

    def close(self) -> None:
        """Refuse all callers from now on, including waiting ones; called in the event loop."""
        self._closed = True
        for each in self._waiting:
            each.reschedule(0)


def _closed() -> EngineClosed:
    return EngineClosed("the server ends: ask again")


class Grammars:
    """The grammars of a server's requests, compiled for its vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Try new grammars, each one at a time; empty: they are compiled without a trial.
        self.trials: Sequence[Trials] = ()
        self._tokenizer = tokenizer
        self._made = KeptGrammars()
        self._tried: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()  # guards tried and compiled grammars; held briefly
        # For slow work, taken before the other: a lock for each grammar, and the users of the processes.
        self._compiling: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._busy: set[Trials] = set()
        self._freed = threading.Condition()
        self._semaphore = FairSemaphore(MAX_CONCURRENT)
        self._preparing: threading.Thread | None = None

    def begin(self) -> None:
        """Prepare for the first grammar in the background, as it would delay itself and all others."""
        for each in self.trials[:1]:
            each.begin()
        self._preparing = threading.Thread(target=self._prepare, daemon=True)
        self._preparing.start()

    def _prepare(self) -> None:
        with suppress(AleatorError):  # reported to the request that gives a grammar
            prepare(self._tokenizer)

    def __len__(self) -> int:
        return len(self._made)

    async def in_thread(self, options: Mapping[str, Any], work: Callable[[], R]) -> R:
        """Do a request's work in another thread; a new grammar waits for :class:`FairSemaphore`.

        So slow grammars do not occupy all threads, and requests with another key or a known grammar do not wait
        for them.
        """
        if not constrained(options) or await in_thread(self._all, self._made.find, options):
            return await in_thread(work)
        async with self._semaphore.acquire(current_caller().tenant):
            return await in_thread(work)

    async def tried(self, options: Mapping[str, Any]) -> None:
        """Run :meth:`try_out` in another thread, after waiting for :class:`FairSemaphore`."""
        if (
            self.trials
            and constrained(options)
            and not await in_thread(self._all, self._passed, options)
        ):
            async with self._semaphore.acquire(current_caller().tenant):
                await in_thread(self.try_out, options)

    def try_out(self, options: Mapping[str, Any]) -> None:
        """Check that a request's grammar can be compiled in time."""
        for name, grammar, key in _grammars_of(options):
            if self.trials and not self._passed(key):
                with self._lock_of(key):
                    self._try(name, grammar, key)

    def compiled(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a request with its grammar, if any, compiled."""
        made = {
            name: self._sampler(name, grammar, key) for name, grammar, key in _grammars_of(options)
        }
        return {**options, **made}

    def cut(self) -> None:
        """End all waiting for grammars with the error that the server is ending; called in the event loop."""
        self._semaphore.close()
        for each in self.trials:
            each.cut()

    def close(self) -> None:
        """End the trial processes once they are idle."""
        if self._preparing is not None:
            self._preparing.join()
        with self._freed:
            self._freed.wait_for(lambda: not self._busy)
            for each in self.trials:
                each.close()

    def _lock_of(self, key: str) -> threading.Lock:
        """The lock for work on one grammar; it exists while in use."""
        with self._lock:
            return self._compiling.setdefault(key, threading.Lock())

    @contextmanager
    def _trial(self) -> Iterator[Trials]:
        """A trial process for exclusive use."""
        with self._freed:
            self._freed.wait_for(lambda: len(self._busy) < len(self.trials))
            mine = next(each for each in self.trials if each not in self._busy)
            self._busy.add(mine)
        try:
            yield mine
        finally:
            with self._freed:
                self._busy.discard(mine)
                self._freed.notify_all()

    @staticmethod
    def _all(found: Callable[[str], object], options: Mapping[str, Any]) -> bool:
        """Whether all grammars of a request are known, by their keys."""
        return all(found(key) for _, _, key in _grammars_of(options))

    def _sampler(self, name: str, grammar: Mapping[str, Any], key: str) -> ConstraintSampler:
        known = self._made.find(key)
        if known is not None:
            return known
        with self._lock_of(key):
            known = self._made.find(key)
            if known is not None:  # another request has compiled it meanwhile
                return known
            self._try(name, grammar, key)
            known = sampler_of(grammar).bound(self._tokenizer)
            _ = known.constraint
            self._made.keep(key, known)
        return known

    def _passed(self, key: str) -> bool:
        with self._lock:
            if key in self._tried:
                self._tried.move_to_end(key)
            return key in self._tried

    def _try(self, name: str, grammar: Mapping[str, Any], key: str) -> None:
        """Try whether a grammar can be compiled; its lock is held."""
        if self.trials and not self._passed(key):
            with self._trial() as trial:
                trial.run(name, grammar)
            with self._lock:
                self._tried[key] = None
                if len(self._tried) > 2 * KEPT:
                    self._tried.popitem(last=False)


def prepare(tokenizer: Tokenizer) -> None:
    """Build what all grammars of a vocabulary share."""
    _ = sampler_of({"option": "regex", "value": "a"}).bound(tokenizer).constraint


def _grammars_of(options: Mapping[str, Any]) -> list[tuple[str, dict[str, Any], str]]:
    """The grammars of a request: the option, its JSON form, and its key, a digest: schemas can be long."""
    made = []
    for name in CONSTRAINTS:
        if options.get(name) is not None:
            grammar = grammar_json(name, options[name])
            key = hashlib.sha256(json.dumps(grammar).encode()).hexdigest()
            made.append((name, grammar, key))
    return made


def grammar_json(name: str, value: Any) -> dict[str, Any]:
    """A grammar, JSON-ready: from a request, or made from a chat's tools."""
    if isinstance(value, ConstraintSampler):
        return constraint_as_json(value)
    return {"option": name, "value": value}


def sampler_of(grammar: Mapping[str, Any]) -> ConstraintSampler:
    """The constraint whose JSON form :func:`grammar_json` returned, without a vocabulary."""
    if "option" not in grammar:
        return constraint_from_json(grammar)
    made: ConstraintSampler = CHAIN_OPTIONS[grammar["option"]].check(grammar["value"])
    return made
