"""Clients that misbehave, of a server at its limit: nothing is wrong, and nothing is left.

``aleator serve`` runs in a process of its own, with few slots, a short queue, keys and a slot directory.
Clients ask it all it can do, by every endpoint: streams and whole answers, completions and chats, n, grammars,
log-probabilities, vectors, slots. Some go away in the middle, send half of a request, send nothing, ask for
what is refused, bring a wrong key, or read slowly. One of some fixed requests in between must have the text and
the log-probabilities that it had alone.  A trial is a wave of clients, at the end of which all requests have
ended.

At the end: no answer had a status of 500 or more but 503; few files and connections are open; SIGTERM ends the
server with exit code 0; its log has no error and no prompt; after a long attack its memory is flat.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attacks.fields import BOUNDED, ENDPOINTS
from attacks.world import PATIENCE, PROMPTS, Held, World, settled

KEYS = ("first-key", "second-key")
SLOTS, QUEUE, CELLS = 6, 6, 3072
CLIENTS = 16
PER_CLIENT = 4
"""Requests of a client in a wave."""
MARGIN_MIB = 24.0
"""That memory may grow by in the second half: what allocators keep."""
LONG = 300.0
"""Seconds from which on memory has found its level."""
FILES = 40
"""Files and connections that a server without clients may have open."""
TOO_MUCH = (1000003, 1000033, 1000037, 1000039, 1000081, 1000099)
"""Multiples of numbers that are larger than a schema may have."""
PAGES = (
    "/health", "/metrics", "/v1/models", "/props", "/slots", "/lora-adapters", "/tokenizer_info", "/api/tags",
    "/api/ps", "/api/version",
)  # fmt: skip
"""Endpoints without a body."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}}


@dataclass
class Clients:
    """Clients of a server.

    Attributes:
        world: Counts what happens.
        port: Of 127.0.0.1.
        expected: Answers of fixed requests, alone.
    """

    world: World
    port: int
    expected: dict[int, Any] = field(default_factory=dict)

    def wrong(self, what: str) -> None:
        """Note what must not have been."""
        self.world.check(False, "clients", what)

    def count(self, name: str) -> None:
        """Count something that happened."""
        self.world.count(name)

    def connect(self, timeout: float = PATIENCE) -> http.client.HTTPConnection:
        """A connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(
        self, path: str, body: Any, key: str = KEYS[0], method: str = "POST"
    ) -> tuple[int, bytes]:
        """Status and body of an answer."""
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, json.dumps(body), head(key))
            response = connection.getresponse()
            return response.status, response.read()

    def client(self, rng: random.Random) -> None:
        """Ask a few times, in all ways."""
        ways: list[tuple[Callable[[random.Random], None], int]] = [
            (self.whole, 30), (self.stream, 30), (self.go_away, 15), (self.fixed, 10), (self.refused, 5),
            (self.other, 30), (self.heavy, 2), (self.half, 4), (self.slots, 4), (self.slow_reader, 2),
            (self.wrong_key, 2),
        ]  # fmt: skip
        names, weights = [way for way, _ in ways], [weight for _, weight in ways]
        for _ in range(PER_CLIENT):
            way = rng.choices(names, weights)[0]
            try:
                way(rng)
            except (OSError, http.client.HTTPException) as error:
                # Too many connections, or one that the server gave up: clients can tell.
                self.count(f"connection: {type(error).__name__}")

    def body(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """A path and a body that are answered."""
        made: dict[str, Any] = {
            "max_tokens": rng.choice([1, 8, 40, 120]),
            "temperature": rng.choice([0, 0.8, 1.5]),
            "seed": rng.randrange(2**32),
            "n": rng.choice([1, 1, 1, 2]),
        }
        if rng.random() < 0.1:
            made["json_schema"] = SCHEMA
        elif rng.random() < 0.1:
            made["regex"] = "[a-z ]{5,60}"
        if rng.random() < 0.2:
            made["cache_salt"] = f"{rng.randrange(4)}"
        if rng.random() < 0.1:
            made["deadline"] = rng.random() * 0.5 + 0.01
        prompt = rng.choice(PROMPTS) + "x" * rng.randrange(40)
        if rng.random() < 0.3:
            return "/v1/chat/completions", {
                **made,
                "messages": [{"role": "user", "content": prompt}],
            }
        if rng.random() < 0.2:
            made["logprobs"] = 3
        return "/v1/completions", {**made, "prompt": prompt}

    def seen(self, status: int, what: str, answer: bytes) -> None:
        """Note an answer's status; one that must not be ends the soak."""
        self.count(f"{what}: {status}")
        if status >= 500 and status not in (501, 503):
            self.wrong(f"{what}: {status} {answer[:200]!r}")

    def whole(self, rng: random.Random) -> None:
        """An answer at once."""
        status, answer = self.ask(*self.body(rng), rng.choice(KEYS))
        self.seen(status, "whole", answer)
        if status == 429:
            time.sleep(rng.random() * 0.2)

    def stream(self, rng: random.Random) -> None:
        """A stream, to its end."""
        path, body = self.body(rng)
        status, answer = self.ask(path, {**body, "stream": True}, rng.choice(KEYS))
        self.seen(status, "stream", answer)
        if status == 200 and not answer.rstrip().endswith(b"data: [DONE]"):
            self.wrong(f"a stream ended in the middle: {answer[-200:]!r}")
        if b'"error"' in answer and status == 200:
            self.wrong(f"an error in a stream: {answer[-300:]!r}")

    def go_away(self, rng: random.Random) -> None:
        """A client that goes away somewhere."""
        path, body = self.body(rng)
        data = raw(
            path, {**body, "stream": rng.random() < 0.7, "max_tokens": 400}, rng.choice(KEYS)
        )
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall(data[: rng.choice([len(data), len(data), rng.randrange(len(data))])])
            if rng.random() < 0.7:
                connection.settimeout(0.3)
                with contextlib.suppress(TimeoutError):
                    connection.recv(rng.randint(1, 5000))
            if rng.random() < 0.3:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.count("went away")

    def fixed(self, rng: random.Random) -> None:
        """A request whose answer is known."""
        number = rng.choice(sorted(self.expected))
        status, answer = self.ask("/v1/completions", fixed_body(number), rng.choice(KEYS))
        self.seen(status, "fixed", answer)
        if status == 200 and json.loads(answer)["choices"] != self.expected[number]:
            self.wrong(f"another text: request {number}")

    def refused(self, rng: random.Random) -> None:
        """What is refused."""
        bodies: list[Any] = [
            {"prompt": "x", "temprature": 1},
            {"prompt": "x", "regex": "("},
            {"prompt": "x" * 20_000},
            [],
            {"prompt": "x", "model": "no such model"},
            {"prompt": "x", "json_schema": {"type": "integer", "multipleOf": rng.choice(TOO_MUCH)}},
        ]  # fmt: skip
        body = rng.choice(bodies)
        status, answer = self.ask("/v1/completions", body)
        self.seen(status, "refused", answer)
        if status not in (400, 404, 503):
            self.wrong(f"not refused but {status}: {json.dumps(body)[:200]}")

    def other(self, rng: random.Random) -> None:
        """Any other endpoint; where it may stream, the client may go away in the middle."""
        path = rng.choice([*ENDPOINTS, *PAGES])
        if path in PAGES:
            self.seen(*self._named(self.ask(path, None, rng.choice(KEYS), "GET"), path))
            return
        body = longer(ENDPOINTS[path], rng)
        if "stream" in body and rng.random() < 0.5:
            with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
                connection.sendall(raw(path, body, rng.choice(KEYS)))
                connection.recv(rng.randint(1, 3000))
            self.count(f"{path}: went away")
            return
        self.seen(*self._named(self.ask(path, body, rng.choice(KEYS)), path))

    def heavy(self, rng: random.Random) -> None:
        """A new grammar that takes some MiB, and more while its text is drawn."""
        schema = {"type": "integer", "multipleOf": 2 * rng.randrange(2000, 10_000) + 1}
        body = {"prompt": "x", "json_schema": schema, "max_tokens": 200, "temperature": 0}
        status, answer = self.ask("/v1/completions", body, rng.choice(KEYS))
        self.seen(status, "heavy", answer)

    def half(self, rng: random.Random) -> None:
        """Half of a request, or nothing, and then silence."""
        data = raw("/v1/completions", {"prompt": "x"}, KEYS[0])
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall(data[: rng.randrange(len(data))])
            connection.settimeout(rng.choice([0.1, PATIENCE]))
            with contextlib.suppress(TimeoutError):
                connection.recv(1000)
        self.count("half")

    def slots(self, rng: random.Random) -> None:
        """Texts in slots that are saved and restored."""
        number, key = rng.randrange(SLOTS), rng.choice(KEYS)
        body = {"prompt": rng.choice(PROMPTS), "n_predict": 8, "id_slot": number}
        self.seen(*self._named(self.ask("/completion", body, key), "slot"))
        for action in ("save", "restore", "erase"):
            path = f"/slots/{number}?action={action}"
            named = {} if action == "erase" else {"filename": f"file{number}"}
            status, answer = self.ask(path, named, key)
            self.seen(status, f"slot {action}", answer)

    @staticmethod
    def _named(told: tuple[int, bytes], name: str) -> tuple[int, str, bytes]:
        return told[0], name, told[1]

    def slow_reader(self, rng: random.Random) -> None:
        """A client that reads a little now and then, and then no more."""
        path, body = self.body(rng)
        data = raw(path, {**body, "stream": True, "max_tokens": 400, "logprobs": None}, KEYS[1])
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.sendall(data)
            for _ in range(rng.randrange(10)):
                connection.recv(100)
                time.sleep(0.05)
        self.count("slow reader")

    def wrong_key(self, rng: random.Random) -> None:
        """A key that is none."""
        status, answer = self.ask("/v1/completions", {"prompt": "x"}, f"key {rng.random()}"[:9])
        self.seen(status, "wrong key", answer)
        if status not in (401, 503):
            self.wrong(f"a wrong key: {status}")


def longer(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A body of an endpoint, with a longer text and perhaps a stream where it asks for a text."""
    n = rng.choice([16, 40, 120])
    made = {name: n if name in BOUNDED else value for name, value in body.items()}
    if "options" in made:
        made["options"] = {"num_predict": n}
    if made != body and rng.random() < 0.5:
        made["stream"] = True
    return made


def head(key: str) -> dict[str, str]:
    """Headers of a request."""
    return {"content-type": "application/json", "authorization": f"Bearer {key}"}


def raw(path: str, body: Any, key: str) -> bytes:
    """The bytes of a request."""
    data = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
    ).encode() + data


def fixed_body(number: int) -> dict[str, Any]:
    """One of the requests whose answers are known."""
    options: dict[str, Any] = (
        {} if number % 2 else {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    )
    return {
        "prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": 30, "seed": number, "logprobs": 2, **options,
    }  # fmt: skip


def figures(clients: Clients) -> dict[str, float]:
    """Figures of ``/metrics`` without labels."""
    page = clients.ask("/metrics", None, method="GET")[1].decode()
    return {n: float(v) for n, v in re.findall(r"^(aleator_\w+) ([\d.e+]+)$", page, re.MULTILINE)}


def scene(world: World) -> Generator[None, None, None]:
    """Send one wave of clients after another."""
    from tests.server.live import Process

    folder, held, began = world.folder / "slots", list[Held](), time.monotonic()
    folder.mkdir()
    words = [
        "-m", str(world.path), "--parallel", str(SLOTS), "--n-cells", str(CELLS), "--max-queue", str(QUEUE),
        "--slot-save-path", str(folder), "--client-timeout", "3", "--grammar-timeout", "2",
        "--no-log-requests", "--max-connections", "200",
    ]  # fmt: skip
    for key in KEYS:
        words += ["--api-key", key]
    noting = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        f"from attacks.memory import note_levels; note_levels({str(world.levels)!r})"
    )
    with Process(*words, prelude=noting) as server:
        clients, pid = Clients(world, server.live.port), server.process.pid
        for number in range(8):
            body = {**fixed_body(number), "cache_salt": f"{number}"}
            clients.expected[number] = json.loads(clients.ask("/v1/completions", body)[1])[
                "choices"
            ]
        try:
            for number in itertools.count():
                wave(world, clients, number)
                held.append(Held.by(pid))
                yield
        finally:
            at_the_end(world, clients, pid)
            memory(world, held, time.monotonic() - began)
            server.signal(signal.SIGTERM)
            world.check(server.end() == 0, "SIGTERM", server.process.returncode)
            check_log(world, server.err)


def wave(world: World, clients: Clients, number: int) -> None:
    """Have clients ask side by side, and wait until the server is idle."""
    threads = [
        threading.Thread(target=clients.client, args=(world.rng(number, i),))
        for i in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def idle() -> bool:
        made = figures(clients)
        return made["aleator_requests_running"] + made["aleator_requests_waiting"] == 0

    world.check(settled(idle), "requests end", "requests are still under way")


def at_the_end(world: World, clients: Clients, pid: int) -> None:
    """What is left of all that was asked."""
    made = figures(clients)
    world.check(not made["aleator_cells_reserved"], "cells given back", made)
    world.check(not made["aleator_requests_failed_total"], "no request failed", made)
    ended = sum(made[f"aleator_requests_{how}_total"] for how in ("cancelled", "expired"))
    world.figures["requests of the engine"] = (
        f"{made['aleator_requests_total']:,.0f}, {ended:,.0f} of them cut off, "
        f"{made['aleator_requests_refused_total']:,.0f} refused; "
        f"{made['aleator_generated_tokens_total']:,.0f} tokens"
    )
    world.check(settled(lambda: Held.by(pid).files <= FILES), "files closed", Held.by(pid))
    for number, expected in clients.expected.items():
        choices = json.loads(clients.ask("/v1/completions", fixed_body(number))[1])["choices"]
        world.check(choices == expected, "texts at the end", f"request {number}")


def check_log(world: World, log: str) -> None:
    """The whole log of a server has no errors and no prompts."""
    errors = [line for line in log.splitlines() if " error " in line]
    world.check(not errors, "no errors in the log", "\n".join(errors[:3]))
    said = [prompt for prompt in PROMPTS if prompt.split("\n")[0] in log]
    world.check(not said, "no prompts in the log", said)


def memory(world: World, held: list[Held], seconds: float) -> None:
    """Note how the server's memory grew; after a long time it may not any more."""
    if len(held) < 8:
        return
    half = held[len(held) // 2 :]
    quarter = max(1, len(half) // 4)
    grown = (max(x.kib for x in half[-quarter:]) - max(x.kib for x in half[:quarter])) / 1024
    world.figures["memory"] = (
        f"{held[0].kib / 1024:.0f} MiB at first, {held[-1].kib / 1024:.0f} at the end, {grown:+.1f} in the "
        "second half"
    )
    if seconds >= LONG:
        world.check(grown <= MARGIN_MIB, "memory is flat", world.figures["memory"])
