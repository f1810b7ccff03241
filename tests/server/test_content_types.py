"""Bodies are JSON in UTF-8: what is said to be, or is, something else gets 415 in the words of its dialect."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from aleator.language_model import LanguageModel
from tests.server.live import Live, in_thread

BODY = {"prompt": "a", "max_tokens": 1}
DATA = json.dumps(BODY).encode()
MESSAGES = [{"role": "user", "content": "Hi"}]
FORM = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def live(model: LanguageModel) -> Iterator[Live]:
    with in_thread(model, engine={"n_seq_max": 2}) as made:
        yield made


def answer(
    live: Live, headers: dict[str, str], data: bytes = DATA, path: str = "/v1/completions"
) -> tuple[int, Any]:
    """Status and JSON of the answer to a request that has these headers and no others of its own."""
    given = {
        "host": f"127.0.0.1:{live.port}",
        "content-length": str(len(data)),
        "connection": "close",
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in {**given, **headers}.items())
    came = live.answer(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
    top, _, body = came.partition(b"\r\n\r\n")
    if int(top[9:12]) == 415:
        assert b"\r\naccept: application/json\r\n" in top
    return int(top[9:12]), json.loads(body)


@pytest.mark.parametrize(
    "said",
    [
        "application/json",
        "Application/JSON; Charset=UTF-8",
        'application/json;charset="utf-8"; x=1',
        "application/vnd.api+json",
        FORM,  # curl -d
        None,
    ],
)
def test_json_is_taken(live: Live, said: str | None) -> None:
    status, made = answer(live, {} if said is None else {"content-type": said})
    assert status == 200
    assert made["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "said",
    [
        "text/plain", "text/plain;charset=UTF-8", "text/json", "multipart/form-data; boundary=x",
        "application/octet-stream", "application/json; charset=utf-16",
        "application/json; charset=latin1", "image/svg+json", "json", "; charset=utf-8",
    ],
)  # fmt: skip
def test_what_is_said_to_be_something_else_is_refused(live: Live, said: str) -> None:
    status, made = answer(live, {"content-type": said})
    assert status == 415
    assert made["error"]["code"] == "unsupported_media_type"
    assert said in made["error"]["message"]
    assert "application/json" in made["error"]["message"]


@pytest.mark.parametrize("said", [FORM, None])
def test_a_browser_says_that_it_is_json(live: Live, said: str | None) -> None:
    """Forms, and what has no type, are sent by a browser for any page without asking."""
    own = {"origin": f"http://127.0.0.1:{live.port}"}
    status, made = answer(live, own if said is None else {**own, "content-type": said})
    assert status == 415
    assert "application/json" in made["error"]["message"]
    assert answer(live, {**own, "content-type": "application/json"})[0] == 200
    assert answer(live, {"origin": "http://evil.example", "content-type": FORM})[0] == 403


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_other_encodings_are_named(live: Live, encoding: str) -> None:
    data = json.dumps(BODY).encode(encoding)
    status, made = answer(live, {"content-type": "application/json"}, data)
    assert status == 415
    assert f"a body in {encoding.upper()}" in made["error"]["message"]


def test_what_is_not_utf_8(live: Live) -> None:
    json_is = {"content-type": "application/json"}
    status, made = answer(live, json_is, b'{"prompt": "\xe9", "max_tokens": 1}')
    assert (status, made["error"]["message"]) == (400, "the body is not UTF-8: byte 0xe9 at 12")
    assert answer(live, json_is, b'{"prompt": "a\x00", "max_tokens": 1}')[0] == 400
    assert answer(live, json_is, b"\xef\xbb\xbf" + DATA)[0] == 200  # a mark that is UTF-8's
    status, made = answer(live, {**json_is, "content-encoding": "gzip"}, gzip.compress(DATA))
    assert status == 415
    assert (
        "content-encoding 'gzip' is not taken: send JSON in UTF-8, not compressed"
        in (made["error"]["message"])
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", BODY),
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1}),
        ("/completion", {"prompt": "a"}),
        ("/tokenize", {"content": "a"}),
        ("/embedding", {"content": "a"}),
        ("/apply-template", {"messages": MESSAGES}),
        ("/api/generate", {"model": "x", "prompt": "a"}),
        ("/api/chat", {"model": "x", "messages": MESSAGES}),
        ("/api/embed", {"model": "x", "input": "a"}),
    ],
)
def test_every_dialect_refuses_in_its_own_form(live: Live, path: str, body: Any) -> None:
    data = json.dumps(body).encode()
    status, made = answer(live, {"content-type": "text/plain"}, data, path)
    assert status == 415
    error = made["error"]
    if path.startswith("/api/"):  # Ollama's is a text
        assert "text/plain" in error
        return
    assert "text/plain" in error["message"]
    assert error["type"] == "invalid_request_error"
    if path == "/completion":
        assert error["code"] == 415
