from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable
from contextlib import nullcontext
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aleator.core.errors import ParameterError
from aleator.server import auth
from aleator.server.auth import (
    Gate,
    KeyRing,
    check_hosts,
    check_keys,
    current_caller,
    host_name,
    loopback_names,
    namespace_of,
)
from aleator.server.bodies import Bodies
from aleator.server.errors import ApiError
from aleator.server.telemetry import Requests

Headers = Iterable[tuple[str, str]]


def answer(scope: Scope, error: ApiError) -> ASGIApp:
    return JSONResponse({"error": str(error)}, error.status, headers=error.headers)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = b""
    if scope["method"] == "POST":
        message = await receive()
        assert not message.get("more_body")
        body = message["body"]
    made = {"body": body.decode("latin-1"), "tenant": current_caller().tenant}
    await JSONResponse(made)(scope, receive, send)


class Sender:
    """Sends one request to an application, piece by piece."""

    def __init__(self, headers: Headers = (), pieces: Iterable[bytes] = (), path: str = "/x"):
        self.pieces = list(pieces)
        self.scope: Scope = {
            "type": "http",
            "method": "POST" if self.pieces else "GET",
            "path": path,
            "http_version": "1.1",
            "headers": [(n.encode(), v.encode("latin-1")) for n, v in headers],
        }
        self.read = 0
        self.sent: list[Message] = []
        self.pause = 0.0

    async def receive(self) -> Message:
        await asyncio.sleep(self.pause)
        if self.read == len(self.pieces):
            return {"type": "http.disconnect"}
        self.read += 1
        more = self.read < len(self.pieces)
        return {"type": "http.request", "body": self.pieces[self.read - 1], "more_body": more}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def to(self, app: ASGIApp) -> int:
        async def ask() -> None:
            await app(self.scope, self.receive, self.send)

        asyncio.run(ask())
        return self.status

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"]) if self.sent else 0

    @property
    def header(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.sent)


def host(value: str) -> tuple[str, str]:
    return "host", value


# Hosts and origins.


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([host("127.0.0.1:8080")], 200),
        ([host("LOCALHOST")], 200),
        ([host("localhost.")], 200),
        ([host("[::1]:8080")], 200),
        ([host("evil.example:8080")], 403),
        ([host("127.0.0.1.evil.example")], 403),
        ([host("localhost@evil.example")], 403),
        ([host("")], 200),
        ([], 400),
        ([host("localhost"), host("evil.example")], 400),
        ([host("localhost:1"), ("origin", "http://localhost:1")], 200),
        ([host("localhost:1"), ("origin", "http://localhost:2")], 403),
        ([host("localhost:1"), ("origin", "https://evil.example")], 403),
        ([host("localhost:1"), ("origin", "null")], 403),
    ],
)
def test_on_this_machine_only_its_own_names_are_answered(
    headers: list[tuple[str, str]], status: int
) -> None:
    app = check_hosts(echo, answer, loopback_names("127.0.0.1"))
    assert Sender(headers).to(app) == status


def test_names_and_origins_can_be_allowed() -> None:
    app = check_hosts(echo, answer, loopback_names("127.0.0.1", ["Box.lan"]), ["http://page:3"])
    assert Sender([host("box.lan")]).to(app) == 200
    assert Sender([host("box.lan"), ("origin", "http://page:3")]).to(app) == 200
    assert Sender([host("box.lan"), ("origin", "http://other")]).to(app) == 403
    anybody = check_hosts(echo, answer, None, ["*"])
    assert Sender([host("any.where"), ("origin", "http://other")]).to(anybody) == 200


def test_elsewhere_any_name_is_answered_unless_some_are_named() -> None:
    assert loopback_names("0.0.0.0") is None
    assert loopback_names("192.168.1.5") is None
    assert "box.lan" in (loopback_names("0.0.0.0", ["box.lan"]) or ())
    assert loopback_names("::1") is not None
    assert host_name("[2001:db8::1]:80") == "2001:db8::1"


# Keys.


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing.of(["first-key", "second"])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 401),
        ([("authorization", "Bearer first-key")], 200),
        ([("authorization", "bearer  second ")], 200),
        ([("x-api-key", "second")], 200),
        ([("authorization", "Bearer first-ke")], 401),
        ([("authorization", "Bearer first-keyy")], 401),
        ([("authorization", "Bearer ")], 401),
        ([("authorization", "Basic first-key")], 401),
        ([("authorization", "first-key")], 401),
        ([("authorization", "Bearer \xff\xfe")], 401),
        ([("authorization", "Bearer wrong"), ("x-api-key", "second")], 401),
    ],
)
def test_a_key_is_needed(ring: KeyRing, headers: list[tuple[str, str]], status: int) -> None:
    sender = Sender(headers)
    assert sender.to(check_keys(echo, answer, ring)) == status
    if status == 401:
        assert sender.header[b"www-authenticate"] == b"Bearer"


def test_health_needs_no_key(ring: KeyRing) -> None:
    assert Sender(path="/health").to(check_keys(echo, answer, ring)) == 200
    assert Sender(path="/health/").to(check_keys(echo, answer, ring)) == 401
    assert Sender(path="/metrics").to(check_keys(echo, answer, ring)) == 401


@pytest.mark.parametrize("fails", [False, True])
def test_contexts_that_timers_keep_hold_no_texts_after_the_request(
    ring: KeyRing, fails: bool
) -> None:
    """Otherwise a model that was unloaded stays in memory with the texts that it began."""
    kept: list[Context] = []

    async def began(scope: Scope, receive: Receive, send: Send) -> None:
        texts: list[Any] = current_caller().begun
        texts.append("text")
        kept.append(copy_context())
        if fails:
            raise ConnectionError
        await echo(scope, receive, send)

    with nullcontext() if not fails else pytest.raises(ConnectionError):
        Sender(path="/health").to(check_keys(began, answer, ring))
    assert kept[0].run(current_caller).begun == []


def test_all_keys_are_compared_whichever_is_right(
    ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append(a)
        return hmac.compare_digest(a, b)

    class Counting:
        compare_digest = staticmethod(compare)

    monkeypatch.setattr(auth, "hmac", Counting)
    for key in (b"first-key", b"second", b"wrong", None):
        compared.clear()
        ring.tenant(key)
        assert len(compared) == 2


def test_tenants_are_told_apart_by_keys_and_show_none_of_them(ring: KeyRing) -> None:
    first, second = ring.tenant(b"first-key"), ring.tenant(b"second")
    assert first is not None
    assert second is not None
    assert first != second
    assert first == KeyRing.of(["other", "first-key"]).tenant(b"first-key")
    assert "first" not in first
    assert KeyRing().tenant(b"anything") == ""
    sender = Sender([("x-api-key", "second")])
    sender.to(check_keys(echo, answer, ring))
    assert second.encode() in sender.body


def test_namespaces_of_tenants_and_salts_never_meet() -> None:
    salts = ("", "a", "b", "a/", "/", "slot 0", "\ud800")
    made = [namespace_of(tenant, salt) for tenant in ("", "a1", "b2") for salt in salts]
    assert len(set(made)) == len(made)
    assert made[0] == ""  # without keys and salts, also for what else uses the engine
    # Nor others: those of slots, and those that context shifts and sessions make.
    assert not {"\0context shift 1", "\0session 1", "/slot 0", "a1/slot 0"} & set(made)


def test_keys_come_from_files_too(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nfirst\n\n  second  \n")
    ring = KeyRing.of(["third"], str(file))
    assert len(ring) == 3
    assert all(ring.tenant(key) for key in (b"first", b"second", b"third"))
    file.write_text("# none\n")
    with pytest.raises(ParameterError, match="has no key"):
        KeyRing.of([], str(file))
    file.write_text("fine\nnot fine\n")
    with pytest.raises(ParameterError, match="line 2") as caught:
        KeyRing.of([], str(file))
    assert "not fine" not in str(caught.value)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ParameterError, match="not a text file"):
        KeyRing.of([], str(file))
    with pytest.raises(ParameterError, match=r"the 1\. key"):
        KeyRing.of(["ümlaut"])
    with pytest.raises(OSError, match="none"):
        KeyRing.of([], str(tmp_path / "none"))


# Bodies.


def bodies(app: ASGIApp = echo, **options: Any) -> Bodies:
    chosen = {"most_bytes": 100, "timeout": 5.0, "most_held": 250, **options}
    return Bodies(app, answer, **chosen)


def test_a_body_comes_whole() -> None:
    sender = Sender([("content-length", "6")], [b"abc", b"", b"def"])
    assert sender.to(bodies()) == 200
    assert b'"abcdef"' in sender.body
    chunked = Sender([("transfer-encoding", "chunked")], [b"ab", b"c"])
    assert chunked.to(bodies()) == 200


def test_a_body_that_says_it_is_too_large_is_not_kept() -> None:
    sender = Sender([("content-length", "101")], [b"x" * 50] * 40)
    assert sender.to(bodies()) == 413
    assert sender.header[b"connection"] == b"close"
    assert b"--max-body-bytes" in sender.body
    assert Sender([("content-length", "1e9")], [b""]).to(bodies()) == 400
    assert Sender([("content-length", "-1")], [b""]).to(bodies()) == 400


def test_a_body_that_is_too_large_without_saying_so_is_refused() -> None:
    app = bodies()
    sender = Sender([("transfer-encoding", "chunked")], [b"x" * 50] * 40)
    assert sender.to(app) == 413
    assert sender.read == 40  # thrown away, so that its sender sees the answer
    assert app._held == 0


def test_what_is_thrown_away_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aleator.server.bodies.DRAIN_SECONDS", 0.05)
    sender = Sender([("content-length", "1000000")], [b"x"] * 10**6)
    sender.pause = 0.01
    assert sender.to(bodies()) == 413
    assert sender.read < 100


def test_a_slow_body_is_given_up() -> None:
    sender = Sender([("content-length", "50")], [b"x"] * 50)
    sender.pause = 0.01
    assert sender.to(bodies(timeout=0.05)) == 408
    assert sender.header[b"connection"] == b"close"


def test_a_client_that_goes_gets_nothing() -> None:
    class Gone(Sender):
        async def receive(self) -> Message:
            return {"type": "http.disconnect"}

    sender = Gone([("content-length", "50")], [b"x"])
    assert sender.to(bodies()) == 0


def test_bodies_that_arrive_together_are_bounded() -> None:
    app = bodies()

    async def run() -> list[int]:
        slow = [Sender([("content-length", "90")], [b"x" * 45] * 2) for _ in range(6)]
        for each in slow:
            each.pause = 0.02
        await asyncio.gather(*(app(s.scope, s.receive, s.send) for s in slow))
        return sorted(each.status for each in slow)

    statuses = asyncio.run(run())
    assert set(statuses) == {200, 503}
    assert app._held == 0


# The gate.


async def test_who_drains_lets_in_nobody_and_waits_for_the_others() -> None:
    release = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await release.wait()
        await echo(scope, receive, send)

    gate = Gate(slow, answer)
    first, late = Sender(), Sender()
    running = asyncio.create_task(gate(first.scope, first.receive, first.send))
    await asyncio.sleep(0)
    assert gate.running == 1
    gate.draining = True
    await gate(late.scope, late.receive, late.send)
    assert late.status == 503
    assert int(late.header[b"retry-after"]) > 0
    assert not await gate.idle(0.01)
    release.set()
    assert await gate.idle(1)
    await running
    assert (first.status, gate.running) == (200, 0)


def test_what_is_no_request_passes_every_guard(ring: KeyRing) -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    closed = Gate(app, answer)
    closed.draining = True
    guards: list[ASGIApp] = [
        check_keys(app, answer, ring),
        closed,
        Requests(app, {}, lambda *each: None, True),
    ]
    for each in guards:
        sender = Sender()
        sender.scope["type"] = "lifespan"
        sender.to(each)
        assert seen.pop() == {**Sender().scope, "type": "lifespan"}
