"""A model of a server of several: what it is loaded with, what that takes, and its loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aleator.core.errors import ParameterError
from aleator.core.records import dataclass
from aleator.core.version import __version__
from aleator.engine.engine import Engine
from aleator.engine.options import EngineOptions
from aleator.engine.stats import EndedRequest
from aleator.generate.options import ContextOptions, ModelOptions, of_loading
from aleator.language_model import load
from aleator.language_model.base import positions
from aleator.models.hub.located import located
from aleator.models.sizes import cache_of_layers
from aleator.models.weights import Weights, open_weights
from aleator.server.app import create_app
from aleator.server.auth import Replays
from aleator.server.options import ServerOptions
from aleator.server.pool import Entry, Loaded, Progress
from aleator.server.service import Service
from aleator.server.telemetry import Metrics

LONGEST_NAME = 200
"""Characters of a model's name."""


@dataclass(frozen=True, kw_only=True)
class ListedModel:
    """A model and its options, which are checked already; nothing is opened before it is loaded."""

    name: str
    path: str  # what ``aleator.load`` takes
    model: Mapping[str, Any]  # options of loading
    engine: Mapping[str, Any]  # options of its engine
    defaults: Mapping[str, Any]  # of its requests
    options: ServerOptions  # the server's, with the model's template and cells
    aliases: tuple[str, ...] = ()
    keep_loaded: bool = False

    def __post_init__(self) -> None:
        """Check the names."""
        for name in (self.name, *self.aliases):
            if (
                not name
                or len(name) > LONGEST_NAME
                or not name.isprintable()
                or name.strip() != name
            ):
                raise ParameterError(
                    "models",
                    f"models: {name!r:.80} is no model's name: give 1 to {LONGEST_NAME} printable characters",
                )

    def entry(
        self,
        ended: Callable[[EndedRequest], None],
        find: Callable[[str], Path] = located,
        lock: bool = False,
    ) -> Entry:
        """The model for a pool.

        Args:
            ended: told of each request that ends, in an engine's thread.
            find: the place of a path, name of the hub or of a package.
            lock: keep the weights in memory.
        """
        adapters = ModelOptions.of({"adapters": self.model.get("adapters", ())}).adapters
        return Entry(
            self.name,
            self.path,
            lambda: self._needed(find),
            lambda progress: self._load(progress, ended, find, lock),
            aliases=self.aliases,
            adapters=tuple(name for name, _, _ in adapters),
            max_queue=EngineOptions.of(self.engine).max_queue,
            keep_loaded=self.keep_loaded,
        )

    def _needed(self, find: Callable[[str], Path]) -> int:
        """Bytes of weights, adapters, cells, states and the prompt cache; errors are those of loading."""
        weights = open_weights(find(self.path))
        chosen, given = of_loading(self.model)
        context, n_seq_max = ContextOptions.of(given), EngineOptions.of(self.engine).n_seq_max

        def taken(of: Weights, cells: int) -> int:
            sizes = cache_of_layers(of.config, cells, context.type_k, context.type_v, n_seq_max)
            return of.size_bytes + sum(k + v + n_seq_max * states for k, v, states in sizes)

        cells = self.options.n_cells or n_seq_max * positions(weights, chosen.n_ctx)
        needed = taken(weights, cells) + chosen.cache_ram
        for _, file, _ in chosen.adapters:
            path = Path(file)
            files = path.iterdir() if path.is_dir() else [path]
            needed += sum(each.stat().st_size for each in files)
        if chosen.model_draft is not None:  # which has its own number of positions
            draft = open_weights(find(chosen.model_draft))
            needed += taken(draft, min(cells, n_seq_max * positions(draft, None)))
        return needed

    def _load(
        self,
        progress: Progress,
        ended: Callable[[EndedRequest], None],
        find: Callable[[str], Path],
        lock: bool,
    ) -> Loaded:
        model = load(find(self.path), progress=progress, **self.model)
        if lock:
            model.weights.lock()
        metrics = Metrics(__version__, model.fingerprint)

        def count(text: EndedRequest) -> None:
            metrics.ended(text)
            ended(text)

        engine = Engine(model, on_end=count, n_ctx=self.options.n_cells, **self.engine)
        try:
            own = self.options.replace(alias=(self.name, *self.aliases))
            service = Service(model, engine, own, self.defaults)
            app = Replays(create_app(service, metrics=metrics), model)
            service.begin()
        except BaseException:
            engine.close()
            raise

        def close() -> None:
            service.grammars.close()
            engine.close()

        return Loaded(service, metrics, app, close)
