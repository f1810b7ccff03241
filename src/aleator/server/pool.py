"""The models of one server: loaded when a request names one, unloaded when idle and others need the room.

Everything here runs in the event loop, which makes each step between two ``await`` atomic; no lock guards a
model's state.  Only loading and unloading run in other threads, for one model at a time, in the order in which
models were asked for.  A model is unloaded only while no request uses it.  Where all models are busy, the least
recently used one gets no new requests until it has been unloaded; these wait for it to be loaded again.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic, time
from typing import Any

from starlette.types import ASGIApp

from aleator.core.errors import AleatorError, EngineClosed, ParameterError, QueueFull
from aleator.core.memory import memory_limit
from aleator.engine.stats import EngineStats
from aleator.server.bodies import BODIES_AT_ONCE, in_thread, no_room
from aleator.server.errors import ApiError
from aleator.server.grammar_limits import return_memory
from aleator.server.options import ServerOptions
from aleator.server.service import Service
from aleator.server.telemetry import Metrics, event, failure

Progress = Callable[[int, int], None]
ClientGone = Callable[[], Awaitable[None]]

RETRY_SECONDS = 30.0
"""Seconds for which a model that could not be loaded is not tried again, unless ``/models/load`` asks."""
OF_MEMORY = 0.75
"""Part of the memory of the machine, or of the control group, that models may take by default."""
MOST_NAMED = 20
"""Most names of models in an error."""


@dataclass(frozen=True)
class Loaded:
    """A loaded model."""

    service: Service
    metrics: Metrics  # of this model alone
    app: ASGIApp  # answers its requests
    close: Callable[[], None]  # ends its engine, in another thread


@dataclass(eq=False)
class Entry:
    """A model of the server; the fields from ``loaded`` on are the pool's."""

    name: str  # in responses
    path: str
    measure: Callable[[], int]  # bytes that it will take; in another thread
    load: Callable[[Progress], Loaded]  # in another thread
    aliases: tuple[str, ...] = ()  # other names in requests
    adapters: tuple[str, ...] = ()  # names of its adapters, which requests may give as a model's
    max_queue: int = 1024  # requests that may wait for it to be loaded
    keep_loaded: bool = False  # load it at the start, and unload it only where a request says so
    loaded: Loaded | None = None
    bytes: int = 0
    serving: int = 0  # requests that use it
    waiting: int = 0  # requests that wait for it
    used: int = 0  # grows with each use of any model
    leaving: bool = False  # it gets no new requests, and is unloaded once it is idle
    progress: float | None = None  # 0 to 1, from when its loading is due until it has ended
    why_not: str = ""  # why it could not be loaded
    failed: float = 0.0  # when
    task: asyncio.Task[None] | None = None  # loads it

    @property
    def ready(self) -> bool:
        """Whether a request may use it now."""
        return (
            self.loaded is not None
            and not self.leaving
            and self.progress is None
            and not self.loaded.service.engine.closed  # after an error that it could not recover from
        )

    @property
    def idle(self) -> bool:
        """Whether no request uses it, nor is about to."""
        return not self.serving and not (self.waiting and self.ready)

    @property
    def status(self) -> dict[str, Any]:
        """Its state as llama-server's router tells it, with the progress of loading, or why it failed."""
        if self.progress is not None:
            return {"value": "loading", "progress": round(self.progress, 3)}
        if self.loaded is not None:
            return {"value": "loaded"}
        if self.why_not:
            return {"value": "unloaded", "failed": True, "reason": self.why_not}
        return {"value": "unloaded"}


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

    Raises:
        ParameterError: two models have one name, or there is no model.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        options: ServerOptions,
        default: str | None = None,
    ) -> None:
        self.entries, self.options, self._memory = tuple(entries), options, options.models_memory
        if self._memory is None and (limit := memory_limit()) is not None:
            self._memory = int(limit * OF_MEMORY)
        if not entries:
            raise ParameterError("models: there is no model: list at least one")
        self._by_name: dict[str, Entry] = {}
        for entry in entries:
            for name in (entry.name, *entry.aliases, *entry.adapters):
                other = self._by_name.setdefault(name, entry)
                if other is not entry:
                    told = (
                        f"{other.name!r:.80} ({other.path}) and {entry.name!r:.80} ({entry.path})"
                    )
                    raise ParameterError(
                        f"models: {name!r:.80} names two models, {told}: give one of them another name"
                    )
        if default is not None and default not in self._by_name:
            raise ParameterError(f"model={default!r:.80}: --models has {self._known()}")
        self.default = self.entries[0] if default is None else self._by_name[default]
        self._turn = asyncio.Lock()  # held while models are loaded or unloaded
        self._event = asyncio.Event()
        self._uses = itertools.count(1)
        self._waiting_bytes = 0  # of bodies
        self.started = int(time())
        self._cut = False
        self._ended: asyncio.Future[None] | None = None  # done when it was cut
        self._holding: set[asyncio.Task[None]] = set()

    def stats(self) -> dict[str, EngineStats]:
        """Counts of the loaded models by their names."""
        found = ((each.name, each.loaded) for each in self.entries)
        return {name: loaded.service.engine.stats for name, loaded in found if loaded is not None}

    def find(self, name: str | None) -> Entry:
        """The model of a request; ApiError where no model has the name."""
        found = self.default if name is None else self._by_name.get(name)
        if found is None and self.options.any_model:
            found = self.default
        if found is None:
            raise ApiError(
                404,
                f"model={name!r:.80}: this server has {self._known()}",
                "model",
                "model_not_found",
            )
        return found

    def _known(self) -> str:
        names = [repr(each) for each in self._by_name]
        more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
        *first, last = [*names[:MOST_NAMED], *more]
        return f"{', '.join(first)} and {last}" if first else last

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
        entry.used = next(self._uses)
        try:
            assert entry.loaded is not None  # noqa: S101
            yield entry.loaded
        finally:
            entry.serving -= 1
            entry.used = next(self._uses)
            self._tell()

    async def _wait(self, entry: Entry, gone: ClientGone | None, size: int) -> None:
        if entry.waiting >= entry.max_queue:
            raise QueueFull(entry.max_queue)
        if self._waiting_bytes + size > BODIES_AT_ONCE * self.options.max_body_bytes:
            raise no_room({})
        entry.waiting += 1
        self._waiting_bytes += size
        try:
            async with asyncio.timeout(self.options.request_timeout):
                while not entry.ready:
                    await self._next(entry, gone)
        except TimeoutError:
            raise ApiError(
                503,
                f"model {entry.name!r:.80} was not loaded within {self.options.request_timeout:g} s: ask again",
                code="model_not_loaded",
                headers={"retry-after": "1"},
            ) from None
        finally:
            entry.waiting -= 1
            self._waiting_bytes -= size
            self._tell()

    async def _next(self, entry: Entry, gone: ClientGone | None) -> None:
        """Wait for the end of a model's loading, which begins here unless it has."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
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
        events: set[asyncio.Future[None]] = {entry.task, self._ended}
        if gone is None:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            return
        leaves = asyncio.ensure_future(gone())
        try:
            await asyncio.wait({*events, leaves}, return_when=asyncio.FIRST_COMPLETED)
            if leaves.done():
                raise ClientLeft
        finally:
            leaves.cancel()
            with suppress(asyncio.CancelledError):
                await leaves

    async def _load(self, entry: Entry) -> None:
        """Load a model in its turn, if anybody still waits for it then."""
        try:
            async with self._turn:
                self._check_open()
                loaded = entry.loaded
                if loaded is not None and loaded.service.engine.closed:
                    del loaded
                    await self._unload(entry)
                if entry.loaded is None and entry.waiting:
                    await self._bring_up(entry)
        except Exception as error:
            if not self._cut:
                entry.why_not, entry.failed = str(error) or type(error).__name__, monotonic()
                failure("model not loaded", error, model=entry.name, reason=entry.why_not)
        finally:
            entry.task = entry.progress = None
            self._tell()

    async def _bring_up(self, entry: Entry) -> None:
        entry.why_not, began = "", monotonic()
        entry.bytes = await in_thread(entry.measure)
        if not await self._make_room(entry):
            return

        def progress(done: int, total: int) -> None:
            self._check_open()
            entry.progress = done / max(total, 1)

        def work() -> None:  # stores it here: a task that is cancelled drops what a thread returns
            entry.loaded = entry.load(progress)

        await in_thread(work)
        took, mebibytes = round(monotonic() - began, 3), entry.bytes >> 20
        event("model loaded", model=entry.name, seconds=took, mebibytes=mebibytes)

    async def _make_room(self, entry: Entry) -> bool:
        """Unload others until a model fits; returns False if nobody waits for it any more."""
        self._check_possible(entry)
        try:
            while not self._fits(entry, self._in_memory()):
                self._check_open()
                if not entry.waiting:
                    return False
                others = [each for each in self._in_memory() if not each.keep_loaded]
                idle = [each for each in others if each.idle]
                if idle:
                    await self._unload(min(idle, key=lambda each: each.used))
                    continue
                if not any(each.leaving for each in others):
                    min(others, key=lambda each: each.used).leaving = True
                await self._event.wait()
            return entry.waiting > 0
        finally:
            for each in self.entries:
                each.leaving = False
            self._tell()

    def _check_possible(self, entry: Entry) -> None:
        """Refuse a model that does not fit in even when all others that may be are unloaded."""
        kept = [each for each in self._in_memory() if each.keep_loaded]
        if not self._fits(entry, kept):
            taken = sum(each.bytes for each in kept)
            told = f"--models-max is {self.options.models_max}"
            if self._memory is not None and taken + entry.bytes > self._memory:
                told = f"it needs {entry.bytes >> 20} MiB, and --models-memory is {self._memory >> 20} MiB"
            if kept:
                told += f", where {len(kept)} that are kept loaded take {taken >> 20} MiB"
            raise ParameterError(
                f"{told}: give more, a smaller n_ctx, or fewer models with keep_loaded"
            )

    def _in_memory(self) -> list[Entry]:
        return [each for each in self.entries if each.loaded is not None]

    def _fits(self, entry: Entry, others: Sequence[Entry]) -> bool:
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
        async with self._turn:
            if entry.loaded is None:
                raise ApiError(400, f"model {entry.name!r:.80} is not loaded")
            if entry.serving or entry.waiting:
                n = entry.serving + entry.waiting
                raise ApiError(
                    409, f"model {entry.name!r:.80} has {n} requests under way: ask again"
                )
            await self._unload(entry)

    def hold(self, entry: Entry) -> None:
        """Load a model in the background, even one that could not be loaded just now."""

        async def once() -> None:
            with suppress(AleatorError):  # told by its status
                async with self.use(entry):
                    pass

        entry.why_not = ""
        task = asyncio.create_task(once())
        self._holding.add(task)
        task.add_done_callback(self._holding.discard)

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
        self._event.set()
        self._event = asyncio.Event()

    def cut(self) -> None:
        """End all texts, and loading, and the waiting for it; in the event loop."""
        self._cut = True
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        for each in self._in_memory():
            assert each.loaded is not None  # noqa: S101
            each.loaded.service.cut()
        self._tell()

    def close(self) -> None:
        """Close all models, after the event loop has ended."""
        for each in self._in_memory():
            assert each.loaded is not None  # noqa: S101
            each.loaded.close()
            each.loaded = None
