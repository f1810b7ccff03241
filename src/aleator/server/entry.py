"""A model of a server of several, and its state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from aleator.server.service import Service
from aleator.server.telemetry import Metrics

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Loaded:
    """A loaded model."""

    service: Service
    metrics: Metrics  # of this model alone
    app: ASGIApp  # answers its requests
    close: Callable[[], None]  # ends its engine, in another thread
    changed: Callable[[], bool] = lambda: False  # whether its files have been written to meanwhile

    @property
    def usable(self) -> bool:
        """Whether requests may use it: no error ended its engine, and its files are as they were."""
        return not self.service.engine.closed and not self.changed()


@dataclass(eq=False)
class Entry:
    """A model of the server; the fields from ``loaded`` on are the pool's."""

    name: str  # in responses
    path: str
    measure: Callable[[], int]  # bytes that it will take; may download it; in another thread
    load: Callable[[Progress], Loaded]  # in another thread
    aliases: tuple[str, ...] = ()  # other names in requests
    adapters: tuple[str, ...] = ()  # names of its adapters, which requests may give as a model's
    max_queue: int = 1024  # requests that may wait for it to be loaded
    keep_loaded: bool = False  # load it at the start, and unload it only where a request says so
    source: object = None  # what lists it, with its options; equal where nothing has changed
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
    # Seconds after its last use after which it is unloaded; None: only where others need the room
    keeps: float | None = None
    timer: asyncio.TimerHandle | None = None  # unloads it then

    @property
    def ready(self) -> bool:
        """Whether a request may use it now."""
        return (
            self.loaded is not None
            and not self.leaving
            and self.progress is None
            and self.loaded.usable
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
