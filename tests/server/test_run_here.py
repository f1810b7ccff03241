"""What a server's process does at its beginning and its end, in this process."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aleator.core.errors import ParameterError
from aleator.server import run
from aleator.server.auth import Gate
from aleator.server.options import ServerOptions
from aleator.server.run import Server, address, allow_files, bound
from aleator.server.telemetry import LOGGER, Lines
from tests.server.live import PATIENCE
from tests.server.test_limits import Sender, answer, echo


class Guards:
    """An application with its gate, as a server takes them."""

    def __init__(self) -> None:
        self.gate = self.app = Gate(echo, answer)


@pytest.fixture
def loggers() -> Iterator[list[str]]:
    """The lines that the server's loggers write; they are put back at the end."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(Lines("text").format(record))

    ours = [logging.getLogger(name) for name in (LOGGER, "uvicorn.error")]
    before = [(each, each.handlers, each.level, each.propagate) for each in ours]
    ours[0].handlers = [*ours[0].handlers, Kept()]
    yield lines
    for each, handlers, level, propagate in before:
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


def test_a_port_that_is_not_for_users_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **more: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(ParameterError, match="may not listen there: give a port of 1024 or more"):
        bound(ServerOptions(port=80))


def test_addresses_are_told_as_clients_need_them(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        for options, shown in (
            (ServerOptions(), f"http://127.0.0.1:{port}"),
            (ServerOptions(ssl_certfile="x"), f"https://127.0.0.1:{port}"),
            (ServerOptions(uds=str(tmp_path / "s")), f"unix:{tmp_path}/s"),
        ):
            assert address(options, listening) == shown


@pytest.mark.parametrize(
    ("soft", "hard", "most", "raised", "fit"),
    [
        (256, 4096, 1000, (1128, 4096), 1000),
        (256, 512, 1000, (512, 512), 384),
        (256, resource.RLIM_INFINITY, 1000, (1128, resource.RLIM_INFINITY), 1000),
        (4096, 4096, 1000, None, 1000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 10**6, None, 10**6),
        (100, 100, 1000, (100, 100), 1),
    ],
)
def test_files_for_all_connections_are_allowed(
    soft: int, hard: int, most: int, raised: Any, fit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    assert allow_files(most) == fit
    assert asked == ([] if raised is None else [raised])


def server(guards: Any, cut: Callable[[], None] = lambda: None, **options: Any) -> Server:
    return Server(guards, ServerOptions(**options), lambda: None, cut)


async def ended(each: Server) -> None:
    async with asyncio.timeout(PATIENCE):
        while not each.should_exit:
            await asyncio.sleep(0)


def test_a_first_signal_drains_and_leaves_no_handler_behind(loggers: list[str]) -> None:
    async def ask() -> None:
        guards, late = Guards(), Sender()
        each = server(guards)
        with each.capture_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            await ended(each)
        assert guards.gate.draining
        await guards.app(late.scope, late.receive, late.send)
        assert late.status == 503

    before = [signal.getsignal(number) for number in run.HANDLED]
    asyncio.run(ask())
    assert [signal.getsignal(number) for number in run.HANDLED] == before
    assert [line.split()[2:4] for line in loggers] == [["draining", "signal=SIGTERM"]]


def test_requests_that_outlast_a_drain_are_cut(loggers: list[str]) -> None:
    async def ask() -> None:
        guards, cut = Guards(), asyncio.Event()
        guards.gate.running = 1
        guards.gate._idle.clear()
        each = server(guards, cut.set, drain_timeout=0.001)
        each._signalled(signal.SIGINT)
        await cut.wait()
        guards.gate._idle.set()
        await ended(each)

    asyncio.run(ask())
    assert [line.split(" ", 2)[2].split()[0] for line in loggers] == ["draining", "requests"]


def test_a_second_signal_ends_the_process_at_once(
    loggers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    path = tmp_path / "socket"
    path.touch()

    async def ask() -> None:
        guards = Guards()
        guards.gate._idle.clear()
        each = server(guards, uds=str(path))
        each._signalled(signal.SIGINT)
        assert path.exists()
        with monkeypatch.context() as patch:  # the loop itself needs them at its end
            patch.setattr(signal, "signal", lambda *given: done.append(given))
            patch.setattr(os, "kill", lambda *given: done.append(given))
            each._signalled(signal.SIGTERM)
        for task in each._tasks:
            task.cancel()

    asyncio.run(ask())
    assert done == [(signal.SIGTERM, signal.SIG_DFL), (os.getpid(), signal.SIGTERM)]
    assert not path.exists()
    assert "ended at once" in loggers[-1]


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "api_key": ["a-key"]}, False),
        ({"host": "127.0.0.1"}, False),
        ({"uds": "socket"}, False),
    ],
)
def test_who_lets_in_everybody_is_warned(
    options: dict[str, Any],
    warned: bool,
    loggers: list[str],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Server, "run", lambda self, sockets: None)
    made = ServerOptions.of({"port": 0, **options})
    listening = bound(made)
    run._serve(Guards(), made, listening, lambda: None, lambda: None)  # type: ignore[arg-type]
    assert ("open to the network without a key" in capfd.readouterr().err) == warned
    assert listening.fileno() == -1
    assert list(tmp_path.iterdir()) == []
