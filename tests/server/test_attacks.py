from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attacks.fields import ENDPOINTS, Fuzz, declared_fields

from aleator.language_model import LanguageModel
from aleator.server.dialects import DIALECTS
from tests.server.live import Live, in_thread, request_of, rest, until

COMPLETIONS = "/v1/completions"
SAME = {"prompt": "ROMEO:", "max_tokens": 12, "seed": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots") / "saved"


@pytest.fixture(scope="module")
def live(model: LanguageModel, folder: Path) -> Iterator[Live]:
    folder.mkdir()
    with in_thread(
        model,
        engine={"n_seq_max": 4, "max_queue": 8},
        slot_save_path=str(folder),
        client_timeout=2.0,
        grammar_timeout=3.0,
        request_timeout=10.0,
        max_connections=300,
    ) as made:
        yield made


@pytest.fixture(autouse=True)
def as_before(live: Live) -> Iterator[None]:
    """After every attack nothing is under way, and a text is what it was."""
    engine = live.engine
    assert engine is not None
    before = json.loads(live.post(COMPLETIONS, SAME)[2])["choices"]
    yield
    until(lambda: not engine.stats.running and not engine.stats.waiting)
    assert json.loads(live.post(COMPLETIONS, SAME)[2])["choices"] == before


# Bytes.


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/9.9\r\nhost: x\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\ntransfer-encoding: "
        b"chunked\r\n\r\n{}",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: \x00\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT evil.example:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused(live: Live, data: bytes) -> None:
    with live.send(data) as connection:
        connection.shutdown(socket.SHUT_WR)
        answer = rest(connection)
    assert answer[9:12] in (b"", b"400", b"404", b"405", b"411")


def test_bytes_at_random(live: Live) -> None:
    Fuzz(live.port, 3).bytes(60)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b'{"prompt": "x"', b'{"prompt": "x",}', b"{'prompt': 'x'}", b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800"}', b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": Infinity}', b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "prompt": "y"}', b'\xef\xbb\xbf{"prompt": ', b"[]", b"null", b'"x"', b"1" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(live: Live, body: bytes) -> None:
    status, _, answer = live.ask("POST", COMPLETIONS, body)
    assert status == 400
    assert json.loads(answer)["error"]["message"]


@pytest.mark.parametrize("levels", [126, 9_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"items": ', "}")])
def test_what_is_nested_deeply_is_refused_by_name(
    live: Live, opening: str, closing: str, levels: int
) -> None:
    """Python's own bound differs between versions."""
    for path, body in ENDPOINTS.items():
        for field in sorted({*body, "tools", "response_format", "json_schema", "metadata", "stop"}):
            other = json.dumps({name: value for name, value in body.items() if name != field})
            deep = f'{{"{field}": {opening * levels}1{closing * levels}, {other[1:]}'
            status, _, answer = live.ask("POST", path, deep.replace(", }", "}").encode())
            assert status < 500 or status == 501, (path, field, answer)
            if levels == 9_000 and status != 501:
                assert f"'{field}' is nested more" in answer.decode(), (path, status, answer)


def test_many_equal_and_long_names_take_no_time(live: Live) -> None:
    began = time.monotonic()
    names = ", ".join(f'"n{i}": 1' for i in range(200_000))
    assert live.ask("POST", COMPLETIONS, f'{{{names}, "z": 1, "z": 1}}'.encode())[0] == 400
    assert live.ask("POST", COMPLETIONS, f"{{{names}}}".encode())[0] == 400
    assert live.ask("POST", COMPLETIONS, b'{"' + b"x" * 10**6 + b'": 1}')[0] == 400
    assert time.monotonic() - began < 15


def test_a_body_of_a_hundred_megabytes_is_not_kept(live: Live) -> None:
    before = peak()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 104857600\r\n\r\n"
    with live.send(head) as connection:
        piece = b" " * 2**20
        try:
            for _ in range(100):
                connection.sendall(piece)
        except ConnectionError:  # it was told, and did not listen
            pass
        answer = rest(connection)
    assert answer[9:12] in (b"413", b"")
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with live.send(head) as connection:
        try:
            for _ in range(100):
                connection.sendall(b"100000\r\n" + piece + b"\r\n")
        except ConnectionError:
            pass
        rest(connection)
    assert peak() - before < 64 * 2**20


def peak() -> int:
    """Bytes of memory that this process has had at most."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


# Clients that are slow, many, or gone.


def test_clients_that_send_a_byte_now_and_then(live: Live) -> None:
    slow = [live.send(b"POST /v1/completions HTTP/1.1\r\n") for _ in range(20)]
    assert live.post(COMPLETIONS, SAME)[0] == 200
    for each in slow:  # each is cut off
        assert rest(each) == b""
        each.close()


def test_clients_that_go_at_any_point(live: Live) -> None:
    body = {**SAME, "max_tokens": 400, "stream": True, "n": 2, "ignore_eos": True}
    data = request_of(body)
    for at in (1, 20, 60, len(data) - 30, len(data) - 1, len(data)):
        live.send(data[:at]).close()
    for n in (1, 200, 3000):
        with live.send(data) as connection:
            connection.recv(n)
    with live.send(data) as connection:
        connection.shutdown(socket.SHUT_WR)  # still reads


def test_many_requests_on_one_connection_at_once(live: Live) -> None:
    data = request_of({"prompt": "x", "max_tokens": 1}).replace(b"connection: close\r\n", b"")
    with live.send(data * 50 + request_of({"prompt": "x", "max_tokens": 1})) as connection:
        assert rest(connection).count(b"HTTP/1.1 200") == 51


# What is asked.


@pytest.mark.parametrize(
    "body",
    [
        {"regex": "(a{1000}){1000}"},
        {"regex": "((((((((((x{9}){9}){9}){9}){9}){9}){9}){9}){9}){9}"},
        {"json_schema": {"type": "integer", "multipleOf": 1000003}},
        {"json_schema": {"enum": [str(i) for i in range(50_000)]}},
        {"json_schema": {"type": "array", "items": {}, "minItems": 10**9}},
        {"json_schema": {"$ref": "#"}},
        {"json_schema": {"allOf": [{"$ref": "#/allOf/0"}]}},
        {"grammar": "root ::= root"},
        {"grammar": 'root ::= ("a"{1,1000}){1,1000}'},
        {"grammar": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000},
    ],
)
def test_huge_grammars_end(live: Live, body: dict[str, Any]) -> None:
    began = time.monotonic()
    status, _, answer = live.post(COMPLETIONS, {"prompt": "x", "max_tokens": 2, **body})
    assert status in (200, 400), answer
    assert time.monotonic() - began < 20


def test_control_tokens_in_messages_are_text(live: Live, model: LanguageModel) -> None:
    name = model.vocab.tokens[0]
    message = {"messages": [{"role": "user", "content": name}]}
    tokens = json.loads(live.post("/apply-template", message)[2])
    assert name in tokens["prompt"]
    chat = json.loads(live.post("/v1/chat/completions", {**message, "max_tokens": 1})[2])
    alone = json.loads(live.post("/tokenize", {"content": name, "parse_special": True})[2])
    assert len(alone["tokens"]) == 1
    assert chat["usage"]["prompt_tokens"] > 2


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/%2e%2e/etc/passwd", "//etc/passwd", "/slots/../../x"]
)
def test_no_file_of_the_machine_can_be_asked_for(live: Live, path: str) -> None:
    answer = live.answer(
        f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
    )
    assert b"root:" not in answer
    assert answer[9:12] in (b"400", b"404", b"405")


def test_odd_values_of_declared_fields_are_no_servers_errors(live: Live) -> None:
    fuzz = Fuzz(live.port, 11)
    fuzz.every_field(declared_fields(), list(ENDPOINTS), 150)
    fuzz.nested(list(ENDPOINTS), 80)
    assert sum(fuzz.statuses.values()) == 230


def test_every_endpoint_that_takes_a_body_is_fuzzed(live: Live) -> None:
    known = {path.partition("?")[0].replace("/slots/0", "/slots/{id_slot}") for path in ENDPOINTS}
    posts = {r.path: r.endpoint for d in DIALECTS for r in d.ROUTES if "POST" in (r.methods or ())}
    fuzzed = {endpoint for path, endpoint in posts.items() if path in known}
    for path, endpoint in posts.items():
        if endpoint not in fuzzed:  # it only says that it is not there
            status = live.post(path.replace("{name:path}", "x"), {})[0]
            assert status in (400, 404, 501), path
