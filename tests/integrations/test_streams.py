"""Streams that break and go on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from aleator.core.errors import ParameterError
from aleator.integrations.streams import RequestRefused, StreamBroken, StreamDiffers, TextStream

PIECES = ["O Rom", "eo, ", "Romeo, ", "wher", "efore"]
TEXT = "".join(PIECES)


class Server(ThreadingHTTPServer):
    """Answers with a script: for each request a status, a status and bytes, or pieces and whether they end."""

    daemon_threads = True

    def __init__(self, script: list[Any]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.bodies = script, list[dict[str, Any]]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/completions"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        step = self.server.script.pop(0)
        if isinstance(step, int):
            step = (step, b"a token")
        if isinstance(step[1], bytes):
            self.send_response(step[0])
            self.send_header("content-length", str(len(step[1])))
            self.end_headers()
            self.wfile.write(step[1])
            return
        pieces, ends = step
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            if isinstance(piece, bytes):
                self.chunk(piece)
                continue
            if isinstance(piece, str):
                chat = "messages" in self.server.bodies[-1]
                piece = {"choices": [{"delta": {"content": piece}} if chat else {"text": piece}]}
            self.chunk(f"data: {json.dumps(piece)}\n\n".encode())
        if ends:
            self.chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def serving() -> Iterator[Any]:
    servers: list[Server] = []

    def start(*script: Any) -> Server:
        servers.append(Server(list(script)))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_whole_stream(serving: Any) -> None:
    end = {"choices": [{"text": "", "finish_reason": "length"}]}
    server = serving(([*PIECES, end, {"choices": [], "usage": {}}], True))
    stream = TextStream(server.url, {"prompt": "x", "seed": 3})
    assert list(stream) == PIECES
    told = stream.text, stream.seed, stream.repeated, stream.finish_reason
    assert told == (TEXT, 3, 0, "length")
    assert server.bodies == [{"prompt": "x", "seed": 3, "stream": True}]


def test_a_broken_stream_goes_on_where_it_was(serving: Any) -> None:
    # Pieces of the second attempt are cut elsewhere: what counts is the text.
    server = serving((PIECES[:2], False), 503, (["O Romeo", ", Romeo, whe"], False), (PIECES, True))
    stream = TextStream(server.url, {"prompt": "x"}, pause=0.001)
    pieces = list(stream)
    assert pieces == ["O Rom", "eo, ", "Romeo, whe", "r", "efore"]
    assert (stream.text, stream.repeated) == (TEXT, 3)
    assert {body["seed"] for body in server.bodies} == {stream.seed}


def test_a_stream_that_breaks_within_a_line(serving: Any) -> None:
    server = serving(
        ([*PIECES[:2], b'data: {"choices": [{"te'], False),
        ([b"data: [DONE]"], False),
        (PIECES, True),
    )
    stream = TextStream(server.url, {"prompt": "x"}, pause=0.001)
    assert "".join(stream) == TEXT
    assert stream.repeated == 2


def test_chats(serving: Any) -> None:
    server = serving((PIECES[:3], False), (PIECES, True))
    stream = TextStream(server.url, {"messages": []}, pause=0.001)
    assert "".join(stream) == TEXT


def test_an_error_in_the_stream_is_a_break(serving: Any) -> None:
    server = serving(([*PIECES[:1], {"error": {"message": "gone"}}], True), (PIECES, True))
    assert "".join(TextStream(server.url, {}, pause=0.001)) == TEXT


def test_another_text_is_an_error(serving: Any) -> None:
    server = serving((PIECES[:2], False), (["O Romulus"], True))
    with pytest.raises(StreamDiffers, match=r"after 0 characters .* 'O Romulus'"):
        list(TextStream(server.url, {}, pause=0.001))
    server = serving((PIECES[:2], False), (PIECES[:1], True))
    with pytest.raises(StreamDiffers, match="has 5 characters, and the first had 9"):
        list(TextStream(server.url, {}, pause=0.001))


def test_attempts_are_counted_from_the_last_piece(serving: Any) -> None:
    server = serving(500, (PIECES[:1], False), 500, 500)
    with pytest.raises(StreamBroken, match=r"broke 3 times in a row.*status 500"):
        list(TextStream(server.url, {}, attempts=3, pause=0.001))
    assert server.script == []


def test_nobody_listens() -> None:
    with pytest.raises(StreamBroken, match="broke 2 times"):
        list(TextStream("http://127.0.0.1:9/v1/completions", {}, attempts=2, pause=0.001))


def test_a_refusal_is_not_repeated(serving: Any) -> None:
    server = serving(400)
    with pytest.raises(RequestRefused, match="status 400: a token") as raised:
        list(TextStream(server.url, {}))
    assert raised.value.status == 400


def test_a_proxy_of_ray_that_has_no_route_yet(serving: Any) -> None:
    said = b"Path '/v1/completions' not found. Ping http://.../-/routes for available routes."
    server = serving((404, said), (PIECES[:2], False), (404, said), (PIECES, True))
    stream = TextStream(server.url, {}, pause=0.001)
    assert "".join(stream) == TEXT
    assert stream.repeated == 3
    with pytest.raises(RequestRefused, match="status 404: a token"):
        list(TextStream(serving(404).url, {}))


@pytest.mark.parametrize(
    ("url", "body", "error"),
    [
        ("ftp://host/x", {}, "url='ftp"),
        ("http:///x", {}, "url="),
        ("http://host/x", {"n": 2}, "n=2"),
    ],
)
def test_what_cannot_be_asked(url: str, body: dict[str, Any], error: str) -> None:
    with pytest.raises(ParameterError, match=error):
        TextStream(url, body)
    with pytest.raises(ParameterError, match="attempts=0"):
        TextStream("http://host/x", {}, attempts=0)
