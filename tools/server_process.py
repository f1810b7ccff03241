"""A server in its own process: ``aleator serve``, or the one that it is compared with."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Self

PROGRAM = str(Path(sys.executable).with_name("aleator"))
"""This environment's command."""


class ServerProcess:
    """Starts a server; as a context manager it waits until the server answers, and ends it.

    Args:
        name: The server's name.
        command: Starts it; "{port}" stands for its port.
        log: The file for its output.
        environment: Variables besides those of this process.

    Attributes:
        name: The server's name.
        port: A port that was free.
        process: The process.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, **environment: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.name, self._log = name, log
        words = [word.replace("{port}", str(self.port)) for word in command]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                words, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment}
            )

    def url(self, path: str = "") -> str:
        """The URL of a path."""
        return f"http://127.0.0.1:{self.port}{path}"

    def wait(self, seconds: float = 180) -> None:
        """Wait until it answers."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(self.url("/health"), timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
        tail = self._log.read_text(errors="replace")[-2000:]
        raise SystemExit(f"{self.name} does not answer; the end of its log:\n{tail}")

    def end(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        try:
            self.wait()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()
