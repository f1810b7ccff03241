"""What the server writes about itself: one line for each request and event, never what users wrote or got.

Messages of errors can quote a prompt, so they are not written either: an error has its type, the parameter that
it names, and of what nobody expected the places in the code.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aleator.core.errors import ParameterError
from aleator.server.streaming import BODY, wire_of

LOGGER = "aleator.server"
FORMATS = ("text", "json")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")

log = logging.getLogger(LOGGER)

Field = str | int | float | bool | None
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_PLAIN = re.compile(r"[\w.:/+@{}*-]+", re.ASCII)

Observe = Callable[[str, str, int, float], None]
"""``(method, route, status, seconds)`` of a request that has been answered."""


class Lines(logging.Formatter):
    """Log records as lines: ``text`` for people, ``json`` for programs."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        """One line: time, level, event, fields."""
        fields: dict[str, Field] = dict(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            fields |= described(record.exc_info[1])
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        if self._json:
            line = {"time": moment, "level": record.levelname.lower(), "event": record.getMessage()}
            return json.dumps({**line, **fields})
        shown = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        return f"{moment} {record.levelname.lower()} {record.getMessage()}{shown}"


def _shown(value: Field) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def described(error: BaseException) -> dict[str, Field]:
    """What may be written of an error: its type, the parameter it names, where it was raised.

    Never its message, which can quote what a user wrote.
    """
    fields: dict[str, Field] = {"error": type(error).__name__}
    if isinstance(error, ParameterError) and _PLAIN.fullmatch(error.parameter):
        fields["parameter"] = error.parameter[:80]
    places = traceback.extract_tb(error.__traceback__)[-6:]
    if places:
        fields["at"] = " < ".join(
            f"{Path(each.filename).name}:{each.lineno}" for each in reversed(places)
        )
    return fields


def configure(form: str = "text", level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Let the server's log, and uvicorn's, go to a stream, or to standard error, in lines of :class:`Lines`."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(Lines(form))
    for name, least in ((LOGGER, level), ("uvicorn.error", max(level, logging.WARNING))):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(least)
        logger.propagate = False


def event(name: str, level: int = logging.INFO, **fields: Field) -> None:
    """Write an event; ``fields`` must say nothing of what users wrote."""
    log.log(level, name, extra={"fields": fields})


def failure(name: str, error: BaseException, **fields: Field) -> None:
    """Write that something nobody expected was raised."""
    log.error(name, extra={"fields": {**fields, **described(error)}})


class Requests:
    """Gives every request an id, logs and counts it when it has been answered.

    The id is the client's header ``x-request-id`` if it is a plain word, and in the response's header of that
    name.  Paths are written as their routes, without queries, since they may hold anything.
    """

    def __init__(
        self,
        app: ASGIApp,
        route: Callable[[Scope], str],
        observe: Observe | None = None,
        log_all: bool = True,
    ) -> None:
        self._app, self._route, self._observe = app, route, observe
        self._log_all = log_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, sent = perf_counter(), 0, 0
        name = request_id(scope)
        scope.setdefault("state", {})["request_id"] = name

        async def counted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(b"x-request-id", name.encode()), (b"x-content-type-options", b"nosniff")]
                message["headers"] = [*message.get("headers", []), *own]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        async def more(message: Message) -> None:
            nonlocal sent
            sent += len(message["body"])
            await send(message)

        scope[BODY] = more
        wire = wire_of(scope)
        before = 0 if wire is None else wire.sent
        try:
            await self._app(scope, receive, counted)
        except Exception as error:
            status = status or 500
            failure("request failed", error, id=name)
            raise
        finally:
            took, route = perf_counter() - began, self._route(scope)
            method = scope["method"] if scope["method"] in METHODS else "other"
            status = status or 499  # nothing was sent: the client had gone
            sent += 0 if wire is None else wire.sent - before
            if self._observe is not None:
                self._observe(method, route, status, took)
            if self._log_all or status >= 500:
                event(
                    "request",
                    id=name,
                    method=method,
                    route=route,
                    status=status,
                    seconds=round(took, 6),
                    bytes=sent,
                )


def request_id(scope: Scope) -> str:
    """The client's id of a request if it is a plain word, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            if _ID.fullmatch(text):
                return str(text)
    return secrets.token_hex(12)
