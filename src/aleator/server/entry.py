"""A model of a server of several: its state, the memory that it will take, and its loading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from aleator.core.errors import ParameterError
from aleator.engine.engine import Engine
from aleator.engine.options import EngineOptions
from aleator.engine.stats import EndedRequest
from aleator.generate.options import of_loading
from aleator.language_model import load
from aleator.language_model.base import cache_sizes, positions
from aleator.models.draft_head import head_bytes
from aleator.models.hub.located import located
from aleator.models.weights import Weights, open_weights
from aleator.server.app import create_app
from aleator.server.auth import add_records
from aleator.server.options import ServerOptions
from aleator.server.service import Service
from aleator.server.telemetry import Metrics

Progress = Callable[[int, int], None]
LONGEST_NAME = 200
"""Characters of a model's name."""


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


def entry_of(
    name: str,
    path: str,  # what ``aleator.load`` takes
    *,
    model: Mapping[str, Any],  # options of loading
    engine: Mapping[str, Any],  # options of its engine
    defaults: Mapping[str, Any],  # of its requests
    options: ServerOptions,  # the server's, with the model's template and cells
    ended: Callable[[EndedRequest], None],  # told of each request that ends, in an engine's thread
    aliases: tuple[str, ...] = (),
    keep_loaded: bool = False,
    find: Callable[[str], Path] = located,  # the place of a path, name of the hub or of a package
    lock: bool = False,  # keep the weights in memory
) -> Entry:
    """A model for a pool; nothing is opened before it is loaded.

    Raises:
        ParameterError: a name that is none, or wrong options.
    """
    for each in (name, *aliases):
        if not 0 < len(each) <= LONGEST_NAME or not each.isprintable() or each.strip() != each:
            raise ParameterError(
                f"models: {each!r:.80} is no model's name: give 1 to {LONGEST_NAME} printable characters"
            )
    (chosen, given), of_engine = of_loading(model), EngineOptions.of(engine)
    n_seq_max = of_engine.n_seq_max

    def taken(weights: Weights, cells: int) -> int:
        return weights.size_bytes + sum(cache_sizes(weights.config, cells, given, n_seq_max))

    def needed() -> int:  # weights, adapters, cells, states, the prompt cache, a draft's
        weights = open_weights(find(path))
        cells = options.n_cells or n_seq_max * positions(weights, chosen.n_ctx)
        total = taken(weights, cells) + chosen.cache_ram
        for _, file, _ in chosen.adapters:
            place = Path(file)
            files = place.iterdir() if place.is_dir() else [place]
            total += sum(each.stat().st_size for each in files)
        name = chosen.model_draft
        head = None if name is None else head_bytes(name, find, weights, n_seq_max)
        total += head or 0
        if name is not None and head is None:  # which has its own number of positions
            draft = open_weights(find(name))
            total += taken(draft, min(cells, n_seq_max * positions(draft, None)))
        return total

    def made(progress: Progress) -> Loaded:
        loaded = load(find(path), progress=progress, **model)
        if lock:
            loaded.weights.lock()
        metrics = Metrics(loaded.fingerprint)

        def count(text: EndedRequest) -> None:
            metrics.ended(text)
            ended(text)

        running = Engine(loaded, on_end=count, n_ctx=options.n_cells, **engine)
        try:
            own = options.replace(alias=(name, *aliases))
            service = Service(loaded, running, own, defaults)
            app = add_records(create_app(service, metrics), loaded)
            service.begin()
        except BaseException:
            running.close()
            raise

        def close() -> None:
            service.grammars.close()
            running.close()

        def changed() -> bool:
            drafts = () if loaded.draft is None else (loaded.draft,)
            return any(each.weights.mapped.changed() for each in (loaded, *drafts))

        return Loaded(service, metrics, app, close, changed)

    adapters = tuple(each for each, _, _ in chosen.adapters)
    return Entry(
        name, path, needed, made, aliases, adapters, of_engine.max_queue, keep_loaded=keep_loaded
    )
