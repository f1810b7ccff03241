"""Streams: clients that go away free their places, errors in the middle are told, idle ones are kept alive."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request

import aleator
from aleator.server import streaming
from aleator.server.streaming import WIRE, EventStream, Line, Wire, merged, unless_gone
from aleator.server.telemetry import Requests
from tests.server.conftest import Client

LONG = {"prompt": "ROMEO:", "max_tokens": 900, "min_tokens": 900, "context_shift": True}


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something holds, which it must within some seconds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.fixture(scope="module")
def address(model: aleator.LanguageModel) -> Iterator[tuple[str, int, aleator.Engine]]:
    """A server on a socket, and its engine."""
    engine = model.engine(n_seq_max=2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = Client(model, engine).app
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        until(lambda: server.started)
        yield (*listening.getsockname(), engine)
        engine.close()
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def asked(address: tuple[str, int, aleator.Engine], path: str, **body: Any) -> socket.socket:
    """A connection on which a request was sent."""
    data = json.dumps(body).encode()
    made = socket.create_connection(address[:2], timeout=20)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    made.sendall(head.encode() + data)
    return made


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_place(
    address: tuple[str, int, aleator.Engine], stream: bool
) -> None:
    engine = address[2]
    cancelled = engine.stats.cancelled
    made = asked(address, "/v1/completions", **LONG, n=2, stream=stream)
    until(lambda: engine.stats.running == 2)
    if stream:
        assert b"200 OK" in made.recv(1000)
    made.close()
    until(lambda: engine.stats.running == 0)
    assert engine.stats.cancelled == cancelled + 2


def test_a_chat_whose_client_goes_away(address: tuple[str, int, aleator.Engine]) -> None:
    engine = address[2]
    body = {**LONG, "messages": [{"role": "user", "content": "Speak."}], "banned_strings": ["\n"]}
    del body["prompt"]  # the template ends an answer with an empty line
    made = asked(address, "/v1/chat/completions", **body, stream=True)
    until(lambda: engine.stats.running == 1)
    made.close()
    until(lambda: engine.stats.running == 0)


def test_a_client_that_goes_away_while_it_waits(address: tuple[str, int, aleator.Engine]) -> None:
    engine = address[2]
    running = [engine.submit("ROMEO:", max_tokens=900, context_shift=True) for _ in range(2)]
    made = asked(address, "/v1/completions", **LONG, stream=True)
    until(lambda: engine.stats.waiting == 1)
    made.close()
    until(lambda: engine.stats.waiting == 0)
    for each in running:
        assert not each.done or each.stop_reason == "length"
        each.cancel()


async def sent(stream: EventStream, gone: asyncio.Event | None = None) -> list[dict[str, Any]]:
    """The messages of a response."""
    messages: list[Any] = []

    async def receive() -> dict[str, Any]:
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        messages.append(message)

    await stream({"type": "http"}, receive, send)
    return messages


async def test_an_error_in_the_middle_is_told() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"one"
        raise RuntimeError("two")

    ended: list[str] = []
    stream = EventStream(chunks(), lambda: ended.append("gone"), lambda e: str(e).encode())
    messages = await sent(stream)
    assert [each.get("body") for each in messages] == [None, b"one", b"two", b""]
    assert not ended


async def test_idle_streams_are_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE", 0.001)
    commented = asyncio.Event()
    gone = asyncio.Event()
    messages: list[Any] = []

    async def chunks() -> AsyncGenerator[bytes, None]:
        await commented.wait()
        yield b"one"

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {}

    async def send(message: Any) -> None:
        messages.append(message)
        if b"waiting" in message.get("body", b""):
            commented.set()

    await EventStream(chunks(), gone.set, lambda e: b"")({"type": "http"}, receive, send)
    bodies = [each.get("body") for each in messages]
    assert b": waiting\n\n" in bodies
    assert bodies[-2:] == [b"one", b""]


async def test_a_stream_whose_client_is_gone_ends() -> None:
    gone, freed = asyncio.Event(), asyncio.Event()
    closed = False

    async def chunks() -> AsyncGenerator[bytes, None]:
        nonlocal closed
        try:
            yield b"one"
            gone.set()
            await asyncio.Event().wait()
        finally:
            closed = True

    messages = await sent(EventStream(chunks(), freed.set, lambda e: b""), gone)
    assert freed.is_set()
    assert closed
    assert messages[-1]["body"] == b"one"


async def test_a_client_that_takes_no_more() -> None:
    freed = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        while True:
            yield b"one"

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        if "body" in message:
            raise OSError("broken pipe")

    await EventStream(chunks(), freed.set, lambda e: b"")({"type": "http"}, receive, send)
    assert freed.is_set()


def test_pieces_pass_what_looks_at_the_beginning_only() -> None:
    sent: list[tuple[str, int]] = []

    async def chunks() -> AsyncGenerator[bytes, None]:
        for _ in range(5):
            yield b"x"

    async def send(message: Any) -> None:
        sent.append((message["type"], len(message.get("body", b""))))

    passed: list[str] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def through(message: Any) -> None:
            passed.append(message["type"])
            await send(message)

        stream = EventStream(chunks(), lambda: None, lambda error: b"")
        await stream(scope, receive, through)

    seen: list[tuple[str, int]] = []
    logged = Requests(app, {None: "x"}, lambda *each: seen.append((each[1], each[2])), False)
    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    asyncio.run(logged(scope, receive, send))
    assert [n for kind, n in sent if kind == "http.response.body"] == [1] * 5 + [0]
    assert passed == ["http.response.start", "http.response.body"]  # the beginning, and the end
    assert seen == [("x", 200)]


async def test_merged() -> None:
    async def numbers(first: int, fails: bool = False) -> AsyncIterator[int]:
        for i in range(3):
            await asyncio.sleep(0)
            yield first + i
        if fails:
            raise RuntimeError("enough")

    made = [each async for each in merged([numbers(0), numbers(10), numbers(20)])]
    assert sorted(made) == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert [x for x in made if x >= 20] == [20, 21, 22]
    with pytest.raises(RuntimeError, match="enough"):
        async for _ in merged([numbers(0), numbers(10, fails=True)]):
            pass


class Noting(Wire):
    """A wire that notes what it is asked for; ``sends``: another thread sends whenever it is looked at."""

    def __init__(self, is_ready: bool, sends: bool) -> None:
        super().__init__()
        self.is_ready, self.sends, self.looks = is_ready, sends, 0
        self.noted: list[bytes] = []

    def ready(self) -> bool:
        self.looks += 1
        self.sent += self.sends
        return self.is_ready

    def flush(self) -> None:
        self.noted.append(b"flushed")

    def send(self, body: bytes) -> bool:
        self.noted.append(body)
        return True


@pytest.mark.parametrize(
    ("is_ready", "sends", "by_wire", "by_loop"),
    [
        (True, False, {b": waiting\n\n"}, False),
        (False, False, {b"flushed"}, True),
        (True, True, set(), False),  # another thread's chunks show that the connection is alive
    ],
)
def test_a_comment_takes_the_way_of_the_chunks(
    is_ready: bool, sends: bool, by_wire: set[bytes], by_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE", 0.001)
    wire, messages = Noting(is_ready, sends), list[Any]()
    line: Line[Any] = Line(lambda pieces: b"")

    async def chunks() -> AsyncGenerator[bytes, None]:
        while wire.looks < 3:
            await asyncio.sleep(0)
        yield b"one"

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        messages.append(message)

    stream = EventStream(chunks(), lambda: None, lambda error: b"", line=line)
    about = {"type": "http", "http_version": "1.1", "method": "POST", "state": {WIRE: wire}}
    asyncio.run(stream(about, receive, send))
    assert set(wire.noted) == by_wire
    assert (b": waiting\n\n" in [each.get("body") for each in messages]) == by_loop


async def test_work_whose_client_goes_is_told_and_waited_for() -> None:
    gone, messages = list[str](), [{"type": "http.request"}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else await asyncio.Event().wait()  # type: ignore[return-value]

    request = Request({"type": "http"}, receive)
    answer = unless_gone(request, asyncio.sleep(0.01, "done"), lambda: gone.append("client"))
    assert await answer == "done"
    assert (gone, messages) == (["client"], [])
