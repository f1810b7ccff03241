"""The application of several models: passes each request on to the application of the model that it names.

A body has the name as ``model``, any request as ``?model=``.  Endpoints that are about all models answer here:
lists, states, loading and unloading, health and the metrics of the server.  A request holds its model from the
first to the last byte of the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from aleator.server.app import GuardedApp, dialects_of, guarded, routed
from aleator.server.bodies import body_of, in_thread, once
from aleator.server.dialects import Dialect, ollama, ollama_input, operation
from aleator.server.entry import Entry
from aleator.server.errors import ApiError
from aleator.server.fields import Field, own_fields, text, wrong
from aleator.server.playground.routes import page
from aleator.server.pool import ClientLeft, Pool
from aleator.server.streaming import disconnected
from aleator.server.telemetry import CONTENT_TYPE, Metrics

Handler = Callable[[Request], Awaitable[Response]]

ONE = own_fields(Field("model", text, required=True))
"""The body of an action with a model."""


def pool_of(request: Request) -> Pool:
    """The models of the server."""
    pool: Pool = request.app.state.pool
    return pool


async def health(request: Request) -> Response:
    """Whether requests are answered; needs no key, and says nothing else."""
    return JSONResponse({"status": "ok"}, headers={"cache-control": "no-store"})


async def metrics(request: Request) -> Response:
    """Figures of the server with the counts of all loaded models, or with ``?model=`` of one; loads none."""
    shown: Metrics = request.app.state.metrics
    name = request.query_params.get("model")
    if name is not None:
        entry = pool_of(request).find(name)
        if entry.loaded is None:
            message = f"model {entry.name!r:.80} is not loaded, and has no figures"
            raise ApiError(503, message, code="model_not_loaded")
        shown = entry.loaded.metrics
    return Response(shown.page(), media_type=CONTENT_TYPE)


async def models(request: Request) -> Response:
    """The list of models and adapters, with the state of each; with ``?reload=1`` made anew."""
    pool = pool_of(request)
    if request.query_params.get("reload"):
        await pool.reload()
    data = [described(pool, entry, name) for entry in pool.entries for name in pool.names_of(entry)]
    return JSONResponse({"object": "list", "data": data})


async def model(request: Request) -> Response:
    """One model, under any of its names."""
    pool, name = pool_of(request), request.path_params["name"]
    entry = pool.find(name)
    return JSONResponse(described(pool, entry, name if name in entry.adapters else entry.name))


def described(pool: Pool, entry: Entry, name: str) -> dict[str, Any]:
    """A model or adapter as OpenAI's list has it, with its status; all that is known of a loaded one."""
    is_adapter = name != entry.name
    made: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": pool.started,
        "owned_by": "aleator",
        "root": name,
        "parent": entry.name if is_adapter else None,
    }
    if entry.loaded is not None:
        made = operation.described(entry.loaded.service, name)
    aliases = [] if is_adapter else [entry.name, *entry.aliases]
    return made | {"aliases": aliases, "path": entry.path, "status": entry.status}


async def load(request: Request) -> Response:
    """Begin to load a model, even one that could not be loaded just now; the answer does not wait for it."""
    pool = pool_of(request)
    entry = pool.find(ONE.read(await body_of(request)).own["model"])
    if entry.ready or (entry.task is not None and entry.waiting):
        what = "loaded" if entry.ready else "being loaded"
        raise ApiError(400, f"model {entry.name!r:.80} is {what} already")
    pool.hold(entry)
    return JSONResponse({"success": True})


async def unload(request: Request) -> Response:
    """Unload a model that no request uses."""
    pool = pool_of(request)
    await pool.unload(pool.find(ONE.read(await body_of(request)).own["model"]))
    return JSONResponse({"success": True})


async def tags(request: Request) -> Response:
    """Ollama's list of models; it knows more of those that are loaded."""
    pool = pool_of(request)
    made = [
        each
        for entry in pool.entries
        for each in await in_thread(tagged, entry, pool.names_of(entry))
    ]
    return JSONResponse({"models": made})


def tagged(entry: Entry, names: Collection[str]) -> list[dict[str, Any]]:
    """The entries of a model and its adapters, those with one of ``names``."""
    loaded, path, size = entry.loaded, Path(entry.path), 0
    if loaded is not None:
        return [each for each in ollama.listed(loaded.service) if each["name"] in names]
    with suppress(OSError):
        size = path.stat().st_size
    return [
        {
            "name": name,
            "model": name,
            "modified_at": ollama.timestamp(path),
            "size": size,
            "digest": "",
            "details": ollama.NO_DETAILS
            | {"parent_model": "" if name == entry.name else entry.name},
        }
        for name in names
    ]


async def running_models(request: Request) -> Response:
    """Ollama's list of models in memory."""
    loaded = [each.loaded.service for each in pool_of(request).entries if each.loaded is not None]
    return JSONResponse({"models": [await in_thread(ollama.running, each) for each in loaded]})


OWN: dict[Any, Handler] = {
    operation.health: health,
    operation.metrics: metrics,
    operation.models: models,
    operation.model: model,
    ollama.tags: tags,
    ollama.running_models: running_models,
}
"""What is answered here in place of a model's application."""
ACTIONS: dict[str, Handler] = {"/models/load": load, "/models/unload": unload}
"""What a server of one model has not, by path."""
WITHOUT_MODEL = {page, ollama.version, *(route.endpoint for route in operation.NOT_BUILT)}
"""Endpoints of the dialects that are the same for all models."""


class Forward:
    """Passes the requests of a route on to the model's own application, once it is loaded."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        body = await request.body()
        name, kept, in_body = await self._asked(scope, receive, body)
        entry = self._pool.find(name)
        if body and not in_body and name in entry.adapters:
            remedy = (
                f"the address names an adapter: name {entry.name!r:.80} there, and give adapters"
            )
            raise wrong("model", name, remedy)
        if request.query_params.get("autoload", "true") not in ("true", "1") and not entry.ready:
            raise ApiError(400, f"model {entry.name!r:.80} is not loaded", code="model_not_loaded")
        received, size = once(body, receive), len(body)
        del body, request  # they may be large
        inner = dict(scope)  # its own: a connection that stays open would keep the model in memory
        with suppress(ClientLeft):
            async with self._pool.use(entry, lambda: disconnected(receive), size) as loaded:

                async def sent(message: Message) -> None:
                    if kept is not None and message.get("status", 400) < 400:
                        entry.keeps = kept if kept >= 0 else None
                    await send(message)

                await loaded.app(inner, received, sent)

    async def _asked(
        self, scope: Scope, receive: Receive, body: bytes
    ) -> tuple[str | None, float | None, bool]:
        """The name of the model that a request asks; for how many seconds it is kept, negative: always; whether
        the body has the name.
        """
        names = Request(scope).query_params.getlist("model")
        if len(names) > 1:
            raise wrong("model", names, "the address names several: give one")
        name = names[0] if names else None
        kept, own, of_ollama = None, None, scope["path"].startswith("/api/")
        if body:
            given = await body_of(Request(scope, once(body, receive)))
            own = given.get("model") if isinstance(given, dict) else None
            if own is not None:
                if name not in (None, text("model", own)):
                    raise wrong("model", own, f"the address says model={name!r:.80}: leave one out")
                name = own
            if of_ollama and isinstance(given, dict) and given.get("keep_alive") is not None:
                kept = ollama_input.seconds_of(given["keep_alive"])
        if name is not None and of_ollama:
            name = ollama.untagged(name, self._pool.by_name)
        return name, kept, own is not None


def create_router(pool: Pool, metrics: Metrics) -> GuardedApp:
    """The application of several models, with all guards for requests from a network."""

    def routed_here(route: Route) -> Route:
        if route.path in ACTIONS:
            return Route(route.path, ACTIONS[route.path], methods=["POST"])
        if route.endpoint in WITHOUT_MODEL:
            return route
        here = OWN.get(route.endpoint) or Forward(pool)
        return Route(route.path, here, methods=route.methods)

    dialects = [
        Dialect(each.render_error, [routed_here(route) for route in each.ROUTES])
        for each in dialects_of(pool.options)
    ]
    app = routed(dialects)
    app.state.pool, app.state.metrics = pool, metrics
    metrics.watch_models(pool.stats)
    return guarded(app, pool.options, metrics, dialects)
