"""The way from the engine's thread to a client, past the event loop.

A token of a text that is streamed wakes a reader in the event loop, which writes a few hundred bytes.  The
waking costs more than the writing: it is another thread, with code and data that the decoder's weights have
driven out of the processor's caches (248 us of a processor for each token, against 50:
benchmarks/results/bench_server_mixed.2026-11-23.md).  So the engine's thread writes them itself, as long as
the client's socket takes them at once and the text has not ended.  All else stays with the loop: the head,
the end, errors, clients that read slowly, encrypted connections, several texts in one response.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from starlette.types import Scope

from aleator.generate.writing import Piece, Writing

T = TypeVar("T")

WIRE = "aleator.wire"
"""Where the state of a scope has the wire of its connection; a scope of another server's has none."""


class Wire:
    """Writes to a connection from any thread.

    Attributes:
        sent: Bytes of bodies that went this way.
    """

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
        """Send a chunk of a response; what the socket does not take now, the loop writes.

        Args:
            body: At least one byte, of a response whose head was sent and that comes in chunks.
        """
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
    """What a stream sends while its one text is made.

    Args:
        write: Makes a chunk of what was read of the text.  It is called in the loop's thread or the engine's,
            never in both at once; b"" is not sent.

    Attributes:
        write: Makes a chunk.
    """

    def __init__(self, write: Callable[[Sequence[T]], bytes]) -> None:
        self.write = write
        self._wire: Wire | None = None

    def open(self, wire: Wire | None) -> None:
        """The head of the response was sent, and chunks may go past the loop if there is a wire."""
        self._wire = wire

    async def follow(self, writing: Writing, read: Callable[[list[Piece]], Sequence[T]]) -> None:
        """Let pieces of a text be sent as they are made; returns when the loop has to go on.

        Args:
            writing: The text.
            read: What pieces add to what is sent; called as ``write`` is.

        Raises:
            Exception: What ``read`` or ``write`` raised.
        """
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
