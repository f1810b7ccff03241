"""A client for bench_server.py: many streams in one process, with little work for each.

    python benchmarks/server_client.py < order.json > found.json

An order names the port, the number of clients and the bodies of all requests.  What is found: seconds, tokens,
times to the first token and between tokens, and the seconds of a processor that this program took itself.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import sys
import time
from dataclasses import dataclass, field
from typing import Any

EVENT = b"data: {"
DONE = b"data: [DONE]"
END = b"\r\n0\r\n\r\n"
TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
TAIL = 4096
"""Bytes of an answer's end that are kept, for its usage."""


@dataclass
class Found:
    """What all clients have seen; times in seconds.

    Attributes:
        tokens: Drawn.
        requests: Answered.
        first: Times to the first token.
        gaps: Times between an event and the next one of the same answer.
        errors: Answers that were none.
    """

    tokens: int = 0
    requests: int = 0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Stream(asyncio.Protocol):
    """One client: sends a body, and reads its answer as it comes.

    Args:
        found: What is seen is added to it.
    """

    def __init__(self, found: Found) -> None:
        self._found = found
        self._transport: asyncio.Transport | None = None
        self._tail = b""
        self._events = 0
        self._sent = self._last = 0.0
        self._ended: asyncio.Future[bool] | None = None

    @property
    def open(self) -> bool:
        """Whether another body can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The server has closed the connection."""
        self._transport = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(False)

    async def ask(self, request: bytes) -> bool:
        """Send a request, and read its answer to the end; returns whether it had one."""
        if self._transport is None:
            return False
        self._ended = asyncio.get_running_loop().create_future()
        self._tail, self._events = b"", 0
        self._sent = time.perf_counter()
        self._transport.write(request)
        return await self._ended

    def data_received(self, data: bytes) -> None:
        """Count events, and see whether it was the last."""
        now = time.perf_counter()
        joined = self._tail + data
        # What ends in the middle of an event's beginning is counted with what follows.
        came = joined.count(EVENT) - self._tail.count(EVENT)
        if came:
            found = self._found
            if not self._events:
                found.first.append(now - self._sent)
            else:
                found.gaps.append(now - self._last)
            found.gaps.extend([0.0] * (came - 1))
            self._last, self._events = now, self._events + came
        self._tail = joined[-TAIL:]
        if DONE in joined and joined.endswith(END):
            self._end(joined)
        elif not self._events and b"\r\n\r\n" in joined and not joined.startswith(b"HTTP/1.1 200"):
            self._found.errors.append(joined[:300].decode("latin-1"))
            if self._transport is not None:
                self._transport.close()

    def _end(self, answer: bytes) -> None:
        tokens = TOKENS.findall(answer)
        self._found.tokens += int(tokens[-1]) if tokens else self._events
        self._found.requests += 1
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(True)


def request(port: int, path: str, body: Any) -> bytes:
    """The bytes of a request."""
    data = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    ).encode() + data


async def drive(order: dict[str, Any]) -> dict[str, Any]:
    """Let all clients ask; returns what they saw."""
    found, port, clients = Found(), order["port"], order["clients"]
    requests = [request(port, order["path"], body) for body in order["bodies"]]
    loop = asyncio.get_running_loop()

    async def connect() -> Stream:
        return (await loop.create_connection(lambda: Stream(found), "127.0.0.1", port))[1]

    async def client(number: int) -> None:
        stream = streams[number]
        for each in requests[number::clients]:
            if not stream.open or not await stream.ask(each):
                stream = await connect()
                if not await stream.ask(each):
                    found.errors.append("the connection was closed")

    streams = [await connect() for _ in range(clients)]
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    await asyncio.gather(*(client(i) for i in range(clients)))
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**found.__dict__, "seconds": seconds, "client_seconds": own}


if __name__ == "__main__":
    json.dump(asyncio.run(drive(json.load(sys.stdin))), sys.stdout)
