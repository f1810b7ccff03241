"""The application: the routes of all dialects, errors in the form of the route's dialect, and the guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Scope

from aleator.core.errors import AleatorError
from aleator.server.auth import Gate, KeyRing, add_records, check_hosts, check_keys, loopback_names
from aleator.server.bodies import BODIES_AT_ONCE, Bodies
from aleator.server.dialects import DIALECTS, OPENAI, Dialect
from aleator.server.dialects.llama_slots import Slots
from aleator.server.errors import ApiError, api_error
from aleator.server.options import ServerOptions
from aleator.server.playground import routes as playground
from aleator.server.service import Service
from aleator.server.telemetry import Metrics, Requests

EXPOSED = ("x-request-id", "x-aleator-replay", "x-aleator-seed", "retry-after")
"""Response headers that pages of other origins may read, if they may send requests at all."""


@dataclass(frozen=True)
class GuardedApp:
    """The outermost application, and its gate, which refuses requests once the server drains."""

    app: ASGIApp
    gate: Gate


PLAYGROUND = Dialect(playground.render_error, playground.ROUTES)


def dialects_of(options: ServerOptions) -> Sequence[Dialect]:
    """The dialects of a server, and the playground if it is enabled."""
    return [*DIALECTS, PLAYGROUND] if options.playground else DIALECTS


def create_app(service: Service, metrics: Metrics | None = None) -> Starlette:
    """The ASGI application of a service, without the guards that a network needs.

    Handlers find the service as ``request.app.state.service``; ``/metrics`` shows ``metrics``.
    """
    app = routed(dialects_of(service.options))
    app.state.service, app.state.slots = service, Slots(service)
    app.state.metrics = metrics or Metrics(service.fingerprint)
    tiers = service.model.prompt_tiers
    app.state.metrics.watch(lambda: service.engine.stats, None if tiers is None else tiers.tell)
    return app


def routed(dialects: Sequence[Dialect]) -> Starlette:
    """An application with the routes of dialects, which answers errors in the form of the route's dialect."""
    speaks: dict[Any, Dialect] = {
        route.endpoint: dialect for dialect in dialects for route in dialect.ROUTES
    }

    async def failed(request: Request, error: Exception) -> Response:
        dialect = speaks.get(request.scope.get("endpoint"), OPENAI)
        answer = _of_http(request, error) if isinstance(error, HTTPException) else api_error(error)
        return error_response(answer, dialect)

    return Starlette(
        routes=[route for dialect in dialects for route in dialect.ROUTES],
        exception_handlers={AleatorError: failed, HTTPException: failed, Exception: failed},
    )


def create_guarded(service: Service, metrics: Metrics | None = None) -> GuardedApp:
    """The application with all guards for requests from a network."""
    shown = metrics or Metrics(service.fingerprint)
    app = add_records(create_app(service, shown), service.model)
    return guarded(app, service.options, shown, dialects_of(service.options))


def guarded(
    app: ASGIApp, options: ServerOptions, metrics: Metrics, dialects: Sequence[Dialect]
) -> GuardedApp:
    """An application that answers these dialects, with all guards for requests from a network."""
    routes = [(route, each) for each in dialects for route in each.ROUTES]
    paths = {route.endpoint: route.path for route, _ in reversed(routes)}

    def answer(scope: Scope, error: ApiError) -> Response:
        matching = (dialect for route, dialect in routes if route.matches(scope)[0] != Match.NONE)
        return error_response(error, next(matching, OPENAI))

    inner: ASGIApp = Bodies(
        app,
        answer,
        most_bytes=options.max_body_bytes,
        timeout=options.client_timeout,
        most_held=BODIES_AT_ONCE * options.max_body_bytes,
    )
    inner = check_keys(inner, answer, KeyRing.of(options.api_key, options.api_key_file))
    if options.cors_origin:
        inner = CORSMiddleware(
            inner,
            allow_origins=options.cors_origin,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=EXPOSED,
        )
    names = None if options.uds is not None else loopback_names(options.host, options.allowed_host)
    gate = Gate(check_hosts(inner, answer, names, options.cors_origin), answer)
    return GuardedApp(Requests(gate, paths, metrics.answered, options.log_requests), gate)


def error_response(error: ApiError, dialect: Dialect) -> Response:
    """A response for an error."""
    return JSONResponse(dialect.render_error(error), error.status, headers=error.headers)


def _of_http(request: Request, error: HTTPException) -> ApiError:
    """The error of a failed routing: unknown path, or unsupported method."""
    message = {
        404: f"there is no {request.url.path!r:.200}: docs/server.md lists the endpoints",
        405: f"{request.method} is not for {request.url.path!r:.200}",
    }.get(error.status_code, error.detail or HTTPStatus(error.status_code).phrase)
    return ApiError(error.status_code, message, headers=error.headers)
