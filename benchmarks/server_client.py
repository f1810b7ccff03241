"""A client for bench_server.py: many streams in one process, with little work for each.

    python benchmarks/server_client.py < order.json > found.json

An order names the port, the number of clients and the bodies of all requests.  The result has seconds, tokens,
times to the first token and between tokens, and this program's own processor time.  With ``"blocks": true`` the
system wakes it once for each answer, at its end: it then takes almost no time, and times between tokens are not
measured.
"""

from __future__ import annotations

import json
import re
import resource
import select
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

EVENT = b"data: {"
DONE = b"data: [DONE]"
END = b"\r\n0\r\n\r\n"
TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
BLOCK = 2**20
"""The least bytes before the system wakes a client that reads whole answers."""
TAIL = 4096
"""How many last bytes of an answer are kept, for its usage."""


@dataclass
class Found:
    """What all clients have seen; times in seconds.

    Attributes:
        tokens: Drawn tokens.
        requests: Answered requests.
        first: Times to the first token.
        gaps: Times between an event and the next one of the same answer.
        errors: Failed answers.
    """

    tokens: int = 0
    requests: int = 0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Stream:
    """One client: sends its bodies one after the other, and reads each answer as it arrives.

    Args:
        port: The server's port.
        requests: The bytes of its requests.
        found: Collects the results.
        blocks: Read whole answers; the requests end their connections.
    """

    def __init__(
        self, port: int, requests: list[bytes], found: Found, blocks: bool = False
    ) -> None:
        self._port, self._found, self._blocks = port, found, blocks
        self._left = requests[::-1]
        self._tail = b""
        self._events = 0
        self._sent = self._last = 0.0
        self._broken = True  # whether the connection must be made anew
        self.socket = self._connected()

    def _connected(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self._port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._blocks:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * BLOCK)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, BLOCK)
        self._broken = False
        return made

    def ask(self) -> bool:
        """Send the next request; return whether there was one."""
        if not self._left:
            return False
        if self._broken:
            self.socket.close()
            self.socket = self._connected()
        self._tail, self._events = b"", 0
        self._sent = time.perf_counter()
        self.socket.sendall(self._left[-1])
        return True

    def receive(self) -> bool:
        """Read what has arrived; return whether another request can be sent."""
        data = self.socket.recv(2**18)
        now = time.perf_counter()
        if not data:
            return self._closed()
        came = data.count(EVENT)
        if self._tail:  # an event's start may be split over two pieces
            edge = self._tail[1 - len(EVENT) :] + data[: len(EVENT) - 1]
            came += edge.count(EVENT)
        if came:
            found = self._found
            if not self._events:
                found.first.append(now - self._sent)
            else:
                found.gaps.append(now - self._last)
            if came > 1:
                found.gaps.extend([0.0] * (came - 1))
            self._last, self._events = now, self._events + came
        self._tail = data if len(data) >= TAIL else (self._tail + data)[-TAIL:]
        if data.endswith(END[-2:]) and self._tail.endswith(END) and DONE in self._tail:
            return self._end()
        if not self._events and b"\r\n\r\n" in data and not self._tail.startswith(b"HTTP/1.1 200"):
            self._found.errors.append(self._tail[:300].decode("latin-1"))
            self._left.pop()
            self._broken = True
        return self._broken

    def _end(self) -> bool:
        tokens = TOKENS.findall(self._tail)
        self._found.tokens += int(tokens[-1]) if tokens else self._events
        self._found.requests += 1
        self._left.pop()
        self._broken = self._blocks
        return True

    def _closed(self) -> bool:
        """Handle a connection closed by the server, which is allowed between two answers."""
        if self._events:
            self._found.errors.append("the connection was closed")
            self._left.pop()
        self._broken = True
        return True


def request(port: int, path: str, body: Any, close: bool = False) -> bytes:
    """The bytes of a request; ``close`` ends its connection."""
    data = json.dumps(body).encode()
    end = "connection: close\r\n" if close else ""
    return (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n{end}\r\n"
    ).encode() + data


def drive(order: dict[str, Any]) -> dict[str, Any]:
    """Run all clients; return what they saw."""
    found, port, clients = Found(), order["port"], order["clients"]
    blocks = order.get("blocks", False)
    requests = [request(port, order["path"], body, blocks) for body in order["bodies"]]
    streams = [Stream(port, requests[number::clients], found, blocks) for number in range(clients)]
    waiting = select.epoll()
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    by_file: dict[int, Stream] = {}

    def ask(stream: Stream) -> None:
        if stream.ask():
            by_file[stream.socket.fileno()] = stream
            waiting.register(stream.socket, select.EPOLLIN)

    for stream in streams:
        ask(stream)
    while by_file:
        for file, _ in waiting.poll():
            stream = by_file[file]
            if stream.receive():
                del by_file[file]
                waiting.unregister(file)
                ask(stream)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**found.__dict__, "seconds": seconds, "client_seconds": own}


if __name__ == "__main__":
    json.dump(drive(json.load(sys.stdin)), sys.stdout)
