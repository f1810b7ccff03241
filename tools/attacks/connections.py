"""Many connections that say nothing, half of something, or ask once and stay: the others are answered.

``aleator serve`` runs in a process of its own and takes that many connections (``--connections``).  A trial
opens them in turns: some say nothing, some send half of a head, some half of a body, some ask once and stay.
While all are open

- a completion on a connection that was there before has the text that it had alone;
- one connection too many is told 503, and others are let in again once some have gone;
- the server's memory is bounded.

Then all go, and so must the files that the server had open for them; the second trial takes no more memory.
"""

from __future__ import annotations

import http.client
import json
import resource
import signal
import socket
import time
from collections.abc import Generator
from typing import Any

from attacks.world import PATIENCE, Held, World, settled

BODY = {"prompt": "ROMEO:", "max_tokens": 12, "seed": 5}
HALF = (
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000\r\n\r\n"
    + b" " * 2000
)
ASK = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
KINDS = (b"", b"POST /v1/completions HTTP/1.1\r\nhost: loc", HALF, ASK)
"""What a connection sends at first: nothing, half of a head, half of a body, a whole request."""
KIB_EACH = 64.0
"""Memory that a connection may take."""
MARGIN_KIB = 16384.0
"""That they may take more when they come once more: what allocators keep."""
N_HALF = 40
SPARE = 64
"""Files that are open beside connections."""


def allowed(wanted: int) -> int:
    """How many connections this system allows, at most ``wanted``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted + SPARE if hard == resource.RLIM_INFINITY else min(wanted + SPARE, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
    return min(wanted, limit - SPARE)


def completion(connection: http.client.HTTPConnection) -> Any:
    """The choices of a fixed request."""
    connection.request("POST", "/v1/completions", json.dumps(BODY))
    response = connection.getresponse()
    data = response.read()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {data[:200]!r}")
    return json.loads(data)["choices"]


def told(connection: socket.socket) -> bytes:
    """What comes at first; b"" where the connection was closed."""
    try:
        return connection.recv(4096)
    except ConnectionError:
        return b""


def scene(world: World) -> Generator[None, None, None]:
    """Fill a server with connections again and again."""
    from tests.server.live import Process

    n = allowed(world.connections)
    words = [
        "-m", str(world.path), "--parallel", "2", "-c", "512", "--max-connections", str(n),
        "--client-timeout", str(PATIENCE), "--no-log-requests",
    ]  # fmt: skip
    with Process(*words) as server:
        pid, port = server.process.pid, server.live.port
        known = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        expected, files, kib = completion(known), Held.by(pid).files, [Held.by(pid).kib]
        while True:
            half_closed(world, port)
            settled(lambda: Held.by(pid).files <= files)
            began = time.monotonic()
            many = [
                socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
                for _ in range(n - 1)
            ]
            try:
                filled(world, many)
                there = settled(lambda: Held.by(pid).files >= files + n - 1)
                world.check(there, "all connections are there", Held.by(pid))
                world.figures["opened"] = f"{n:,} in {time.monotonic() - began:.1f} s"
                world.check(completion(known) == expected, "texts beside many connections")
                with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as one_more:
                    world.check(b" 503 " in told(one_more), "one connection too many is refused")
                kib.append(Held.by(pid).kib)
            finally:
                for each in many:
                    each.close()
            gone = settled(lambda: Held.by(pid).files <= files)
            world.check(gone, "all connections have gone", Held.by(pid))
            world.check(completion(known) == expected, "texts afterwards")
            bounded(world, kib, n)
            yield
            if world.wrong:
                break
        known.close()
        server.signal(signal.SIGTERM)
        world.check(server.process.wait(PATIENCE) == 0, "SIGTERM", server.process.returncode)


def bounded(world: World, kib: list[int], n: int) -> None:
    """Check the server's memory: before, with all connections, and each time that they came again.

    After a hundred times it has found its level, which is that of what allocators keep: no object is left.
    """
    each, again = (kib[1] - kib[0]) / n, kib[min(2, len(kib) - 1)] - kib[1]
    world.check(each <= KIB_EACH, "memory of a connection", f"{each:.1f} KiB")
    world.check(again <= MARGIN_KIB, "memory when they came again", f"{again} KiB more")
    more = (kib[-1] - kib[1]) / 1024
    world.figures["memory"] = (
        f"{each:.1f} KiB a connection, {more:.1f} MiB more after {len(kib) - 1} times"
    )


def half_closed(world: World, port: int) -> None:
    """Ask on connections whose sending half is closed then: they are answered, and end."""
    many = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(N_HALF)]
    for i, each in enumerate(many):
        each.sendall(KINDS[i % len(KINDS)])
        each.shutdown(socket.SHUT_WR)  # still reads
    for i, each in enumerate(many):
        came = told(each)
        if KINDS[i % len(KINDS)] == ASK:
            world.check(b" 200 " in came, "half-closed connections answered", came)
        while came:
            came = told(each)
        each.close()


def filled(world: World, many: list[socket.socket]) -> None:
    """Send something on each connection, or nothing; those that ask are answered."""
    for i, each in enumerate(many):
        each.sendall(KINDS[i % len(KINDS)])
    asked = many[3 :: len(KINDS)]
    answered = sum(b" 200 " in told(each) for each in asked)
    world.check(answered == len(asked), "requests answered", f"{answered} of {len(asked)}")
