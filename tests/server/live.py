"""A server on a socket of this machine, in a thread or a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aleator.engine.engine import Engine
from aleator.language_model import LanguageModel
from aleator.server.app import create_guarded
from aleator.server.grammar_limits import Trials
from aleator.server.grammars import MAX_CONCURRENT, Grammars
from aleator.server.options import ServerOptions
from aleator.server.run import Server, bound
from aleator.server.service import Service

PATIENCE = 120.0
"""Seconds after which a test gives up waiting for what should come much sooner."""


def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> float:
    """Wait until something holds; returns the seconds that it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, "it does not come"
        time.sleep(0.005)
    return time.monotonic() - began


@dataclass
class Live:
    """A server that listens.

    Attributes:
        port: Of 127.0.0.1.
        engine: Its engine, where it is in this process.
        grammars: Its grammars, where they are in this process.
        model: Its model, where it is in this process.
    """

    port: int
    engine: Engine | None = None
    grammars: Grammars | None = None
    model: LanguageModel | None = None

    def connect(self) -> socket.socket:
        """A connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def send(self, data: bytes) -> socket.socket:
        """A connection over which something was sent."""
        made = self.connect()
        made.sendall(data)
        return made

    def answer(self, data: bytes) -> bytes:
        """All that comes back to some bytes until the server closes the connection, or cuts it off."""
        with self.send(data) as connection:
            return rest(connection)

    def post(
        self, path: str, body: Any, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer to a body."""
        return self.ask("POST", path, json.dumps(body).encode(), headers)

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(
                method, path, body, {"content-type": "application/json", **(headers or {})}
            )
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return response.status, names, response.read()
        finally:
            connection.close()


def rest(connection: socket.socket) -> bytes:
    """What still comes over a connection until its end."""
    came = b""
    try:
        while piece := connection.recv(2**16):
            came += piece
    except ConnectionError:
        pass
    return came


def request_of(body: Any, path: str = "/v1/completions", more: str = "") -> bytes:
    """The bytes of a request, which does not ask for another one on its connection."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n{more}"
    return f"{head}connection: close\r\n\r\n".encode() + data


@contextmanager
def in_thread(model: LanguageModel, *, engine: dict[str, Any], **options: Any) -> Iterator[Live]:
    """A server in this process."""
    chosen = ServerOptions(**{"port": 0, "log_requests": False, **options})
    listening = bound(chosen)
    with listening, Engine(model, **engine) as made:
        service = Service(model, made, chosen)
        path = str(model.weights.path)
        service.grammars.trials = [
            Trials(path, chosen.grammar_timeout) for _ in range(MAX_CONCURRENT)
        ]
        listens = threading.Event()
        server = Server(create_guarded(service), chosen, listens.set, service.cut)
        thread = threading.Thread(target=lambda: server.run(sockets=[listening]), daemon=True)
        thread.start()
        assert listens.wait(PATIENCE)
        try:
            yield Live(listening.getsockname()[1], made, service.grammars, model)
        finally:
            server.end()
            thread.join(PATIENCE)
            service.grammars.close()
            assert not thread.is_alive()


class Process:
    """``aleator serve`` in a process of its own.

    Args:
        words: More of the command line.
        prelude: Python that runs before it.

    Attributes:
        live: Where it listens.
        process: The process.
        err: What it has written to standard error.
    """

    def __init__(self, *words: str, prelude: str = "") -> None:
        program = f"{prelude}\nimport sys; from aleator.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", program, "serve", "--port", "0", "-t", "1"]
        self.process = subprocess.Popen(
            [*command, "--no-cache-disk", *words],
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.err = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        until(lambda: "\ncurl " in self.err or self.process.poll() is not None)
        found = re.search(r"listening on https?://[^:]*:(\d+)", self.err)
        self.live = Live(int(found[1]) if found else 0)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.err += line.decode()

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for its end; returns its exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *raised: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        if self.process.stderr is not None:
            self.process.stderr.close()
