"""Chunks that the engine's thread sends itself: the bytes are those that the event loop would send."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aleator.engine.engine_core import EngineCore
from aleator.generate.generation import GenerationReader, Piece
from aleator.language_model import LanguageModel
from aleator.server.streaming import WIRE, Line, Wire, wire_of
from tests.server.live import PATIENCE, Live, in_thread, request_of, rest

TEXT = {"prompt": "ROMEO:", "max_tokens": 12, "seed": 3, "temperature": 1.5, "stream": True}
CHAT = {**TEXT, "messages": [{"role": "user", "content": "Good morrow"}]}
del CHAT["prompt"]
REQUESTS = {
    "/v1/completions": {**TEXT, "logprobs": 2, "echo": True},
    "/v1/chat/completions": {**CHAT, "stream_options": {"include_usage": True}},
    "/completion": {**TEXT, "n_probs": 2},
}


@pytest.fixture(scope="module")
def live(model: LanguageModel) -> Iterator[Live]:
    with in_thread(model, engine={"n_seq_max": 2}) as made:
        yield made


def events(live: Live, path: str, body: dict[str, Any]) -> list[Any]:
    """The events of a stream, without what differs from request to request."""
    head, _, chunks = live.answer(request_of(body, path)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    came = b""
    while chunks != b"0\r\n\r\n":
        size, _, left = chunks.partition(b"\r\n")
        n = int(size, 16)
        assert left[n : n + 2] == b"\r\n"
        came, chunks = came + left[:n], left[n + 2 :]
    told = re.sub(rb'"id":"[^"]*"|"created":\d+', b'"x":0', came).decode().split("\n\n")[:-1]
    assert told[-1] == "data: [DONE]" or json.loads(told[-1][6:])["stop"] is True
    made = [json.loads(each.removeprefix("data: ")) for each in told if each != "data: [DONE]"]
    return [{**each, "timings": None} for each in made]


def engine_waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Makes the engine wait before each step until this is set: a line waits for pieces."""
    waits = threading.Event()
    pass_on, step = GenerationReader.pass_on, EngineCore.step

    async def noted(self: GenerationReader, *args: Any) -> None:
        asyncio.get_running_loop().call_soon(waits.set)
        await pass_on(self, *args)

    def held(self: EngineCore) -> Any:
        assert waits.wait(PATIENCE)
        return step(self)

    monkeypatch.setattr(GenerationReader, "pass_on", noted)
    monkeypatch.setattr(EngineCore, "step", held)
    return waits


def test_the_engines_thread_sends(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    send = Wire.send

    def watched(self: Wire, body: bytes) -> bool:
        threads.append(threading.current_thread().name)
        return send(self, body)

    waits = engine_waits(monkeypatch)
    monkeypatch.setattr(Wire, "send", watched)
    for path, body in REQUESTS.items():
        threads.clear()
        waits.clear()
        events(live, path, {name: value for name, value in body.items() if name != "echo"})
        assert len(threads) > 3, path
        assert set(threads) == {"aleator-engine"}, path


def test_the_bytes_do_not_depend_on_who_sends_them(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0

    def sometimes(file: int, data: bytes) -> int:
        nonlocal turns
        turns += 1
        if turns % 3 == 2:
            raise BlockingIOError
        return write(file, data[:50])

    write = os.write
    for path, body in REQUESTS.items():
        events(live, path, body)  # the next ones are from the prompt cache
        sent = events(live, path, body)
        with monkeypatch.context() as changed:
            changed.setattr(Wire, "ready", lambda self: False)
            assert events(live, path, body) == sent, path
        with monkeypatch.context() as changed:
            changed.setattr("aleator.server.streaming.os.write", sometimes)
            assert events(live, path, body) == sent, path


def test_an_error_of_what_writes_ends_the_stream_and_nothing_else(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Wire, body: bytes) -> bool:
        raise RuntimeError("of a test")

    with monkeypatch.context() as other:
        engine_waits(other)
        other.setattr(Wire, "send", broken)
        came = live.answer(request_of(TEXT))
    assert came.count(b'"error"') == 1
    assert came.endswith(b"0\r\n\r\n")
    assert len(events(live, "/v1/completions", TEXT)) > 3


def test_a_client_that_does_not_read_gets_all_of_it_later(live: Live) -> None:
    body = {**TEXT, "max_tokens": 400, "logprobs": 20, "context_shift": True, "ignore_eos": True}
    expected = live.answer(request_of(body))
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    slow.connect(("127.0.0.1", live.port))
    with slow:
        slow.sendall(request_of(body))
        live.post("/v1/completions", {**body, "stream": False})  # as long as the slow one
        came = rest(slow)
    texts = re.compile(rb'"text":"[^"]*"')
    assert texts.findall(came) == texts.findall(expected)
    assert came.endswith(b"0\r\n\r\n")


async def test_what_is_lost_is_not_written_to() -> None:
    """The file of a closed socket may be another connection's by then."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    made = Wire()
    assert not made.ready()
    made.opened(transport)
    assert made.ready()
    assert made.send(b"one")
    made.lost()
    assert not made.ready()
    assert not made.send(b"two")
    assert made.sent == 3
    transport.close()
    await asyncio.sleep(0)
    assert theirs.recv(100) == b"3\r\none\r\n"
    assert theirs.recv(100) == b""
    theirs.close()


async def test_the_loop_writes_the_rest_of_a_chunk_before_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = os.write
    monkeypatch.setattr(
        "aleator.server.streaming.os.write", lambda file, data: write(file, data[:4])
    )

    class Made:
        """A text whose last pieces are taken in the loop's thread, without a turn of the loop."""

        async def pass_on(self, take: Any) -> None:
            assert not take([Piece("one", 1)])

    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    made = Wire()
    made.opened(transport)
    line = Line[Piece](lambda pieces: b"".join(each.text.encode() for each in pieces))
    line.open(made)
    await line.follow(Made(), lambda pieces: pieces)  # type: ignore[arg-type]
    transport.write(b"last")
    assert made.ready()
    await asyncio.sleep(0)  # nothing is written twice
    made.send(b"two")
    made.send(b"three")
    made.flush()
    transport.close()
    await asyncio.sleep(0)
    assert theirs.recv(100) == b"3\r\none\r\nlast3\r\ntwo\r\n5\r\nthree\r\n"
    theirs.close()


async def test_a_rest_from_before_a_line_is_written_before_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = os.write
    monkeypatch.setattr(
        "aleator.server.streaming.os.write", lambda file, data: write(file, data[:4])
    )
    ours, theirs = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    made, line = Wire(), Line[Piece](lambda pieces: b"")
    made.opened(transport)
    line.open(made)
    assert not made.send(b"one")
    await line.follow(None, lambda pieces: pieces)  # type: ignore[arg-type]  # takes no pieces
    transport.write(b"last")
    await asyncio.sleep(0)
    transport.close()
    await asyncio.sleep(0)
    assert theirs.recv(100) == b"3\r\none\r\nlast"
    theirs.close()


def test_connections_that_need_the_loop() -> None:
    made = Wire()
    scope: dict[str, Any] = {"http_version": "1.1", "method": "POST", "state": {WIRE: made}}
    assert wire_of(scope) is made
    assert wire_of({**scope, "http_version": "1.0"}) is None
    assert wire_of({**scope, "method": "HEAD"}) is None
    assert wire_of({**scope, "state": {}}) is None


def test_what_is_encrypted_is_left_to_the_loop() -> None:
    ours, theirs = socket.socketpair()

    class Encrypted(asyncio.Transport):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return {"socket": ours, "sslcontext": object()}.get(name, default)

    async def run() -> None:
        made = Wire()
        made.opened(Encrypted())
        assert not made.ready()
        assert not made.send(b"x")
        assert made.sent == 0

    with ours, theirs:
        asyncio.run(run())
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
