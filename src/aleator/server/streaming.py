"""Streams: responses that are sent as they are made, and waiting for work whose client may go away.

A token of a text that is streamed wakes a reader in the event loop, which writes a few hundred bytes.  The
waking costs more than the writing: it is another thread, with code and data that the decoder's weights have
driven out of the processor's caches (248 us of a processor for each token, against 50:
benchmarks/results/bench_server_mixed.2026-11-23.md).  So the engine's thread writes them itself, as long as
the client's socket takes them at once and the text has not ended.  All else stays with the loop: the head,
the end, errors, clients that read slowly, encrypted connections, several texts in one response.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aleator.generate.generation import Piece, Writing
from aleator.server.errors import ApiError, api_error

T = TypeVar("T")

WIRE = "aleator.wire"
"""Where the state of a scope has the wire of its connection; a scope of another server's has none."""
BODY = "aleator.body"
"""Where a scope has what sends the pieces of a response: past all that only looks at its beginning."""

dumps: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode
"""Writes JSON on one line."""

KEEP_ALIVE = 15.0
"""Seconds without an event after which a comment says that the connection lives."""

DONE = b"data: [DONE]\n\n"
"""How OpenAI's streams end."""


class Wire:
    """Writes to a connection from any thread."""

    def __init__(self) -> None:
        self.sent = 0
        # The socket's file may be closed, and its number given to another.
        self._lock = threading.Lock()
        self._file = -1
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rest = b""  # what the socket did not take, until the loop writes it

    def opened(self, transport: asyncio.Transport) -> None:
        """The connection is there; called in the loop."""
        found = transport.get_extra_info("socket")
        if os.name != "posix" or found is None:  # elsewhere a socket is no file
            return
        if transport.get_extra_info("sslcontext") is None:
            self._loop, self._transport = asyncio.get_running_loop(), transport
            self._file = found.fileno()

    def lost(self) -> None:
        """The connection ends: its socket is closed after this."""
        with self._lock:
            self._file, self._transport = -1, None

    def ready(self) -> bool:
        """Whether nothing waits to be written, so that a chunk can be next."""
        transport = self._transport
        if transport is None or self._rest:
            return False
        try:
            return not transport.get_write_buffer_size() and not transport.is_closing()
        except RuntimeError:  # the loop has just changed what waits
            return False

    def send(self, body: bytes) -> None:
        """Send a chunk, which is not empty; the loop writes what the socket does not take now."""
        data = b"%x\r\n%b\r\n" % (len(body), body)
        with self._lock:
            if self._file < 0 or self._loop is None:  # the client is gone, and the loop knows
                return
            self.sent += len(body)
            try:
                n = os.write(self._file, data) if self.ready() else 0
            except (BlockingIOError, InterruptedError):
                n = 0
            except OSError:  # the client is gone, and the loop is about to know
                return
            if n < len(data):
                if not self._rest:
                    self._loop.call_soon_threadsafe(self.flush)
                self._rest += data[n:]

    def flush(self) -> None:
        """Write what the socket did not take; in the loop, before it writes anything else."""
        with self._lock:
            if self._rest and self._transport is not None:
                self._transport.write(self._rest)
            self._rest = b""  # not before: then other threads would write


def wire_of(scope: Scope) -> Wire | None:
    """The wire of a request's connection; None where there is none, or its responses come in no chunks."""
    if scope.get("http_version") != "1.1" or scope["method"] == "HEAD":
        return None
    found = scope.get("state", {}).get(WIRE)
    return found if isinstance(found, Wire) else None


class Line(Generic[T]):
    """What a stream sends while its one text is made; the loop or the engine calls ``write``, never both."""

    def __init__(self, write: Callable[[Sequence[T]], bytes]) -> None:
        self.write = write
        self._wire: Wire | None = None

    def open(self, wire: Wire | None) -> None:
        """The head of the response was sent, and chunks may go past the loop if there is a wire."""
        self._wire = wire

    async def follow(self, writing: Writing, read: Callable[[list[Piece]], Sequence[T]]) -> None:
        """Let pieces of a text be sent as they are made; returns when the loop has to go on."""
        wire = self._wire
        if wire is None:
            return
        send = wire.send

        def take(pieces: list[Piece]) -> None:
            data = self.write(read(pieces))
            if data:
                send(data)

        try:
            await writing.pass_on(wire.ready, take)
        finally:
            wire.flush()


def event(data: str, name: str = "") -> bytes:
    """One event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data}\n\n".encode()


def failing(
    render_error: Callable[[ApiError], dict[str, Any]], name: str = ""
) -> Callable[[BaseException], bytes]:
    """What writes an error in the middle of a stream, in the form of a dialect."""
    return lambda error: event(dumps(render_error(api_error(error))), name)


def typed_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Events that are named by their type."""
    return b"".join(event(dumps(each), each["type"]) for each in events)


class EventStream(Response):
    """A response that is sent as it is made, and notices that its client has gone."""

    def __init__(
        self,
        # what to send, each at once. An error of it is sent by ``failed``, and ends the stream
        chunks: AsyncGenerator[bytes, None],
        # called when the client is gone before the end: frees what makes the chunks
        gone: Callable[[], object],
        failed: Callable[[BaseException], bytes],  # writes an error in the middle of a stream
        *,
        headers: Mapping[str, str] | None = None,
        media_type: str = "text/event-stream",
        # sent while nothing else is; b"": nothing, where the form has no comments
        comment: bytes = b": waiting\n\n",
        # lets the engine's thread send chunks itself, where the connection can; None: the loop
        # sends all
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
                wire.send(self._comment)  # not into the middle of another thread's chunk


async def _body(send: Send, data: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def disconnected(receive: Receive) -> None:
    """Wait until the client is gone; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Awaitable[T], gone: Callable[[], object]) -> T:
    """Wait for work, and end it where the client goes away before."""
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
