"""An application with everything around it that a request must pass, from its socket on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aleator.server.caller import current_caller
from aleator.server.key_ring import KeyRing
from aleator.server.limits import Answer, Bodies, Gate, Hosts, Keys, loopback_names
from aleator.server.logs import Observe, Requests
from aleator.server.options import ServerOptions

BODIES_AT_ONCE = 32
"""Bodies of the largest size that may be arriving at the same time, as far as memory goes."""

EXPOSED = ("x-request-id", "x-aleator-replay", "x-aleator-seed", "retry-after")
"""Headers that pages of other origins may read, where they may ask at all."""


@dataclass(frozen=True)
class Guarded:
    """An application and its guards.

    Attributes:
        app: The outermost.
        gate: Counts requests, and lets none in once the server drains.
    """

    app: ASGIApp
    gate: Gate


class Replays:
    """Writes into the header ``x-aleator-replay`` what makes the first text of a response again.

    Args:
        app: What answers.
        record: The header for what was begun; None: there is nothing to write.
    """

    def __init__(self, app: ASGIApp, record: Callable[[], str | None]) -> None:
        self._app, self._record = app, record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def recorded(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                record = self._record() if current_caller().begun else None
                if record is not None:
                    own = (b"x-aleator-replay", record.encode("ascii"))
                    message["headers"] = [*message.get("headers", []), own]
            await send(message)

        await self._app(scope, receive, recorded)


def guarded(
    app: ASGIApp,
    options: ServerOptions,
    answer: Answer,
    route: Callable[[Scope], str],
    *,
    record: Callable[[], str | None],
    observe: Observe | None = None,
) -> Guarded:
    """Put the guards around an application.

    Args:
        app: What answers.
        options: Of the server.
        answer: Makes responses to refused requests.
        route: The route of a scope that has been answered.
        record: See :class:`Replays`.
        observe: Told of each request that has been answered.

    Raises:
        ParameterError: A key that cannot be one, or a file without any.
        OSError: The file with keys cannot be read.
    """
    ring = KeyRing.of(options.api_key, options.api_key_file)
    inner: ASGIApp = Bodies(
        app,
        answer,
        most_bytes=options.max_body_bytes,
        timeout=options.client_timeout,
        most_held=BODIES_AT_ONCE * options.max_body_bytes,
    )
    inner = Keys(Replays(inner, record), answer, ring)
    if options.cors_origin:
        inner = CORSMiddleware(
            inner,
            allow_origins=options.cors_origin,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=EXPOSED,
        )
    names = None if options.uds is not None else loopback_names(options.host, options.allowed_host)
    gate = Gate(Hosts(inner, answer, names, options.cors_origin), answer)
    return Guarded(Requests(gate, route, observe, log_all=options.log_requests), gate)
