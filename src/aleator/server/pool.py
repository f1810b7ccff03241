"""The models of one server: loaded when a request names one, unloaded when idle and others need the room.

Everything here runs in the event loop, which makes each step between two ``await`` atomic; no lock guards a
model's state.  Only finding, loading and unloading run in other threads.  Models are loaded and unloaded one at
a time, in the order in which they were asked for and found, which may take a download.  A model is unloaded
only while no request uses it.  Where all models are busy, the least recently used one gets no new requests
until it has been unloaded; these wait for it to be loaded again.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from time import monotonic, time

import anyio.to_thread

from aleator.core.errors import EngineClosed, ParameterError, QueueFull
from aleator.core.memory import memory_limit
from aleator.engine.stats import EngineStats
from aleator.server.bodies import BODIES_AT_ONCE, in_thread, no_room
from aleator.server.entry import Entry, Loaded
from aleator.server.errors import ApiError, no_model
from aleator.server.native_memory import return_memory
from aleator.server.options import ServerOptions
from aleator.server.telemetry import event, failure

ClientGone = Callable[[], Awaitable[None]]

RETRY_SECONDS = 30.0
"""Seconds for which a model that could not be loaded is not tried again, unless ``/models/load`` asks."""
OF_MEMORY = 0.75
"""Part of the memory of the machine, or of the control group, that models may take by default."""
MOST_NAMED = 20
"""Most names of models in an error."""


class ClientLeft(Exception):
    """The client of a request has disconnected while it waited."""


def _free() -> None:
    """Free what an unloaded model had, which is among cycles of objects."""
    gc.collect()
    return_memory()


class Pool:
    """The models of a server.

    Args:
        entries: the models; the first one is for requests that name none, unless ``default`` says another.
        options: the server's.
        again: lists the models anew, in another thread.

    Raises:
        ParameterError: two models have one name, or there is no model.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        options: ServerOptions,
        default: str | None = None,
        again: Callable[[], Sequence[Entry]] | None = None,
    ) -> None:
        self.options, self._memory = options, options.models_memory
        if self._memory is None and (limit := memory_limit()) is not None:
            self._memory = int(limit * OF_MEMORY)
        self._asked, self._again, self._reloading = default, again, asyncio.Lock()
        self._former: list[Entry] = []  # no longer listed; those in memory are unloaded once idle
        self._take(entries)
        self._turn = asyncio.Lock()  # held while models are loaded or unloaded
        self._changed = asyncio.Event()  # set for a moment where a model has changed
        self._uses = itertools.count(1)
        self._waiting_bytes = 0  # of bodies
        self._expiring: set[asyncio.Task[None]] = set()
        self.started = int(time())
        self._cut = False

    def _take(self, entries: Sequence[Entry]) -> None:
        """List these models; ParameterError leaves those that are listed."""
        if not entries:
            raise ParameterError("models: there is no model: list at least one")
        by_name: dict[str, Entry] = {}
        shared: dict[str, list[Entry]] = {}  # adapters of several models, by name
        for entry in entries:
            for name in (entry.name, *entry.aliases, *entry.adapters):
                _add_name(name, entry, by_name, shared)
        for name in shared:
            del by_name[name]
        # An adapter is no default: a request without a name could not tell the model to use it.
        models = [name for each in entries for name in (each.name, *each.aliases)]
        if self._asked is not None and self._asked not in models:
            raise ParameterError(f"model={self._asked!r:.80}: --models has {_listing(models)}")
        self.default = entries[0] if self._asked is None else by_name[self._asked]
        self.entries, self.by_name, self._shared = tuple(entries), by_name, shared

    async def reload(self) -> None:
        """List the models anew; those with another source are unloaded once no request uses them.

        Raises:
            ParameterError: the new list is wrong; the earlier one stays.
        """
        if self._again is None:
            return
        async with self._reloading:
            made = await in_thread(self._again)
            self._check_open()
            known = {each.name: each for each in self.entries}
            now = [
                was if (was := known.get(each.name)) and was.source == each.source else each
                for each in made
            ]
            before = self.entries
            self._take(now)
        former = [each for each in (*self._former, *before) if each not in now]
        self._former = [each for each in former if each.task or each.loaded or each.waiting]
        for each in self._former:
            each.keep_loaded = False
            self._expire(each, each.used)
        for each in now:
            each.why_not = ""
            if each.keep_loaded and each not in before:
                self.hold(each)

    def names_of(self, entry: Entry) -> list[str]:
        """What requests may call a model and its adapters; an adapter of several models is none of these."""
        return [entry.name, *(each for each in entry.adapters if each in self.by_name)]

    @property
    def loaded(self) -> dict[Entry, Loaded]:
        """The models in memory."""
        return {each: each.loaded for each in self._all if each.loaded is not None}

    @property
    def _all(self) -> tuple[Entry, ...]:
        return (*self._former, *self.entries)

    def stats(self) -> dict[str, EngineStats]:
        """Counts of the loaded models by their names."""
        return {each.name: loaded.service.engine.stats for each, loaded in self.loaded.items()}

    def find(self, name: str | None) -> Entry:
        """The model of a request; ApiError where no model has the name."""
        if name in self._shared:
            models = _listing([each.name for each in self._shared[name]])
            raise no_model(
                f"model={name!r:.80} is an adapter of {models}: give one of these, and adapters={name!r:.80}"
            )
        found = self.default if name is None else self.by_name.get(name)
        if found is None and self.options.any_model:
            found = self.default
        if found is None:
            raise no_model(f"model={name!r:.80}: this server has {_listing([*self.by_name])}")
        return found

    @asynccontextmanager
    async def use(
        self, entry: Entry, gone: ClientGone | None = None, size: int = 0
    ) -> AsyncIterator[Loaded]:
        """Use a model within the block, once it is loaded; nothing unloads it meanwhile.

        Args:
            entry: the model.
            gone: waits until the client disconnects.
            size: bytes of the request's body.

        Raises:
            ApiError: it could not be loaded, or not within ``request_timeout``, or bodies take too much memory.
            QueueFull: too many requests wait for it.
            EngineClosed: the server ends.
            ClientLeft: the client has disconnected.
        """
        if not entry.ready:
            await self._wait(entry, gone, size)
        entry.serving += 1  # nothing else has run since it was ready
        if entry.timer is not None:
            entry.timer.cancel()
        entry.used = next(self._uses)
        try:
            assert entry.loaded is not None  # noqa: S101
            yield entry.loaded
        finally:
            entry.serving -= 1
            entry.used = next(self._uses)
            keeps = 0.0 if entry in self._former else entry.keeps
            if keeps is not None and not entry.serving:
                loop = asyncio.get_running_loop()
                entry.timer = loop.call_later(keeps, self._expire, entry, entry.used)
            self._tell()

    def _expire(self, entry: Entry, used: int) -> None:
        """Unload a model that has not been used since ``used``, for as long as it is kept."""

        async def work() -> None:
            async with self._turn:
                if entry.used == used and entry.loaded is not None and entry.idle:
                    await self._unload(entry)

        task = asyncio.create_task(work())
        self._expiring.add(task)
        task.add_done_callback(self._expiring.discard)

    async def _wait(self, entry: Entry, gone: ClientGone | None, size: int) -> None:
        if entry.waiting >= entry.max_queue:
            raise QueueFull(entry.max_queue)
        if self._waiting_bytes + size > BODIES_AT_ONCE * self.options.max_body_bytes:
            raise no_room({})
        entry.waiting += 1
        self._waiting_bytes += size
        leaves = [] if gone is None else [asyncio.ensure_future(gone())]
        try:
            async with asyncio.timeout(self.options.request_timeout):
                while not entry.ready:
                    events = [self._loading(entry), *leaves]
                    await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
                    if any(each.done() for each in leaves):
                        raise ClientLeft
        except TimeoutError:
            raise ApiError(
                503,
                f"model {entry.name!r:.80} was not loaded within {self.options.request_timeout:g} s: ask again",
                code="model_not_loaded",
                headers={"retry-after": "1"},
            ) from None
        finally:
            for each in leaves:
                each.cancel()
            self._waiting_bytes -= size
            self._leave(entry)

    def _leave(self, entry: Entry) -> None:
        """Wait no longer for a model; one that is no longer listed is unloaded unless it is used now."""
        entry.waiting -= 1
        self._tell()
        if entry in self._former:
            self._expire(entry, entry.used)

    def _loading(self, entry: Entry) -> asyncio.Task[None]:
        """The task that loads a model, which begins here unless it has."""
        self._check_open()
        if entry.task is None:
            if entry.why_not and monotonic() - entry.failed < RETRY_SECONDS:
                raise ApiError(
                    503,
                    f"model {entry.name!r:.80} could not be loaded: {entry.why_not}",
                    code="model_not_loaded",
                )
            entry.progress = 0.0
            entry.task = asyncio.create_task(self._load(entry))
        return entry.task

    async def _load(self, entry: Entry) -> None:
        """Load a model in its turn, if anybody still waits for it then."""
        try:
            async with self._turn:
                if entry.loaded is not None and not entry.loaded.usable:
                    await self._unload(entry)
            # Which may download it: others are loaded meanwhile, and requests keep the usual threads.
            own = anyio.CapacityLimiter(1)
            needed = await anyio.to_thread.run_sync(entry.measure, limiter=own)
            async with self._turn:
                if entry.loaded is None and entry.waiting:
                    entry.bytes = needed
                    await self._bring_up(entry)
        except Exception as error:
            entry.why_not, entry.failed = str(error) or type(error).__name__, monotonic()
            failure("model not loaded", error, model=entry.name, reason=entry.why_not)
        finally:
            entry.task = entry.progress = None
            self._tell()

    async def _bring_up(self, entry: Entry) -> None:
        entry.why_not, began = "", monotonic()
        if not await self._make_room(entry):
            return

        def progress(done: int, total: int) -> None:
            self._check_open()
            entry.progress = done / max(total, 1)

        def work() -> None:  # stores it here: a task that is cancelled drops what a thread returns
            loaded = entry.load(progress)
            if self._cut:
                loaded.close()
            else:
                entry.loaded = loaded

        await in_thread(work)
        entry.used = next(self._uses)
        took, mebibytes = round(monotonic() - began, 3), entry.bytes >> 20
        event("model loaded", model=entry.name, seconds=took, mebibytes=mebibytes)

    async def _make_room(self, entry: Entry) -> bool:
        """Unload others until a model fits; returns False if nobody waits for it any more."""
        self._check_possible(entry)
        try:
            while entry.waiting and not self._fits(entry, self.loaded):
                others = [each for each in self.loaded if not each.keep_loaded]
                idle = [each for each in others if each.idle]
                if idle:
                    await self._unload(min(idle, key=lambda each: each.used))
                    continue
                # One that was loaded just now is used first by what waited for it.
                busy = [each for each in others if each.serving]
                if busy and not any(each.leaving for each in others):
                    min(busy, key=lambda each: each.used).leaving = True
                await self._changed.wait()
            return entry.waiting > 0
        finally:
            for each in self._all:
                each.leaving = False
            self._tell()

    def _check_possible(self, entry: Entry) -> None:
        """Refuse a model that does not fit in even when all others that may be are unloaded."""
        kept = [each for each in self.loaded if each.keep_loaded]
        if not self._fits(entry, kept):
            taken = sum(each.bytes for each in kept)
            message = f"--models-max is {self.options.models_max}"
            if self._memory is not None and taken + entry.bytes > self._memory:
                needed = -(-entry.bytes >> 20)  # rounded up: more than there is
                message = f"it needs {needed} MiB, and --models-memory is {self._memory >> 20} MiB"
            if kept:
                message += f", where {len(kept)} that are kept loaded take {taken >> 20} MiB"
            raise ParameterError(
                "models", f"{message}: give more, a smaller n_ctx, or fewer models with keep_loaded"
            )

    def _fits(self, entry: Entry, others: Collection[Entry]) -> bool:
        most, taken = self.options.models_max, sum(each.bytes for each in others)
        return (most is None or len(others) < most) and (
            self._memory is None or taken + entry.bytes <= self._memory
        )

    async def _unload(self, entry: Entry) -> None:
        """Unload an idle model; its turn is held."""
        entry.leaving = True
        try:
            assert entry.loaded is not None  # noqa: S101
            await in_thread(entry.loaded.close)
        except Exception as error:
            failure("model not closed", error, model=entry.name)
        finally:
            entry.loaded, entry.leaving = None, False
            await in_thread(_free)
            self._tell()
        event("model unloaded", model=entry.name)

    async def unload(self, entry: Entry) -> None:
        """Unload a model because a request says so; ApiError where others use it, or it is not loaded."""
        self._check_unused(entry)
        async with self._turn:
            self._check_unused(entry)  # others may have come meanwhile
            await self._unload(entry)

    def _check_unused(self, entry: Entry) -> None:
        if n := entry.serving + entry.waiting:
            message = f"model {entry.name!r:.80} has {n} requests under way: ask again"
            raise ApiError(409, message)
        if entry.loaded is None:
            raise ApiError(400, f"model {entry.name!r:.80} is not loaded")

    def hold(self, entry: Entry) -> None:
        """Load a model in the background, even one that could not be loaded just now."""

        def ended(task: asyncio.Task[None]) -> None:
            self._leave(entry)

        entry.why_not = ""
        self._loading(entry).add_done_callback(ended)
        entry.waiting += 1

    def begin(self) -> None:
        """Load the models that are kept loaded."""
        for each in self.entries:
            if each.keep_loaded:
                self.hold(each)

    def _check_open(self) -> None:
        if self._cut:
            raise EngineClosed("the server ends: ask again")

    def _tell(self) -> None:
        """Wake what waits for a change of any model."""
        self._changed.set()
        self._changed.clear()

    def cut(self) -> None:
        """End all texts, and loading, and the waiting for it; in the event loop."""
        self._cut = True
        for each in self._all:
            if each.task is not None:
                each.task.cancel()
            if each.timer is not None:
                each.timer.cancel()
        for loaded in self.loaded.values():
            loaded.service.cut()

    def close(self) -> None:
        """Close all models, after the event loop has ended."""
        for entry, loaded in self.loaded.items():
            loaded.close()
            entry.loaded = None


def _add_name(
    name: str, entry: Entry, by_name: dict[str, Entry], shared: dict[str, list[Entry]]
) -> None:
    """Add a name of a model or of its adapter; ParameterError if it is another model's."""
    other = by_name.setdefault(name, entry)
    if other is entry:
        return
    if name in other.adapters and name in entry.adapters:
        shared.setdefault(name, [other]).append(entry)
        return
    both = [f"{each.name!r:.80} ({each.path})" for each in (other, entry)]
    raise ParameterError(
        f"models: {name!r:.80} names two models, {' and '.join(both)}: give one of them another name"
    )


def _listing(names: Sequence[str]) -> str:
    shown = [repr(each) for each in names[:MOST_NAMED]]
    if len(names) > MOST_NAMED:
        shown.append(f"{len(names) - MOST_NAMED} more")
    *first, last = shown
    return f"{', '.join(first)} and {last}" if first else last
