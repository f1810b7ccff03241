"""What every request must pass before a dialect sees it: pure ASGI middleware.

The order, outermost first: requests while the server drains (:class:`Gate`), names that a browser was tricked
into (:class:`Hosts`), keys (:class:`Keys`), bodies (:class:`Bodies`).  Connections themselves are limited in
connections.py, the depth of JSON where it is read (fields.py).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterable
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aleator.server.auth import Caller, KeyRing, set_caller
from aleator.server.errors import ApiError

Answer = Callable[[Scope, ApiError], ASGIApp]
"""Makes the response to a refused request, in the shape of the dialect that its path belongs to."""

ALWAYS = ("/health", "/v1/health")
"""Paths that answer without a key and while the server drains: they say nothing but whether it is well."""

DRAIN_SECONDS = 1.0
"""How long the rest of a body that is too large is read and thrown away, so that its sender sees the answer."""

RETRY_BODIES = 1
"""Seconds after which a request is worth another try when the bodies of others take all room."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of a name (lower case), without white space around it."""
    for each, value in scope["headers"]:
        if each == name:
            return bytes(value).strip()
    return None


class Gate:
    """Counts requests under way, and lets no more in once the server drains."""

    def __init__(self, app: ASGIApp, answer: Answer) -> None:
        self._app, self._answer = app, answer
        self.draining = False
        self.running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer 503."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self.draining:
            error = ApiError(
                503,
                "the server is shutting down: ask another one, or this one again when it is back",
                kind="server_error",
                headers={"retry-after": "5", "connection": "close"},
            )
            await self._answer(scope, error)(scope, receive, send)
            return
        self.running += 1
        self._idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()

    async def idle(self, timeout: float) -> bool:
        """Wait until no request is under way; returns whether none is, after at most ``timeout`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        return self._idle.is_set()


class Hosts:
    """Refuses requests that a page of somebody else's made a browser send.

    A page can have its own name point to 127.0.0.1 (DNS rebinding): then the header Host has that name.  It can
    also send simple requests to any address without asking first: then the header Origin has the page's.
    """

    def __init__(
        self, app: ASGIApp, answer: Answer, names: Iterable[str] | None, origins: Iterable[str] = ()
    ) -> None:
        self._app, self._answer = app, answer
        self._names = None if names is None else frozenset(name.lower() for name in names)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer 400 or 403."""
        error = self._refusal(scope) if scope["type"] == "http" else None
        app = self._app if error is None else self._answer(scope, error)
        await app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) > 1 or (not hosts and scope.get("http_version") == "1.1"):
            return ApiError(400, f"a request has one header Host, and this one {len(hosts)}")
        host = hosts[0].decode("latin-1").strip() if hosts else ""
        if host and self._names is not None and host_name(host) not in self._names:
            return ApiError(
                403,
                f"Host {host!r:.80} is not a name of this server, which listens on this machine only: use "
                "127.0.0.1 or localhost, or start it with --allowed-host NAME",
                code="host_not_allowed",
                kind="permission_error",
            )
        origin = (header(scope, b"origin") or b"").decode("latin-1")
        if origin and "*" not in self._origins and origin not in self._origins:
            _, _, own = origin.partition("://")
            if not host or own.lower() != host.lower():
                return ApiError(
                    403,
                    f"pages of {origin!r:.80} may not use this server: start it with --cors-origin ORIGIN to "
                    "allow them",
                    code="origin_not_allowed",
                    kind="permission_error",
                )
        return None


def host_name(host: str) -> str:
    """A header Host without its port, in lower case; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def loopback_names(host: str, more: Iterable[str] = ()) -> tuple[str, ...] | None:
    """The values of Host that are allowed where a server listens; None: any.

    Args:
        host: The address or name that it listens on.
        more: Names that the user allows; where there are any, no others are, whatever ``host`` is.
    """
    own = ("localhost", "127.0.0.1", "::1", host_name(host))
    if is_loopback(host) or tuple(more):
        return (*own, *more)
    return None


def is_loopback(host: str) -> bool:
    """Whether an address or name can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


class Keys:
    """Lets in who has a key, and notes who it is (:mod:`aleator.server.auth`)."""

    def __init__(self, app: ASGIApp, answer: Answer, ring: KeyRing) -> None:
        self._app, self._answer, self._ring = app, answer, ring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer 401."""
        app = self._app
        if scope["type"] == "http":
            tenant = self._ring.tenant(given_key(scope))
            if tenant is None and not needs_no_key(scope["path"]):
                error = ApiError(
                    401,
                    "a valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                    code="invalid_api_key",
                    kind="authentication_error",
                    headers={"www-authenticate": "Bearer"},
                )
                app = self._answer(scope, error)
            set_caller(Caller(tenant or ""))
        await app(scope, receive, send)


def needs_no_key(path: str) -> bool:
    """Whether a path is for everybody: health, and the files of the playground's page, which asks for a key."""
    return path in ALWAYS or path == "/" or path.startswith("/playground/")


def given_key(scope: Scope) -> bytes | None:
    """The key that a request brings, if any."""
    value = header(scope, b"authorization")
    if value is not None:
        scheme, _, key = value.partition(b" ")
        return key.strip() if scheme.lower() == b"bearer" else None
    return header(scope, b"x-api-key")


class Bodies:
    """Reads a request's body whole before anything else happens, within limits of size and time."""

    def __init__(
        self, app: ASGIApp, answer: Answer, *, most_bytes: int, timeout: float, most_held: int
    ) -> None:
        self._app, self._answer = app, answer
        self._most_bytes, self._timeout = most_bytes, timeout
        self._most_held, self._held = max(most_held, most_bytes), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, and let the request in, or answer 400, 408, 413 or 503."""
        if scope["type"] != "http" or not has_body(scope):
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
        except ApiError as error:
            await self._answer(scope, error)(scope, receive, send)
            return
        if body is None:  # the client has gone
            return
        await self._app(scope, _once(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        announced = header(scope, b"content-length") or b"0"
        if not announced.isdigit():
            raise ApiError(400, f"Content-Length {announced[:40]!r} is not a number")
        if int(announced) > self._most_bytes:
            await self._discard(receive)
            raise self._too_large()
        pieces: list[bytes] = []
        held = 0
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    piece = message.get("body", b"")
                    held += len(piece)
                    self._held += len(piece)
                    if held > self._most_bytes:
                        pieces.clear()
                        await self._discard(receive)
                        raise self._too_large()
                    if self._held > self._most_held:
                        raise ApiError(
                            503,
                            "the bodies of other requests take all room: ask again",
                            kind="server_error",
                            headers={"retry-after": str(RETRY_BODIES), "connection": "close"},
                        )
                    pieces.append(piece)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise ApiError(
                408,
                f"the body did not arrive within {self._timeout:g} s",
                kind="timeout_error",
                headers={"connection": "close"},
            ) from None
        finally:
            self._held -= held
        return b"".join(pieces)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body is larger than {self._most_bytes} bytes: shorten it, or start the server with a larger "
            "--max-body-bytes",
            code="body_too_large",
            headers={"connection": "close"},
        )

    async def _discard(self, receive: Receive) -> None:
        """Read what still comes, for a moment: a sender who is cut off does not read the answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(DRAIN_SECONDS, self._timeout)):
                while (await receive()).get("more_body", False):
                    pass


def has_body(scope: Scope) -> bool:
    """Whether a request comes with a body."""
    if header(scope, b"transfer-encoding") is not None:
        return True
    return (header(scope, b"content-length") or b"0") != b"0"


def _once(body: bytes, receive: Receive) -> Receive:
    """Receives a body, and then what follows."""
    left = [body]

    async def received() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return received
