"""The application: routes of all dialects, and errors in the form of the dialect that was asked."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from aleator.core.errors import AleatorError
from aleator.server.dialects import DIALECTS, Dialect, openai_errors
from aleator.server.errors import ApiError, api_error
from aleator.server.playground import routes as playground
from aleator.server.service import Service
from aleator.server.slots import Slots


def create_app(service: Service, dialects: Sequence[Dialect] = DIALECTS) -> Starlette:
    """The ASGI application of a service.

    Args:
        service: Makes the texts; handlers find it as ``request.app.state.service``.
        dialects: What is spoken, beside the playground.
    """
    if service.options.playground:
        dialects = [*dialects, playground]
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
    return app


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
