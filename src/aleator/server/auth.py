"""Access control: API keys, host names against requests forged by web pages, and a draining server.

Every request passes this before a dialect sees it, as pure ASGI middleware.  The order, outermost first:
draining (:class:`Gate`), names (:func:`check_hosts`), keys (:func:`check_keys`), bodies (bodies.py).
Connections themselves are limited in connections.py, the depth of JSON where it is parsed (fields.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aleator.core.errors import ParameterError
from aleator.engine.replay import Record
from aleator.generate.completion import one_time_namespace
from aleator.generate.generation import Generation
from aleator.language_model import LanguageModel
from aleator.server.bodies import Answer, header
from aleator.server.errors import ApiError

ALWAYS = ("/health", "/v1/health")
"""Paths that answer without a key and while the server drains: they only say whether it is healthy."""


class KeyRing:
    """API keys, compared in constant time."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key.encode(), b"aleator key") for key in dict.fromkeys(keys)]

    def __len__(self) -> int:
        return len(self._digests)

    @classmethod
    def of(cls, keys: Iterable[str] = (), file: str | None = None) -> KeyRing:
        """The keys in ``keys``, and those in a file with one per line.

        Empty lines and lines that begin with # are ignored.

        Raises:
            ParameterError: a key that no header can hold, or a file without keys.  Its message contains no key.
        """
        found = [("api_key", f"the {n}. key", key) for n, key in enumerate(keys, 1)]
        if file is not None:
            try:
                lines = [line.strip() for line in Path(file).read_text("utf-8").splitlines()]
            except UnicodeDecodeError:
                raise ParameterError("api_key_file", f"{file} is not a text file") from None
            own = {n: key for n, key in enumerate(lines, 1) if key and not key.startswith("#")}
            if not own:
                why = f"{file} has no key: write one on a line of its own"
                raise ParameterError("api_key_file", why)
            found += [("api_key_file", f"{file}, line {n}", key) for n, key in own.items()]
        for parameter, where, key in found:
            if not key or not all("!" <= letter <= "~" for letter in key):
                why = "a key is made of visible ASCII characters without spaces, one at least"
                raise ParameterError(parameter, f"{where}: {why}")
        return cls(key for _, _, key in found)

    def tenant(self, key: bytes | None) -> str | None:
        """The owner of a key; None if it is unknown.  Always compares with all keys."""
        if not self._digests:
            return ""
        wanted = _digest(key or b"", b"aleator key")
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, wanted)
        return _digest(key, b"aleator name").hex()[:32] if found and key else None


def _digest(data: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32, person=purpose).digest()


@dataclass
class Caller:
    """The caller, as a digest of the API key ("" without keys), and the generations started for the request."""

    tenant: str = ""
    begun: list[Generation] = field(default_factory=list)


_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)


def set_caller(caller: Caller) -> None:
    """Set the caller for everything that this task does from now on."""
    _caller.set(caller)


def current_caller() -> Caller:
    """The caller of the current request; outside of requests an anonymous one."""
    return _caller.get() or Caller()


def own_namespace(salt: str = "") -> str:
    """The caller's prompt-cache namespace; see :func:`namespace_of`."""
    return namespace_of(current_caller().tenant, salt)


def namespace_asked(own: Mapping[str, Any]) -> str:
    """The namespace for a request with these body fields; a new one with ``cache_prompt=false``."""
    if not own.get("cache_prompt", True):
        return one_time_namespace()
    return own_namespace(own.get("cache_salt", ""))


def namespace_of(tenant: str, salt: str = "") -> str:
    """The prompt-cache namespace of a tenant and a salt, which no others have; "" without either.

    Prompts share computed tokens only within a namespace.  So response times do not reveal what requests with
    another key or another salt have sent.
    """
    if not tenant and not salt:
        return ""
    salted = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{tenant}/{salted if salt else ''}"


def check_keys(app: ASGIApp, answer: Answer, ring: KeyRing) -> ASGIApp:
    """An application that lets in requests with a valid key, and notes the caller; others get 401."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        inner, caller = app, Caller()
        if scope["type"] == "http":
            tenant = ring.tenant(given_key(scope))
            if tenant is None and not needs_no_key(scope["path"]):
                error = ApiError(
                    401,
                    "a valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                    code="invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )
                inner = answer(scope, error)
            caller.tenant = tenant or ""
            set_caller(caller)
        try:
            await inner(scope, receive, send)
        finally:  # asyncio keeps the contexts of timers, cancelled ones too, and those an unloaded model
            caller.begun.clear()

    return checked


def needs_no_key(path: str) -> bool:
    """Whether a path needs no key: health, and the files of the playground's page, which asks for a key."""
    return path in ALWAYS or path == "/" or path.startswith("/playground/")


def given_key(scope: Scope) -> bytes | None:
    """The key that a request carries, if any."""
    value = header(scope, b"authorization")
    if value is not None:
        scheme, _, key = value.partition(b" ")
        return key.strip() if scheme.lower() == b"bearer" else None
    return header(scope, b"x-api-key")


def add_records(app: ASGIApp, model: LanguageModel) -> ASGIApp:
    """An application whose responses have the record of their first text in ``x-aleator-replay``.

    The other texts of a response differ from it in ``completion``.
    """

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        async def recorded(message: Message) -> None:
            begun = current_caller().begun
            if message["type"] == "http.response.start" and message["status"] == 200 and begun:
                with suppress(ParameterError):  # it cannot be reproduced
                    record = Record.of(begun[0], model).header()
                    own = (b"x-aleator-replay", record.encode("ascii"))
                    message["headers"] = [*message.get("headers", []), own]
            await send(message)

        await app(scope, receive, recorded)

    return answering


class Gate:
    """Counts running requests, and refuses new ones once the server drains."""

    def __init__(self, app: ASGIApp, answer: Answer) -> None:
        self._app, self._answer = app, answer
        self.draining = False
        self.running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 503."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self.draining:
            error = ApiError(
                503,
                "the server is shutting down: ask another one, or this one again when it is back",
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
        """Wait at most ``timeout`` seconds until no request is running; return whether none is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        return self._idle.is_set()


def check_hosts(
    app: ASGIApp, answer: Answer, names: Iterable[str] | None, origins: Iterable[str] = ()
) -> ASGIApp:
    """An application that refuses requests that a foreign web page made a browser send, with 400 or 403.

    A page can let its own name point to 127.0.0.1 (DNS rebinding); then the header Host has that name.  It can
    also send simple requests to any address without a preflight; then the header Origin has the page's origin.
    """
    known = None if names is None else frozenset(name.lower() for name in names)
    allowed = frozenset(origins)

    def refusal(scope: Scope) -> ApiError | None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) > 1 or (not hosts and scope.get("http_version") == "1.1"):
            return ApiError(400, f"a request has one header Host, and this one {len(hosts)}")
        host = hosts[0].decode("latin-1").strip() if hosts else ""
        if host and known is not None and host_name(host) not in known:
            return ApiError(
                403,
                f"Host {host!r:.80} is not a name of this server, which listens on this machine only: use "
                "127.0.0.1 or localhost, or start it with --allowed-host NAME",
                code="host_not_allowed",
            )
        origin = (header(scope, b"origin") or b"").decode("latin-1")
        if origin and "*" not in allowed and origin not in allowed:
            _, _, own = origin.partition("://")
            if not host or own.lower() != host.lower():
                return ApiError(
                    403,
                    f"pages of {origin!r:.80} may not use this server: start it with --cors-origin ORIGIN to "
                    "allow them",
                    code="origin_not_allowed",
                )
        return None

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        error = refusal(scope) if scope["type"] == "http" else None
        inner = app if error is None else answer(scope, error)
        await inner(scope, receive, send)

    return checked


def host_name(host: str) -> str:
    """A Host header without its port, in lower case; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def loopback_names(host: str, more: Iterable[str] = ()) -> tuple[str, ...] | None:
    """The values of Host that are allowed for a server that listens on ``host``; None: any.

    If the user allows ``more`` names, only these are allowed, whatever ``host`` is.
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
