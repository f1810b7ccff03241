"""Bodies of requests as they come over the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread
from starlette.requests import Request

from aleator.server.fields import parsed

P = ParamSpec("P")
R = TypeVar("R")

QUICK = 1 << 16
"""Bytes of JSON that are read where they are; longer ones are read in another thread."""


async def body_of(request: Request) -> Any:
    """The JSON of a request's body.

    Raises:
        ApiError: It is not JSON.
    """
    # Not request.body(), which keeps it for as long as the request lives.
    data = b"".join([piece async for piece in request.stream()])
    if len(data) <= QUICK:
        return parsed(data)
    return await in_thread(parsed, data)


async def in_thread(work: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
    """Do something that takes longer than the event loop can wait, in another thread."""
    return await anyio.to_thread.run_sync(lambda: work(*args, **named))
