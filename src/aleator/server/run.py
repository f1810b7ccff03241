"""The process that serves: its socket, and the server on it until it is told to end."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from aleator.core.errors import ParameterError
from aleator.server.app import create_app
from aleator.server.options import ServerOptions
from aleator.server.service import Service

DRAIN = 30
"""Seconds that requests under way have to come to their end, once the server was told to stop."""


def bound(options: ServerOptions) -> socket.socket:
    """A socket that listens where the options say.

    Raises:
        ParameterError: Nothing can listen there; says why.
    """
    if options.uds is not None:
        return _unix_socket(options.uds)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family, backlog=2048)
    except OSError as error:
        raise ParameterError(
            "port",
            f"--host {options.host} --port {options.port}: nothing can listen there: {error.strerror or error}",
        ) from None


def _unix_socket(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(path)
        os.chmod(path, 0o600)  # for this user alone
        made.listen(2048)
    except OSError as error:
        made.close()
        raise ParameterError(
            "uds", f"--uds {path}: nothing can listen there: {error.strerror or error}"
        ) from None
    return made


def address(options: ServerOptions, listening: socket.socket) -> str:
    """Where a server is found, as a URL."""
    if options.uds is not None:
        return f"unix:{options.uds}"
    scheme = "http" if options.ssl_certfile is None else "https"
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"


class Server(uvicorn.Server):
    """A server that says when it listens.

    Args:
        config: Of uvicorn.
        listens: Called once it does.
    """

    def __init__(self, config: uvicorn.Config, listens: Callable[[], None]) -> None:
        super().__init__(config)
        self._listens = listens

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if self.started:
            self._listens()


def serve(service: Service, listening: socket.socket, listens: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; requests under way may come to their end.

    Args:
        service: Makes the texts.
        listening: A socket of :func:`bound`.
        listens: Called once requests are taken.
    """
    options = service.options
    config = uvicorn.Config(
        create_app(service),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        timeout_graceful_shutdown=DRAIN,
        ssl_keyfile=options.ssl_keyfile,
        ssl_certfile=options.ssl_certfile,
    )
    try:
        with _ends_in_order():
            Server(config, listens).run(sockets=[listening])
    finally:
        listening.close()
        if options.uds is not None:
            os.unlink(options.uds)


@contextmanager
def _ends_in_order() -> Iterator[None]:
    """Go on after the server's end: uvicorn raises the signal that ended it once more, which would end all."""
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, lambda number, frame: None) for each in signals]
    try:
        yield
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)
