"""Errors as OpenAI writes them: of its own endpoints, and of paths that are nobody's."""

from __future__ import annotations

from typing import Any

from starlette.routing import Route

from aleator.server.errors import ApiError

ROUTES: list[Route] = []


def render_error(error: ApiError) -> dict[str, Any]:
    """The body of a response that is an error."""
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }
