"""Every field of every endpoint with odd values, bodies with odd values inside, and bytes that are no HTTP.

The server is in this process, on a socket.  Every answer must be a status below 500, or 501 or 503, and be
JSON where it says so; afterwards no request is under way, and the server gives the text that it gave before.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import sys
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

from attacks.world import PATIENCE, World, settled

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.5,
    1e308, 1e-320, -0.0, "", " ", "a", "\x00", "\ud800", "é" * 50, "a" * 5000, "<|im_start|>",
    "<s>", "../../etc/passwd", "%00", "1e5", "nan", "inf", "true", "null", "[]", "{}", "auto",
    "none", [], {}, [None], [0], [-1], [[]], [""], ["a"], [{}], [1, 2, 3], [[1, 2]], [2**31],
    ["a", 1], [0.5], {"a": 1}, {"": ""}, {"type": "object"}, {"type": "function"},
    {"type": "json_object"}, {"type": "text"}, {"0": -100}, {"role": "user"},
    [{"role": "user", "content": "x"}], [{"role": "x"}], {"a": [{}] * 50}, [[[[[[[[]]]]]]]],
    [0] * 3000, {str(i): i for i in range(600)},
)  # fmt: skip
"""Values for any field."""

ENDPOINTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/watermark/detect": {"content": "x"},
    "/v1/responses": {"input": "x", "max_output_tokens": 16},
    "/v1/messages": {
        "model": "shakespeare",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 2,
    },
    "/v1/messages/count_tokens": {
        "model": "shakespeare",
        "messages": [{"role": "user", "content": "x"}],
    },
    "/v1/embeddings": {"input": "x"},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/completion": {"prompt": "x", "n_predict": 2},
    "/infill": {"input_prefix": "x", "input_suffix": "y", "n_predict": 2},
    "/tokenize": {"content": "x"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": [{"role": "user", "content": "x"}]},
    "/embedding": {"content": "x"},
    "/slots/0?action=save": {"filename": "x"},
    "/slots/0?action=erase": {},
    "/props": {},
    "/api/chat": {
        "model": "shakespeare",
        "messages": [{"role": "user", "content": "x"}],
        "options": {"num_predict": 2},
    },
    "/api/generate": {"model": "shakespeare", "prompt": "x", "options": {"num_predict": 2}},
    "/api/embed": {"model": "shakespeare", "input": "x"},
    "/api/show": {"model": "shakespeare"},
}
"""Endpoints that take a body, with one that they take."""

BOUNDED = ("max_tokens", "max_output_tokens", "n_predict", "max_completion_tokens")
"""Fields of length: an odd one may ask for as much as there is room for, which takes its time."""


class Wrong(AssertionError):
    """An answer that must not be."""


def declared_fields() -> list[str]:
    """Names of all fields that any endpoint declares, and of all options."""
    from starlette.routing import Route

    from aleator.server import dialects
    from aleator.server.fields import OPTIONS, SPELLINGS, Fields

    names = {
        *OPTIONS, *SPELLINGS, "tools", "tool_choice", "response_format", "stream_options",
        "options", "system", "thinking",
    }  # fmt: skip
    for dialect in dialects.DIALECTS:
        for route in dialect.ROUTES:
            if isinstance(route, Route):
                module = sys.modules[route.endpoint.__module__]
                for value in vars(module).values():
                    if isinstance(value, Fields):
                        names |= {*value.own, *value.accepted}
    return sorted(names)


class Fuzz:
    """Asks a server.

    Args:
        port: Of 127.0.0.1.
        seed: Of what is asked.

    Attributes:
        statuses: How often each came.
    """

    def __init__(self, port: int, seed: int) -> None:
        self._port, self._rng = port, random.Random(seed)
        self.statuses: Counter[str] = Counter()

    def every_field(self, names: Sequence[str], endpoints: Sequence[str], most: int) -> None:
        """Fields of endpoints with odd values: all pairs, or so many of them."""
        pairs = [(path, name, value) for path in endpoints for name in names for value in ODD]
        for path, name, value in self._rng.sample(pairs, min(most, len(pairs))):
            self.ask(path, {**ENDPOINTS[path], name: value})

    def nested(self, endpoints: Sequence[str], most: int) -> None:
        """Bodies in which a value anywhere is replaced by an odd one."""
        for _ in range(most):
            path = self._rng.choice(endpoints)
            body = json.loads(json.dumps(ENDPOINTS[path]))
            for _ in range(self._rng.randint(1, 3)):
                body = self._changed(body)
            self.ask(path, body)

    def _changed(self, value: Any) -> Any:
        rng = self._rng
        if isinstance(value, dict) and value and rng.random() < 0.8:
            key = rng.choice(sorted(value))
            return {**value, key: self._changed(value[key])}
        if isinstance(value, list) and value and rng.random() < 0.8:
            at = rng.randrange(len(value))
            return [*value[:at], self._changed(value[at]), *value[at + 1 :]]
        return rng.choice(ODD)

    def ask(self, path: str, body: Any) -> None:
        """Send a body; raises Wrong for an answer that must not be."""
        if isinstance(body, dict) and not any(
            isinstance(body.get(name), int) and 0 <= body[name] <= 64 for name in BOUNDED if name in body
        ):  # fmt: skip
            body = {**body, "deadline": 0.2} if path.startswith("/v1/c") else body
        data = json.dumps(body).encode()
        status, kind, answer = self._answer(path, data)
        self.statuses[str(status)] += 1
        if status >= 500 and status not in (501, 503):
            raise Wrong(f"{path} {data[:300]!r}: {status} {answer[:300]!r}")
        if kind.startswith("application/json"):
            json.loads(answer)

    def _answer(self, path: str, data: bytes) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        try:
            connection.request("POST", path, data, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.getheader("content-type", ""), response.read()
        finally:
            connection.close()

    def bytes(self, most: int) -> None:
        """Bytes that are no HTTP, or nearly; the server may close, and must not hang."""
        rng = self._rng
        good = (
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 33\r\n"
            b'connection: close\r\n\r\n{"prompt": "x", "max_tokens": 2 }'
        )
        for _ in range(most):
            data = bytearray(good)
            for _ in range(rng.randint(1, 6)):
                at = rng.randrange(len(data))
                change = rng.random()
                if change < 0.4:
                    data[at] = rng.randrange(256)
                elif change < 0.6:
                    del data[at : at + rng.randint(1, 9)]
                elif change < 0.8:
                    data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 9)))
                else:
                    data[at:at] = data[at : at + rng.randint(1, 40)]
            with socket.create_connection(
                ("127.0.0.1", self._port), timeout=PATIENCE
            ) as connection:
                try:
                    connection.sendall(bytes(data))
                    connection.shutdown(socket.SHUT_WR)
                    came = connection.recv(2**16)
                except ConnectionError:
                    came = b""
            if came.startswith(b"HTTP/1.1 500"):
                raise Wrong(f"{bytes(data)!r}: {came[:300]!r}")
            self.statuses[came[9:12].decode("latin-1") or "closed"] += 1


def scene(world: World) -> Generator[None, None, None]:
    """Ask one server odd things, and now and then what it was asked before."""
    from tests.server.live import in_thread

    body = {"prompt": "ROMEO:", "max_tokens": 20, "seed": 1}
    options = {"n_seq_max": 4, "max_queue": 8, "n_ctx": 2048}
    names, paths = declared_fields(), list(ENDPOINTS)
    folder = world.folder / "slots"
    folder.mkdir()
    with in_thread(
        world.model, engine=options, slot_save_path=str(folder), request_timeout=5
    ) as live:
        engine = live.engine
        if engine is None:
            raise AssertionError("the server has no engine here")
        fuzz = Fuzz(live.port, world.seed)
        before = json.loads(live.post("/v1/completions", body)[2])["choices"]
        while True:
            try:
                fuzz.every_field(names, paths, 30)
                fuzz.nested(paths, 15)
                fuzz.bytes(5)
            except Wrong as error:
                world.check(False, "odd requests", error)
            idle = settled(lambda: not engine.stats.running + engine.stats.waiting)
            world.check(idle, "requests end", engine.stats)
            after = json.loads(live.post("/v1/completions", body)[2])["choices"]
            world.check(after == before, "texts as before", after)
            world.counts.update({f"answers {k}": n for k, n in fuzz.statuses.items()})
            fuzz.statuses.clear()
            yield
