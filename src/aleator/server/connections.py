"""Limits on connections: how many there may be, and how long they may keep the server waiting.

uvicorn limits neither the time until a request's head is complete, nor the time in which a client reads a
response, nor (with httptools) the length of a head.  This module sits between the transport and either of
uvicorn's protocols, and adds these limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from aleator.server.streaming import WIRE, Wire

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ModuleNotFoundError:  # httptools, which is faster, is optional
    HttpToolsProtocol = None  # type: ignore[assignment,misc]

TOO_MANY = b"there are too many connections: try again\r\n"
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(TOO_MANY), TOO_MANY)
)
"""The response to a connection above the limit."""

LONG_HEAD = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits on connections."""

    most: int = 4096  # Connections at the same time
    # Until the head of a request is complete, from its first byte, or from the start of a new connection
    head_seconds: float = 10.0
    head_bytes: int = 2**16  # Largest head
    # For which a client may leave a response unread, once buffers are full
    stall_seconds: float = 30.0


class Connections:
    """The connections of one server."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float] = monotonic) -> None:
        self.limits, self.clock = limits, clock
        self.live: set[Connection] = set()

    def protocol(self) -> type[asyncio.Protocol]:
        """What makes connections; uvicorn's option ``http`` asks for a class, but only calls it."""
        return partial(Connection, self)  # type: ignore[return-value]

    def sweep(self) -> int:
        """End the connections that have kept the server waiting for too long; return how many."""
        now = self.clock()
        late = [connection for connection in self.live if connection.overdue(now)]
        for connection in late:
            connection.abort()
        return len(late)


class Connection(asyncio.Protocol):
    """One connection: one of uvicorn's protocols, with a watch on it."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._connections, self._wire = connections, Wire()
        kind = H11Protocol if HttpToolsProtocol is None else HttpToolsProtocol
        self._inner = kind(config, server_state, {**app_state, WIRE: self._wire}, _loop)
        self._transport: asyncio.Transport | None = None
        self._head_since: float | None = None
        self._head_bytes = 0
        self._stalled_since: float | None = None
        self._closing_since: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a connection, or turn it away."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"a connection has a transport, not {transport!r}")
        connections = self._connections
        if len(connections.live) >= connections.limits.most:
            transport.write(BUSY)
            transport.close()
            return
        self._transport = transport
        self._head_since = connections.clock()
        connections.live.add(self)
        self._wire.opened(transport)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._wire.lost()
        self._connections.live.discard(self)
        if self._transport is not None:
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass data on; note whether the head of a request is complete."""
        transport, inner = self._transport, self._inner
        if transport is None or transport.is_closing():
            return
        before = inner.cycle
        inner.data_received(data)
        cycle = inner.cycle
        if cycle is not before or (cycle is not None and not cycle.response_complete):
            self._head_since, self._head_bytes = None, 0
            return
        if self._head_since is None:
            self._head_since = self._connections.clock()
        self._head_bytes += len(data)
        if self._head_bytes > self._connections.limits.head_bytes and not transport.is_closing():
            transport.write(LONG_HEAD)
            transport.close()

    def eof_received(self) -> None:
        """Pass on that the client sends no more."""
        if self._transport is not None:
            self._inner.eof_received()

    def pause_writing(self) -> None:
        """Note that buffers are full."""
        self._stalled_since = self._connections.clock()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Note that the client has read."""
        self._stalled_since = None
        self._inner.resume_writing()

    def overdue(self, now: float) -> bool:
        """Whether it has kept the server waiting for too long."""
        transport, limits = self._transport, self._connections.limits
        if transport is None:
            return False
        if transport.is_closing() and self._closing_since is None:
            self._closing_since = now  # its buffer may stay unread too
        waits = (
            (self._head_since, limits.head_seconds),
            (self._stalled_since, limits.stall_seconds),
            (self._closing_since, limits.stall_seconds),
        )
        return any(since is not None and now - since > longest for since, longest in waits)

    def abort(self) -> None:
        """End it at once; the request's handler learns that the client has gone."""
        if self._transport is not None:
            self._transport.abort()
