"""The serving process: sockets, signals, and a shutdown that lets running requests finish."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import uvicorn

from aleator.core.errors import ParameterError
from aleator.server.app import GuardedApp, create_guarded
from aleator.server.auth import KeyRing, is_loopback
from aleator.server.connections import ConnectionLimits, Connections
from aleator.server.options import ServerOptions
from aleator.server.pool import Pool
from aleator.server.router import create_router
from aleator.server.service import Service
from aleator.server.telemetry import Metrics, configure, event

SPARE_FILES = 128
"""Open files other than connections: the model, the log, saved slots."""
TICK_SECONDS = 1.0
"""Interval at which connections are checked, and the date of responses is set."""
BACKLOG = 2048
KEEP_ALIVE_SECONDS = 75
"""Seconds that a connection may be idle between requests; more than most clients and proxies allow."""
CUT_SECONDS = 1.0
"""Seconds for sending the answers of requests that are cut off."""
HANDLED = (signal.SIGINT, signal.SIGTERM)


def bound(options: ServerOptions) -> socket.socket:
    """A socket that listens as the options say; other wrong options are refused too."""
    KeyRing.of(options.api_key, options.api_key_file)
    _check_certificate(options)
    if options.uds is not None:
        return _unix_socket(options.uds)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    shown = f"--host {options.host} --port {options.port}"
    try:
        return socket.create_server((options.host, options.port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = "another program listens there: give another port, or 0 for any that is free"
        elif error.errno == errno.EACCES:
            why = "this user may not listen there: give a port of 1024 or more"
        else:
            why = f"nothing can listen there: {error.strerror or error}"
        raise ParameterError("port", f"{shown}: {why}") from None


def _unix_socket(path: str) -> socket.socket:
    """A socket for this user alone; it replaces one that nothing listens on any more."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.lexists(path):
            _remove_stale_socket(Path(path))
        before = os.umask(0o177)
        try:
            made.bind(path)
        finally:
            os.umask(before)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise ParameterError(
            "uds", f"--uds {path}: nothing can listen there: {error.strerror or error}"
        ) from None
    except BaseException:
        made.close()
        raise
    return made


def _remove_stale_socket(path: Path) -> None:
    """Remove a socket that nothing listens on; ParameterError for anything else."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise ParameterError("uds", f"--uds {path}: a file is there already: give another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        try:
            other.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise ParameterError("uds", f"--uds {path}: another program listens there: give another path")


def _check_certificate(options: ServerOptions) -> None:
    """Check that certificate and key can be used; ParameterError names the option."""
    certificate, key = options.ssl_certfile, options.ssl_keyfile
    if certificate is None:
        if key is not None:
            raise ParameterError("ssl_keyfile", f"--ssl-keyfile {key} needs --ssl-certfile FILE")
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:  # includes ssl's errors
        why = error.strerror if not isinstance(error, ssl.SSLError) else None
        raise ParameterError(
            "ssl_certfile",
            f"--ssl-certfile {certificate}, --ssl-keyfile {key or 'in the same file'}: "
            f"{why or 'not a certificate and its key in PEM form'}",
        ) from None


def address(options: ServerOptions, listening: socket.socket) -> str:
    """The URL of a server."""
    if options.uds is not None:
        return f"unix:{options.uds}"
    scheme = "http" if options.ssl_certfile is None else "https"
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"


def allow_files(most: int) -> int:
    """Allow the process to open files for ``most`` connections; return how many fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return most if soft == resource.RLIM_INFINITY else max(1, min(most, soft - SPARE_FILES))


class Server(uvicorn.Server):
    """A server that reports when it listens, and ends in two steps.

    At the first signal it refuses new requests, and running ones may finish; it still accepts connections, to
    answer that clients should retry.  At the second signal the process ends.
    """

    def __init__(
        self,
        guarded: GuardedApp,
        options: ServerOptions,
        listens: Callable[[], None],
        cut: Callable[[], None],
    ) -> None:
        limits = ConnectionLimits(
            most=allow_files(options.max_connections),
            head_seconds=options.client_timeout,
            stall_seconds=options.client_timeout,
        )
        self._watched = Connections(limits)
        super().__init__(
            uvicorn.Config(
                guarded.app,
                loop="asyncio",  # its transports are watched; "auto" uses uvloop's if installed
                http=self._watched.protocol(),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=2,
                backlog=BACKLOG,
                ssl_keyfile=options.ssl_keyfile,
                ssl_certfile=options.ssl_certfile,
            )
        )
        self._gate, self._options = guarded.gate, options
        self._listens, self._cut = listens, cut
        self._signals = 0
        self._over = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening."""
        await super().startup(sockets)
        if self.started:
            self._loop = asyncio.get_running_loop()
            self._listens()

    async def main_loop(self) -> None:
        """Wait for the end; uvicorn's own loop wakes an idle server ten times a second."""
        while not await self.on_tick(0):  # this sets the date
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), TICK_SECONDS)
            ended = self._watched.sweep()
            if ended:
                event("connections ended", logging.WARNING, number=ended)

    def end(self) -> None:
        """Have it end; may be called in any thread, also before it listens and after its end."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._over.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End; running requests that were not drained are told so."""
        self._cut()
        await super().shutdown(sockets)
        for task in self._tasks:
            task.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals in this class while it serves, if this thread receives them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in HANDLED:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            for number in HANDLED:
                loop.remove_signal_handler(number)

    def _signalled(self, number: int) -> None:
        self._signals += 1
        name = signal.Signals(number).name
        if self._signals == 1:
            event(
                "draining",
                logging.WARNING,
                signal=name,
                running=self._gate.running,
                seconds=self._options.drain_timeout,
            )
            self._tasks.append(asyncio.create_task(self.drain()))
            return
        # Immediately: nothing here waits for a thread, a client or a disk.
        event("ended at once", logging.WARNING, signal=name, running=self._gate.running)
        unlink(self._options)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    async def drain(self) -> None:
        """Refuse new requests, wait for running ones, and end."""
        self._gate.draining = True
        if not await self._gate.idle(self._options.drain_timeout):
            event("requests cut off", logging.WARNING, running=self._gate.running)
            self._cut()
            await self._gate.idle(CUT_SECONDS)
        self.end()


def unlink(options: ServerOptions) -> None:
    """Remove a unix socket."""
    if options.uds is not None:
        Path(options.uds).unlink(missing_ok=True)


def serve(
    service: Service,  # generates the texts
    listening: socket.socket,  # a socket of :func:`bound`
    listens: Callable[[], None],  # called once requests are accepted
    # shown by ``/metrics``, and given ended requests by the engine; None: made here, without those
    metrics: Metrics | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; running requests may finish."""
    try:
        service.begin()
        app = create_guarded(service, metrics)
        _serve(app, service.options, listening, listens, service.cut)
    finally:
        service.grammars.close()


def serve_models(
    pool: Pool, metrics: Metrics, listening: socket.socket, listens: Callable[[], None]
) -> None:
    """Serve several models; otherwise as :func:`serve`."""

    def begin() -> None:
        pool.begin()
        listens()

    try:
        _serve(create_router(pool, metrics), pool.options, listening, begin, pool.cut)
    finally:
        pool.close()


def _serve(
    guarded: GuardedApp,
    options: ServerOptions,
    listening: socket.socket,
    listens: Callable[[], None],
    cut: Callable[[], None],
) -> None:
    configure(options.log_format)
    if (
        options.uds is None
        and not is_loopback(options.host)
        and not len(KeyRing.of(options.api_key, options.api_key_file))
    ):
        event("open to the network without a key", logging.WARNING, host=options.host)
    try:
        Server(guarded, options, listens, cut).run(sockets=[listening])
    finally:
        listening.close()
        unlink(options)
