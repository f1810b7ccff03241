"""What the least that a server can do with a token costs: an event loop that is woken by a thread, and writes.

    python benchmarks/event_loop.py [--mib 92] [--times 200]

A thread reads as much memory as a token's weights take, so that caches are as cold as beside a decoder, and
wakes the loop, which writes 300 bytes to a socket: no HTTP, no JSON, no request.  Printed are the microseconds
that the loop's thread took of a processor each time.  bench_server.py tells the same of a whole server.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import threading
import time

import numpy as np

CHUNK = b"x" * 300
"""As long as a chunk of a stream."""


async def measure(mib: float, times: int) -> float:
    """Seconds of a processor for each time.

    Args:
        mib: Memory that is read in between, in MiB.
        times: How often.
    """
    loop = asyncio.get_running_loop()
    there: asyncio.Future[asyncio.Transport] = loop.create_future()
    over = asyncio.Event()
    weights = np.ones(int(mib * 2**20) // 8)

    class Peer(asyncio.Protocol):
        """The server's end."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            if isinstance(transport, asyncio.Transport):
                there.set_result(transport)

    server = await loop.create_server(Peer, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        transport = await there

        def read() -> None:
            while client.recv(2**16):
                pass

        def decode() -> None:
            for _ in range(times):
                weights.sum()
                loop.call_soon_threadsafe(transport.write, CHUNK)
            loop.call_soon_threadsafe(over.set)

        threads = [threading.Thread(target=each) for each in (read, decode)]
        began = time.thread_time()
        for thread in threads:
            thread.start()
        await over.wait()
        took = time.thread_time() - began
        transport.close()
        server.close()
        for thread in threads:
            await loop.run_in_executor(None, thread.join)
    return took / times


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=float, default=92, help="memory that a token reads")
    parser.add_argument("--times", type=int, default=200)
    args = parser.parse_args()
    seconds = asyncio.run(measure(args.mib, args.times))
    print(f"{1e6 * seconds:.0f} us of the event loop's thread, {args.mib:g} MiB read in between")


if __name__ == "__main__":
    main()
