"""The application: routes of all dialects, and errors in the form of the dialect that was asked."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import Scope

from aleator.core.errors import AleatorError
from aleator.core.version import __version__
from aleator.server.dialects import DIALECTS, Dialect, openai_errors
from aleator.server.errors import ApiError, api_error
from aleator.server.guards import Guarded, guarded
from aleator.server.metrics import Metrics
from aleator.server.playground import routes as playground
from aleator.server.records import replay_header
from aleator.server.service import Service
from aleator.server.slots import Slots


def spoken(service: Service, dialects: Sequence[Dialect]) -> Sequence[Dialect]:
    """The dialects of a service, and the playground where it has one."""
    return [*dialects, playground] if service.options.playground else dialects


def create_app(
    service: Service, dialects: Sequence[Dialect] = DIALECTS, metrics: Metrics | None = None
) -> Starlette:
    """The ASGI application of a service, without the guards that a network needs.

    Args:
        service: Makes the texts; handlers find it as ``request.app.state.service``.
        dialects: What is spoken, beside the playground.
        metrics: What ``/metrics`` shows; None: made here.
    """
    dialects = spoken(service, dialects)
    speaks = {route.endpoint: dialect for dialect in dialects for route in dialect.ROUTES}

    async def failed(request: Request, error: Exception) -> Response:
        """An error as the dialect of the route writes it."""
        endpoint = request.scope.get("endpoint")
        dialect = openai_errors if endpoint is None else speaks.get(endpoint, openai_errors)
        told = _of_http(request, error) if isinstance(error, HTTPException) else api_error(error)
        return error_response(told, dialect)

    app = Starlette(
        routes=[route for dialect in dialects for route in dialect.ROUTES],
        exception_handlers={AleatorError: failed, HTTPException: failed, Exception: failed},
    )
    app.state.service, app.state.slots = service, Slots(service)
    app.state.metrics = metrics or Metrics(__version__, service.fingerprint)
    app.state.metrics.watch(lambda: service.engine.stats)
    return app


def create_guarded(
    service: Service, metrics: Metrics | None = None, dialects: Sequence[Dialect] = DIALECTS
) -> Guarded:
    """The application with everything that a request from a network must pass.

    Args:
        service: Makes the texts.
        metrics: As for :func:`create_app`.
        dialects: What is spoken.

    Raises:
        ParameterError, OSError: As for :func:`aleator.server.guards.guarded`.
    """
    shown = metrics or Metrics(__version__, service.fingerprint)
    app = create_app(service, dialects, shown)
    routes = [(route, each) for each in spoken(service, dialects) for route in each.ROUTES]
    paths = {route.endpoint: route.path for route, _ in reversed(routes)}

    def answer(scope: Scope, error: ApiError) -> Response:
        matching = (dialect for route, dialect in routes if route.matches(scope)[0] != Match.NONE)
        return error_response(error, next(matching, openai_errors))

    def route_of(scope: Scope) -> str:
        return paths.get(scope["endpoint"], "other") if "endpoint" in scope else "other"

    return guarded(
        app,
        service.options,
        answer,
        route_of,
        record=lambda: replay_header(service),
        observe=shown.answered,
    )


def error_response(error: ApiError, dialect: Dialect) -> Response:
    """An error as a response."""
    return JSONResponse(dialect.render_error(error), error.status, headers=error.headers)


def _of_http(request: Request, error: HTTPException) -> ApiError:
    """An error of routing: no such path, or not with this method."""
    message = {
        404: f"there is no {request.url.path!r:.200}: docs/server.md lists the endpoints",
        405: f"{request.method} is not for {request.url.path!r:.200}",
    }.get(error.status_code, error.detail or HTTPStatus(error.status_code).phrase)
    return ApiError(error.status_code, message, headers=error.headers)
