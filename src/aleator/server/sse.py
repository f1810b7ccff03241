"""Streams of events, and waiting for work whose client may go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aleator.server.logs import BODY
from aleator.server.wire import Line, Wire, wire_of

T = TypeVar("T")

dumps: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode
"""Writes JSON on one line."""

KEEP_ALIVE = 15.0
"""Seconds without an event after which a comment says that the connection lives."""

DONE = b"data: [DONE]\n\n"
"""How OpenAI's streams end."""


def event(data: str, name: str = "") -> bytes:
    """One event.

    Args:
        data: JSON on one line.
        name: Of the event; "": none is written.
    """
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data}\n\n".encode()


class EventStream(Response):
    """A response that is sent as it is made, and notices that its client has gone.

    Args:
        chunks: What to send, each at once.  An error of it is sent by ``failed``, and ends the stream.
        gone: Called when the client is gone before the end: frees what makes the chunks.
        failed: Writes an error in the middle of a stream.
        headers: Of the response.
        media_type: Of the response.
        comment: Sent while nothing else is; b"": nothing, where the form has no comments.
        line: Lets the engine's thread send chunks itself, where the connection can; None: the loop sends all.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        gone: Callable[[], object],
        failed: Callable[[BaseException], bytes],
        *,
        headers: Mapping[str, str] | None = None,
        media_type: str = "text/event-stream",
        comment: bytes = b": waiting\n\n",
        line: Line[Any] | None = None,
    ) -> None:
        self.status_code, self.background = 200, None
        self.media_type = media_type
        self.init_headers(
            {"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})}
        )
        self._chunks, self._gone, self._failed, self._comment = chunks, gone, failed, comment
        self._line = line
        self._open = False  # its head was sent, and its end was not
        self._idle = True  # nothing was sent lately

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; returns when all is sent, or the client is gone."""
        wire = None if self._line is None else wire_of(scope)
        sending = asyncio.ensure_future(self._send(send, scope.get(BODY, send), wire))
        beside = [asyncio.ensure_future(disconnected(receive))]
        if self._comment:
            beside.append(asyncio.ensure_future(self._keep_alive(scope.get(BODY, send), wire)))
        try:
            await asyncio.wait((sending, beside[0]), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not sending.done():
                self._gone()
            for task in (sending, *beside):
                task.cancel()
            await asyncio.gather(sending, *beside, return_exceptions=True)
            await self._chunks.aclose()

    async def _send(self, send: Send, more: Send, wire: Wire | None) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            self._open = True
            if self._line is not None:
                self._line.open(wire)
            try:
                async for chunk in self._chunks:
                    self._idle = False
                    await more({"type": "http.response.body", "body": chunk, "more_body": True})
            except (asyncio.CancelledError, OSError):
                raise
            except Exception as error:
                await _body(more, self._failed(error))
            self._open = False
            await _body(send, b"", more=False)
        except OSError:  # the client is gone
            self._open = False
            self._gone()

    async def _keep_alive(self, send: Send, wire: Wire | None) -> None:
        while True:
            self._idle = True
            before = 0 if wire is None else wire.sent
            await asyncio.sleep(KEEP_ALIVE)
            if not (self._open and self._idle):
                continue
            if wire is None or not wire.ready():
                if wire is not None:
                    wire.flush()
                await _body(send, self._comment)
            elif wire.sent == before:
                wire.send(
                    self._comment
                )  # it must not come into the middle of another thread's chunk


async def _body(send: Send, data: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def disconnected(receive: Receive) -> None:
    """Wait until the client is gone; the body must have been read."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return


async def unless_gone(request: Request, work: Awaitable[T], gone: Callable[[], object]) -> T:
    """Wait for work, and end it where the client goes away before.

    Args:
        request: Its body must have been read.
        work: What is waited for.
        gone: Called when the client is gone: lets ``work`` come to its end soon.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(disconnected(request.receive))
    watching.add_done_callback(lambda task: None if task.cancelled() else gone())
    try:
        return await working
    finally:
        if not working.done():
            gone()
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def merged(sources: Sequence[AsyncIterator[T]]) -> AsyncIterator[T]:
    """What several streams give, as it comes; the first error of one ends all."""
    return sources[0] if len(sources) == 1 else _merged(sources)


async def _merged(sources: Sequence[AsyncIterator[T]]) -> AsyncGenerator[T, None]:
    given: asyncio.Queue[tuple[T | None, BaseException | None]] = asyncio.Queue()

    async def pump(source: AsyncIterator[T]) -> None:
        try:
            async for each in source:
                given.put_nowait((each, None))
            given.put_nowait((None, None))
        except Exception as error:
            given.put_nowait((None, error))

    tasks = [asyncio.ensure_future(pump(source)) for source in sources]
    try:
        left = len(tasks)
        while left:
            made, error = await given.get()
            if error is not None:
                raise error
            if made is None:
                left -= 1
            else:
                yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
