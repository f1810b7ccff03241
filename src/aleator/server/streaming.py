"""Streams: responses that are sent as they are made, and waiting for work whose client may disconnect.

Each token of a streamed text would wake a reader in the event loop, which writes a few hundred bytes.  Waking
costs more than writing: it is another thread, whose code and data the decoder's weights have evicted from the
processor's caches (248 us of processor time per token, against 50:
benchmarks/results/bench_server_mixed.2026-11-23.md).  So the engine's thread writes them itself, as long as the
client's socket accepts them at once and the text has not ended.  The loop does all else: the head, the end,
errors, slow clients, encrypted connections, several texts in one response.
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

from aleator.generate.generation import GenerationReader, Piece
from aleator.server.errors import ApiError, api_error

T = TypeVar("T")

WIRE = "aleator.wire"
"""Key of the connection's wire in a scope's state; absent in other servers."""
BODY = "aleator.body"
"""Key in a scope of the function that sends chunks past the layers that only look at a response's start."""

dumps: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode
"""Writes JSON on one line."""

KEEP_ALIVE = 15.0
"""Seconds without an event after which a comment shows that the connection is alive."""

DONE = b"data: [DONE]\n\n"
"""The last line of OpenAI's streams."""


class Wire:
    """Writes to a connection from any thread."""

    def __init__(self) -> None:
        self.sent = 0
        # The socket's file may be closed, and its number reused.
        self._lock = threading.Lock()
        self._file = -1
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rest = b""  # what the socket did not accept, until the loop writes it

    def opened(self, transport: asyncio.Transport) -> None:
        """Note that the connection is open; called in the loop."""
        found = transport.get_extra_info("socket")
        if os.name != "posix" or found is None:  # elsewhere a socket is not a file
            return
        if transport.get_extra_info("sslcontext") is None:
            self._loop, self._transport = asyncio.get_running_loop(), transport
            self._file = found.fileno()

    def lost(self) -> None:
        """Note that the connection ends: its socket is closed after this."""
        with self._lock:
            self._file, self._transport = -1, None

    def ready(self) -> bool:
        """Whether nothing waits to be written, so that a chunk can be next."""
        transport = self._transport
        if transport is None or self._rest:
            return False
        try:
            return not transport.get_write_buffer_size() and not transport.is_closing()
        except RuntimeError:  # the loop was just changing what waits
            return False

    def send(self, body: bytes) -> bool:
        """Send a non-empty chunk; the loop writes what the socket does not accept now.

        Returns whether all of it was accepted, so that another chunk can be next.
        """
        data = b"%x\r\n%b\r\n" % (len(body), body)
        with self._lock:
            if self._file < 0 or self._loop is None:  # the client is gone, as the loop knows
                return False
            self.sent += len(body)
            try:
                n = os.write(self._file, data) if self.ready() else 0
            except (BlockingIOError, InterruptedError):
                n = 0
            except OSError:  # the client is gone; the loop will notice
                return False
            if n < len(data):
                if not self._rest:
                    self._loop.call_soon_threadsafe(self.flush)
                self._rest += data[n:]
            return n == len(data)

    def flush(self) -> None:
        """Write what the socket did not accept; in the loop, before it writes anything else."""
        with self._lock:
            if self._rest and self._transport is not None:
                self._transport.write(self._rest)
            self._rest = b""  # last, or other threads would write earlier


def wire_of(scope: Scope) -> Wire | None:
    """The wire of a request's connection; None if there is none, or its responses are not sent in chunks."""
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
        """Note that the head of the response was sent: chunks may bypass the loop if there is a wire."""
        self._wire = wire

    async def follow(
        self, reader: GenerationReader, read: Callable[[list[Piece]], Sequence[T]]
    ) -> None:
        """Send pieces of a text as they are made; return when the loop has to continue."""
        wire, write = self._wire, self.write
        if wire is None:
            return
        send = wire.send

        def take(pieces: list[Piece]) -> bool:
            data = write(read(pieces))
            return not data or send(data)

        try:
            if wire.ready():
                await reader.pass_on(take)
        finally:
            wire.flush()  # what the loop writes next comes after it


def event(data: str, name: str = "") -> bytes:
    """Format one event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data}\n\n".encode()


def failing(
    render_error: Callable[[ApiError], dict[str, Any]], name: str = ""
) -> Callable[[BaseException], bytes]:
    """Make a function that writes an error in the middle of a stream, in the form of a dialect."""
    return lambda error: event(dumps(render_error(api_error(error))), name)


def typed_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Format events that are named by their type."""
    return b"".join(event(dumps(each), each["type"]) for each in events)


NDJSON: Mapping[str, Any] = {"media_type": "application/x-ndjson", "comment": b""}
"""Arguments of :class:`EventStream` for lines of JSON, which have no comments."""


class EventStream(Response):
    """A response that is sent as it is made, and detects that its client has disconnected."""

    def __init__(
        self,
        # chunks to send, each at once; their error is sent by ``failed``, and ends the stream
        chunks: AsyncGenerator[bytes, None],
        # called if the client disconnects before the end: frees what makes the chunks
        gone: Callable[[], object],
        failed: Callable[[BaseException], bytes],  # writes an error in the middle of a stream
        *,
        headers: Mapping[str, str] | None = None,
        media_type: str = "text/event-stream",
        # sent in silent periods; b"": nothing, if the form has no comments
        comment: bytes = b": waiting\n\n",
        # lets the engine's thread send chunks itself if the connection allows; None: the loop sends all
        line: Line[Any] | None = None,
    ) -> None:
        self.status_code, self.background = 200, None
        self.media_type = media_type
        self.init_headers(
            {"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})}
        )
        self._chunks, self._gone, self._failed, self._comment = chunks, gone, failed, comment
        self._line = line
        self._open = False  # between its head and its end
        self._idle = True  # nothing was sent recently

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; return when all is sent, or the client has disconnected."""
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
        except OSError:  # the client has disconnected
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
                wire.send(self._comment)  # not into another thread's chunk


async def _body(send: Send, data: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def disconnected(receive: Receive) -> None:
    """Wait until the client disconnects; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Awaitable[T], gone: Callable[[], object]) -> T:
    """Wait for work; cancel it if the client disconnects before its end."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(disconnected(request.receive))
    watching.add_done_callback(lambda task: None if task.cancelled() else gone())
    try:
        return await working
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def merged(sources: Sequence[AsyncIterator[T]]) -> AsyncIterator[T]:
    """Yield what several streams yield, as it comes; the first error ends all."""
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
