"""Keeps a server at its limit while faults are injected, and looks at what is left.

    python tools/server_soak.py [--seconds 1800] [--clients 24] [--seed 1] [--out FILE.md]

``aleator serve`` runs in a process of its own, with few slots, a short queue, keys and a slot directory.
Clients ask it all it can do: streams and whole answers, completions and chats, n, grammars, log-
probabilities, slots. Some go away in the middle, send half of a request, send nothing, ask for what is
refused, bring a wrong key, or read slowly. One of some fixed requests in between must have the text and the
log-probabilities that it had alone.

At the end: no answer had a status of 500 or more but 503; all requests have ended; the server's memory is
flat in the second half; few files and connections are open; SIGTERM ends it with exit code 0; its log has no
error and no prompt. Prints figures and a verdict; exit code 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEYS = ("first-key", "second-key")
SLOTS, QUEUE, CELLS = 6, 6, 3072
MARGIN_MIB = 24.0
"""That memory may grow by in the second half: what allocators keep."""
PATIENCE = 120.0
PROMPTS = ("ROMEO:", "JULIET:\nWhat", "First Citizen:\nHear me speak.\n" * 6, "KING RICHARD:\n")
TOO_MUCH = (1000003, 1000033, 1000037, 1000039, 1000081, 1000099)
"""Multiples of numbers that are larger than a schema may have."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}}


@dataclass
class Soak:
    """Clients of a server.

    Attributes:
        port: Of 127.0.0.1.
        expected: Answers of fixed requests, alone.
        counts: What happened.
        wrong: What must not have.
    """

    port: int
    expected: dict[int, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, name: str) -> None:
        """Count something that happened."""
        with self._lock:
            self.counts[name] += 1

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

    def client(self, seed: str, end: float) -> None:
        """Ask until the time is over."""
        rng = random.Random(seed)
        ways: list[tuple[Callable[[random.Random], None], int]] = [
            (self.whole, 30), (self.stream, 30), (self.go_away, 15), (self.fixed, 10), (self.refused, 5),
            (self.heavy, 2), (self.half, 4), (self.slots, 4), (self.slow_reader, 2), (self.wrong_key, 2),
        ]  # fmt: skip
        names, weights = [way for way, _ in ways], [weight for _, weight in ways]
        while time.monotonic() < end and not self.wrong:
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
        if status >= 500 and status != 503:
            self.wrong.append(f"{what}: {status} {answer[:200]!r}")

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
            self.wrong.append(f"a stream ended in the middle: {answer[-200:]!r}")
        if b'"error"' in answer and status == 200:
            self.wrong.append(f"an error in a stream: {answer[-300:]!r}")

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
            self.wrong.append(f"another text: request {number}")

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
            self.wrong.append(f"not refused but {status}: {json.dumps(body)[:200]}")

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
            self.wrong.append(f"a wrong key: {status}")


def head(key: str) -> dict[str, str]:
    """Headers of a request."""
    return {"content-type": "application/json", "authorization": f"Bearer {key}"}


def raw(path: str, body: Any, key: str) -> bytes:
    """The bytes of a request."""
    data = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    ).encode() + data


def fixed_body(number: int) -> dict[str, Any]:
    """One of the requests whose answers are known."""
    options: dict[str, Any] = (
        {} if number % 2 else {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    )
    return {
        "prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": 30, "seed": number, "logprobs": 2, **options,
    }  # fmt: skip


@dataclass(frozen=True)
class Held:
    """What a process holds.

    Attributes:
        mib: Memory.
        files: Open files and connections.
        threads: Threads.
    """

    mib: float
    files: int
    threads: int

    @classmethod
    def by(cls, pid: int) -> Held:
        """What a process holds now."""
        status = Path(f"/proc/{pid}/status").read_text()
        found = {n: int(v) for n, v in re.findall(r"(VmRSS|Threads):\s*(\d+)", status)}
        return cls(found["VmRSS"] / 1024, len(os.listdir(f"/proc/{pid}/fd")), found["Threads"])


def figures(soak: Soak) -> dict[str, float]:
    """Figures of ``/metrics`` without labels."""
    page = soak.ask("/metrics", None, method="GET")[1].decode()
    return {n: float(v) for n, v in re.findall(r"^(aleator_\w+) ([\d.e+]+)$", page, re.MULTILINE)}


def settled(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait for something; returns whether it came."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def start(folder: str) -> tuple[subprocess.Popen[bytes], int, Path]:
    """A server; returns its process, its port and its log."""
    program = "import sys; from aleator.cli import main; sys.exit(main())"
    log = Path(folder) / "log"
    words = [
        "serve", "--port", "0", "-t", "1", "--parallel", str(SLOTS), "--n-cells", str(CELLS),
        "--max-queue", str(QUEUE),
        "--slot-save-path", folder, "--client-timeout", "3", "--grammar-timeout", "2", "--no-log-requests",
        "--max-connections", "200",
    ]  # fmt: skip
    for key in KEYS:
        words += ["--api-key", key]
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", program, *words], stderr=out)
    if not settled(lambda: b"\ncurl " in log.read_bytes() or process.poll() is not None, 120):
        raise SystemExit("the server did not begin")
    found = re.search(r"listening on http://[^:]*:(\d+)", log.read_text())
    if found is None:
        raise SystemExit(f"the server did not begin:\n{log.read_text()}")
    return process, int(found[1]), log


def run(seconds: float, clients: int, seed: int) -> tuple[Soak, list[str]]:
    """Soak a server; returns what happened, and figures in words."""
    told: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        process, port, log = start(folder)
        soak = Soak(port)
        try:
            _soak(soak, process.pid, seconds, clients, seed, told)
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            code = process.wait(60)
            told.append(f"SIGTERM: exit code {code} after {time.monotonic() - began:.1f} s")
            if code:
                soak.wrong.append(f"exit code {code}")
        finally:
            process.kill()
            process.wait()
        lines = log.read_text().splitlines()
        errors = [line for line in lines if " error " in line]
        if errors:
            soak.wrong.append(f"the log has {len(errors)} errors: {errors[0]}")
        if any(prompt.split("\n")[0] in line for prompt in PROMPTS for line in lines):
            soak.wrong.append("the log has a prompt")
    return soak, told


def _soak(soak: Soak, pid: int, seconds: float, clients: int, seed: int, told: list[str]) -> None:
    for number in range(8):
        soak.expected[number] = json.loads(
            soak.ask("/v1/completions", {**fixed_body(number), "cache_salt": f"{number}"})[1]
        )["choices"]
    held: list[Held] = []
    end = time.monotonic() + seconds
    threads = [
        threading.Thread(target=soak.client, args=(f"{seed} {i}", end)) for i in range(clients)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(min(5.0, seconds / 20))
        held.append(Held.by(pid))
    for thread in threads:
        thread.join()

    def idle() -> bool:
        made = figures(soak)
        return made["aleator_requests_running"] + made["aleator_requests_waiting"] == 0

    if not settled(idle, 20):
        soak.wrong.append(f"requests are still under way: {figures(soak)}")
    made = figures(soak)
    if made["aleator_cells_reserved"]:
        soak.wrong.append(f"{made['aleator_cells_reserved']:.0f} cells are still reserved")
    ended = sum(made[f"aleator_requests_{how}_total"] for how in ("cancelled", "expired", "failed"))
    told.append(
        f"{made['aleator_requests_total']:,.0f} requests of the engine, {ended:,.0f} of them cut off, "
        f"{made['aleator_requests_refused_total']:,.0f} refused; "
        f"{made['aleator_generated_tokens_total']:,.0f} tokens"
    )
    if made["aleator_requests_failed_total"]:
        soak.wrong.append(f"{made['aleator_requests_failed_total']:.0f} requests failed")
    settled(lambda: Held.by(pid).files <= 40, 10)
    last = Held.by(pid)
    half = held[len(held) // 2 :]
    quarter = max(1, len(half) // 4)
    grown = max(x.mib for x in half[-quarter:]) - max(x.mib for x in half[:quarter])
    told.append(
        f"memory: {held[0].mib:.0f} MiB after a moment, {half[0].mib:.0f} in the middle, {last.mib:.0f} at the "
        f"end, {grown:+.1f} in the second half; files {last.files}, threads {last.threads}"
    )
    if grown > MARGIN_MIB:
        soak.wrong.append(f"memory grew by {grown:.0f} MiB in the second half")
    if last.files > 40:
        soak.wrong.append(f"{last.files} files and connections are open")
    for number, expected in soak.expected.items():
        if json.loads(soak.ask("/v1/completions", fixed_body(number))[1])["choices"] != expected:
            soak.wrong.append(f"another text at the end: request {number}")


def main() -> int:
    """Soak, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    soak, told = run(args.seconds, args.clients, args.seed)
    lines = [
        f"# Soak of the server, {time.strftime('%Y-%m-%d', time.gmtime())}",
        "",
        f"`python tools/server_soak.py --seconds {args.seconds:g} --clients {args.clients} --seed "
        f"{args.seed}`: {SLOTS} slots, a queue of {QUEUE}, the bundled model.",
        "",
        *(f"- {line}" for line in told),
        "",
        "| what | how often |",
        "|---|---:|",
        *(f"| {name} | {n:,} |" for name, n in sorted(soak.counts.items())),
        "",
        *(f"WRONG: {each}" for each in soak.wrong),
        "Verdict: " + ("wrong" if soak.wrong else "nothing is wrong, nothing is left"),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out is not None:
        args.out.write_text(text)
    return bool(soak.wrong)


if __name__ == "__main__":
    sys.exit(main())
