from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from aleator.language_model import LanguageModel
from aleator.server.connections import Connection, ConnectionLimits, Connections
from tests.server.live import Live, in_thread, request_of, rest, until

LONG = {"prompt": "ROMEO:", "max_tokens": 1000, "seed": 1, "ignore_eos": True, "n": 4}


class Wire(asyncio.Transport):
    """A transport to nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(1000)


async def test_connections_that_keep_the_server_waiting_are_ended() -> None:
    clock = Clock()
    limits = ConnectionLimits(most=2, head_seconds=5, head_bytes=1000, stall_seconds=8)
    connections = Connections(limits, clock)
    config = uvicorn.Config(nothing, http=connections.protocol(), log_config=None)
    state = ServerState()

    def connect() -> tuple[asyncio.Protocol, Wire]:
        made = connections.protocol()(config, state, {})  # type: ignore[call-arg]
        wire = Wire()
        made.connection_made(wire)
        return made, wire

    silent, silent_wire = connect()
    slow, slow_wire = connect()
    slow.data_received(b"POST /x HTTP/1.1\r\nhost: x\r\n")
    _, third = connect()
    assert third.written.startswith(b"HTTP/1.1 503 ")
    assert third.closing
    clock.now += 4
    slow.data_received(b"content-length: 4\r\n\r\n")  # its head is complete
    assert connections.sweep() == 0
    clock.now += 2
    assert connections.sweep() == 1
    assert silent_wire.aborted
    silent.connection_lost(None)
    assert len(connections.live) == 1

    slow.pause_writing()
    clock.now += 7
    slow.resume_writing()
    slow.pause_writing()
    clock.now += 7
    assert connections.sweep() == 0
    clock.now += 2
    assert connections.sweep() == 1
    assert slow_wire.aborted
    slow.connection_lost(None)

    ending, ending_wire = connect()
    ending.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    ending_wire.closing = True  # and what is in its buffer stays there
    assert connections.sweep() == 0
    clock.now += 9
    assert connections.sweep() == 1
    ending.connection_lost(None)

    long, long_wire = connect()
    long.data_received(b"GET / HTTP/1.1\r\n")
    for _ in range(20):
        long.data_received(b"x-filler: " + b"x" * 50 + b"\r\n")
    assert b"431 Request Header Fields Too Large" in long_wire.written
    assert long_wire.closing
    assert isinstance(long, Connection)
    for task in state.tasks:
        task.cancel()


@pytest.fixture(scope="module")
def live(model: LanguageModel) -> Iterator[Live]:
    options = {"n_seq_max": 2, "max_queue": 2}
    with in_thread(model, engine=options, client_timeout=0.5, max_connections=40) as made:
        yield made


def running(live: Live) -> int:
    assert live.engine is not None
    stats = live.engine.stats
    return stats.running + stats.waiting


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_frees_its_slots_within_a_second(live: Live, stream: bool) -> None:
    connection = live.send(request_of({**LONG, "stream": stream}))
    until(lambda: running(live) == 4)  # two are made, two wait
    connection.close()
    assert until(lambda: running(live) == 0) < 1


def test_a_client_that_sends_no_more_is_gone(live: Live) -> None:
    """As at llama-server: nothing tells it from one that has closed; but what is known at once is sent."""
    with live.send(request_of({**LONG, "stream": True})) as connection:
        until(lambda: running(live) == 4)
        connection.shutdown(socket.SHUT_WR)
        assert until(lambda: running(live) == 0) < 1
    with live.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n") as other:
        other.shutdown(socket.SHUT_WR)
        assert b'{"status":"ok"}' in rest(other)


def test_a_client_that_resets_frees_its_slots(live: Live) -> None:
    connection = live.send(request_of({**LONG, "stream": True}))
    connection.recv(10)
    connection.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER: a reset
    connection.close()
    assert until(lambda: running(live) == 0) < 1


def test_half_a_body_is_not_waited_for(live: Live) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n"
    answer = live.answer(head + b'{"prompt": ')
    assert b" 408 " in answer.split(b"\r\n")[0]
    assert running(live) == 0


def test_too_many_connections_do_not_keep_others_out_for_long(live: Live) -> None:
    idle = [live.connect() for _ in range(60)]

    def served() -> bool:
        try:
            return live.ask("GET", "/health")[0] == 200
        except ConnectionError:  # turned away
            return False

    until(served)
    for each in idle:
        each.close()
