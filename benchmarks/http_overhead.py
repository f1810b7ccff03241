"""Measures the cost of HTTP: the same requests over HTTP and without it, to one engine in one process.

    python benchmarks/http_overhead.py -m MODEL.gguf [--threads 2] [--rounds 9]
    python benchmarks/http_overhead.py -m MODEL.gguf --streams 16    its processor time
    python benchmarks/http_overhead.py --loop [--mib 92]    an event loop that only writes

One client at a time asks for streams of 64 tokens at ``/v1/completions``.  In between the same server's engine
generates such texts for a thread of the process, which reads them piece by piece.  So both use the same weights
at the same place in memory, and the difference of a pair is HTTP's overhead.  Seconds are wall-clock time: work
of other cores beside the decoder causes no delay.

The client runs on the same machine and takes time from the decoder.  So each round has two clients.  One is
woken by each event, like a real one.  The other one reads whole answers (SO_RCVLOWAT): the system wakes it only
at the end, so only the server's own overhead is left.

While other programs run, the differences are noise.

``--streams`` is the number of concurrent clients.  It measures processor time, which other programs hardly
change: that of the event loop's thread, and that of the engine's thread from the end of a step until its tokens
are sent.  The processor time of whole processes would not do: a decoder takes milliseconds per token, and its
threads wait actively for each other, for longer if something else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import aleator
from aleator.engine import engine_loop, request_handle
from aleator.server.app import create_guarded
from aleator.server.options import ServerOptions
from aleator.server.run import Server, bound
from aleator.server.service import Service

HERE = Path(__file__).parent
NAMES = ("max_tokens", "temperature", "seed", "ignore_eos")
WORDS = ("the", "king", "of", "and", "to", "in", "is", "was", "he", "for", "it", "with", "as")
REQUESTS, ANSWER = 4, 64
"""Requests of each kind in a round, one after the other, and their tokens."""
KINDS = ("engine", "events", "blocks")
"""The readers: a thread without HTTP, a client woken by each event, a client that reads whole answers."""
FIRST_WORDS = {"engine": "One", "events": "Two", "blocks": "Six"}
"""The prompts' first words; they differ so that the prompt cache has nothing of the turn before."""


class Served:
    """A server in a thread of this process.

    Args:
        service: Generates the texts.

    Attributes:
        port: Where it listens.
        thread: Runs its event loop.
    """

    def __init__(self, service: Service) -> None:
        listening = bound(service.options)
        self.port: int = listening.getsockname()[1]
        ready = threading.Event()
        self._server = Server(create_guarded(service), service.options, ready.set, service.cut)
        self.thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listening]})
        self.thread.start()
        ready.wait()

    def processor_seconds(self) -> float:
        """Processor time of the event loop's thread."""
        return time.clock_gettime(time.pthread_getcpuclockid(self.thread.ident or 0))

    def end(self) -> None:
        """End it."""
        self._server.end()
        self.thread.join()


def over_http(
    port: int, bodies: list[dict[str, Any]], blocks: bool, clients: int = 1
) -> tuple[float, float]:
    """Seconds per token of requests over HTTP, and the client's processor time."""
    order = {"port": port, "path": "/v1/completions", "clients": clients, "bodies": bodies}
    made = subprocess.run(
        [sys.executable, str(HERE / "server_client.py")],
        input=json.dumps({**order, "blocks": blocks}).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(made.stdout)
    if found["errors"]:
        raise SystemExit(found["errors"][0])
    return found["seconds"] / found["tokens"], found["client_seconds"] / found["tokens"]


def without(engine: aleator.Engine, bodies: list[dict[str, Any]]) -> float:
    """Seconds per token of the same requests from the engine."""
    began, tokens = time.perf_counter(), 0
    for body in bodies:
        made = engine.submit(body["prompt"], parse_special=True, **{n: body[n] for n in NAMES})
        for _ in made:
            pass
        tokens += len(made.tokens)
    return (time.perf_counter() - began) / tokens


def requests(round: int, n: int = REQUESTS) -> list[dict[str, Any]]:
    """The bodies of a round; they differ in every round."""
    rng = random.Random(round)
    prompts = [" ".join(rng.choices(WORDS, k=50)) for _ in range(n)]
    more = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0.8}
    forced = {"seed": round, "max_tokens": ANSWER, "ignore_eos": True}
    return [{"prompt": prompt, **more, **forced} for prompt in prompts]


def measure(model: str, threads: int, rounds: int) -> dict[str, float]:
    """Microseconds per token: medians over rounds; overheads are medians of the pairs' differences.

    Args:
        model: A file.
        threads: The decoder's threads.
        rounds: How many; the first one does not count.
    """
    seen: dict[str, list[float]] = {}
    language_model = aleator.load(model, n_threads=threads, n_ctx=1536)
    with language_model.engine(n_seq_max=8) as engine:
        served = Served(Service(language_model, engine, ServerOptions(port=0)))
        try:
            for number in range(rounds):
                bodies = requests(number)
                took: dict[str, float] = {}
                for kind in KINDS[number % 3 :] + KINDS[: number % 3]:
                    own = [{**b, "prompt": f"{FIRST_WORDS[kind]} {b['prompt']}"} for b in bodies]
                    loop = served.processor_seconds()
                    if kind == "engine":
                        took[kind] = without(engine, own)
                        continue
                    took[kind], client = over_http(served.port, own, kind == "blocks")
                    took[f"{kind}_client"] = client
                    n = sum(body["max_tokens"] for body in own)
                    took[f"{kind}_loop"] = (served.processor_seconds() - loop) / n
                for kind in KINDS[1:]:
                    took[f"{kind}_overhead"] = took[kind] - took["engine"]
                if number:  # the first round includes one-time initialisation
                    for name, value in took.items():
                        seen.setdefault(name, []).append(1e6 * value)
        finally:
            served.end()
    return {name: statistics.median(values) for name, values in seen.items()}


class Telling:
    """Measures the engine thread's processor time for passing tokens to readers and writing to them.

    Attributes:
        seconds: So far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        for of, name in ((request_handle.RequestHandle, "notify"), (engine_loop, "wake")):
            setattr(of, name, self._timed(getattr(of, name)))

    def _timed(self, call: Any) -> Any:
        def timed(*args: Any) -> None:
            began = time.thread_time()
            call(*args)
            self.seconds += time.thread_time() - began

        return timed


def processor(model: str, threads: int, rounds: int, streams: int) -> dict[str, float]:
    """Microseconds of processor time per token of streams over HTTP; medians over rounds.

    Args:
        model: A file.
        threads: The decoder's threads.
        rounds: How many; the first one does not count.
        streams: How many clients ask at once, for two answers each.
    """
    telling = Telling()
    seen: dict[str, list[float]] = {"loop": [], "engine": [], "alone": [], "client": []}
    language_model = aleator.load(model, n_threads=threads, n_ctx=1536)
    with language_model.engine(n_seq_max=streams) as engine:
        served = Served(Service(language_model, engine, ServerOptions(port=0)))
        try:
            for number in range(rounds):
                bodies = requests(number, 2 * streams)
                n = sum(body["max_tokens"] for body in bodies)
                before = telling.seconds
                made = [
                    engine.submit(f"One {b['prompt']}", **{name: b[name] for name in NAMES})
                    for b in bodies
                ]
                for each in made:
                    each.wait()
                alone, before = telling.seconds - before, telling.seconds
                loop = served.processor_seconds()
                own = [{**b, "prompt": f"Two {b['prompt']}"} for b in bodies]
                _, client = over_http(served.port, own, False, streams)
                took = {"loop": served.processor_seconds() - loop}
                took |= {"engine": telling.seconds - before, "alone": alone, "client": client * n}
                for name, value in took.items() if number else ():
                    seen[name].append(1e6 * value / n)
        finally:
            served.end()
    seen["all"] = [
        a + b - c for a, b, c in zip(seen["loop"], seen["engine"], seen["alone"], strict=True)
    ]
    return {name: statistics.median(v) for name, v in seen.items()} | {
        "least": min(seen["all"]),
        "most": max(seen["all"]),
    }


CHUNK = b"x" * 300
"""A text as long as a chunk of a stream."""


async def bare_loop(mib: float, times: int) -> float:
    """Processor seconds for the least work of a server per token.

    A thread reads as much memory as a token's weights take, so that caches are as cold as beside a decoder.
    Then it wakes the loop, which writes to a socket, without HTTP, JSON or requests.

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


def report(found: dict[str, float]) -> list[str]:
    """The measurements as readable lines."""
    return [
        f"Overhead of HTTP at one client: {found['blocks_overhead']:,.0f} us a token by the server itself, "
        f"{found['events_overhead']:,.0f} us with a client beside it that reads each event "
        f"({found['engine']:,.0f} us by the engine alone; medians of pairs in one process).",
        f"Of a processor the server's event loop took {found['events_loop']:,.0f} us a token, the client "
        f"{found['events_client']:,.0f} us; a client that reads whole answers "
        f"{found['blocks_client']:,.0f} us.",
    ]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("-m", "--model")
    what.add_argument("--loop", action="store_true", help="an event loop, and no server")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--streams", type=int, help="so many clients, and processor time")
    parser.add_argument("--mib", type=float, default=92, help="memory that a token reads (--loop)")
    args = parser.parse_args()
    if args.loop:
        us = 1e6 * asyncio.run(bare_loop(args.mib, 200))
        print(f"{us:.0f} us of the event loop's thread, {args.mib:g} MiB read in between")
        return
    if args.streams:
        found = processor(args.model, args.threads, args.rounds, args.streams)
        print(
            f"{args.streams} streams: HTTP takes {found['all']:.0f} us of a processor a token "
            f"({found['least']:.0f} to {found['most']:.0f}): the event loop {found['loop']:.0f}, the "
            f"engine's thread {found['engine']:.0f} in place of {found['alone']:.0f}; the client "
            f"{found['client']:.0f}"
        )
        return
    print("\n".join(report(measure(args.model, args.threads, args.rounds))))


if __name__ == "__main__":
    main()
