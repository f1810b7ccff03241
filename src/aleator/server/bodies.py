"""Request bodies from the network: limited in size and time, and parsed as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aleator.core.json_text import NestingError, loads
from aleator.server.errors import ApiError

P = ParamSpec("P")
R = TypeVar("R")

BODIES_AT_ONCE = 32
"""Most bodies of the largest size that may arrive at the same time, or wait for models to be loaded."""
QUICK = 1 << 16
"""Bytes of JSON that are parsed in the event loop; longer ones are parsed in another thread."""
FORM = "application/x-www-form-urlencoded"
"""The content type that ``curl -d`` sends by default, whatever the body."""
UTF8 = ("utf-8", "utf8", "us-ascii")

DRAIN_SECONDS = 1.0
"""Seconds for which the rest of an oversized body is discarded, so that its sender reads the answer."""

RETRY_BODIES = 1
"""Seconds after which to retry a request that found no room because of other bodies."""

Answer = Callable[[Scope, ApiError], ASGIApp]
"""Makes the response to a refused request, in the form of its path's dialect."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header with a name (lower case), without surrounding white space."""
    for each, value in scope["headers"]:
        if each == name:
            return bytes(value).strip()
    return None


class Bodies:
    """Reads a request's whole body before anything else happens, within limits of size and time."""

    def __init__(
        self, app: ASGIApp, answer: Answer, *, most_bytes: int, timeout: float, most_held: int
    ) -> None:
        self._app, self._answer = app, answer
        self._most_bytes, self._timeout = most_bytes, timeout
        self._most_held, self._held = max(most_held, most_bytes), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body and pass the request on, or answer 400, 408, 413 or 503."""
        if scope["type"] != "http" or not has_body(scope):
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
        except ClientDisconnect:
            return
        except ApiError as error:
            await self._answer(scope, error)(scope, receive, send)
            return
        await self._app(scope, once(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
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
                async for piece in Request(scope, receive).stream():
                    held += len(piece)
                    self._held += len(piece)
                    if held > self._most_bytes:
                        pieces.clear()
                        await self._discard(receive)
                        raise self._too_large()
                    if self._held > self._most_held:
                        raise no_room({"connection": "close"})
                    pieces.append(piece)
        except TimeoutError:
            raise ApiError(
                408,
                f"the body did not arrive within {self._timeout:g} s",
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
        """Read further data for a moment: a sender that is cut off does not read the answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(DRAIN_SECONDS, self._timeout)):
                while (await receive()).get("more_body", False):
                    pass


def no_room(headers: Mapping[str, str]) -> ApiError:
    """The error for a request whose body has no room beside those of others."""
    return ApiError(
        503,
        "the bodies of other requests take all room: ask again",
        headers={"retry-after": str(RETRY_BODIES), **headers},
    )


def has_body(scope: Scope) -> bool:
    """Whether a request has a body."""
    if header(scope, b"transfer-encoding") is not None:
        return True
    return (header(scope, b"content-length") or b"0") != b"0"


def once(body: bytes, receive: Receive) -> Receive:
    """Return a channel that receives the body, then what follows it."""
    left = [body]

    async def received() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return received


def check_content_type(headers: Headers) -> None:
    """Check that a body is declared as JSON in UTF-8.

    A browser sends texts and forms for any page without a preflight, and with the header Origin.  So a body
    that is declared as a form, or not declared, is accepted as JSON only without that header.
    """
    said = headers.get("content-type", "")
    kind, *parameters = (part.strip().lower() for part in said.split(";"))
    is_json = kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )
    if not is_json and ((said and kind != FORM) or "origin" in headers):
        raise not_taken(f"content-type {said!r:.80}" if said else "no content-type from a browser")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in UTF8:
            raise not_taken(f"content-type {said!r:.80}")
    encoded = headers.get("content-encoding", "identity").strip().lower()
    if encoded != "identity":
        raise not_taken(f"content-encoding {encoded!r:.80}")


async def body_of(request: Request) -> Any:
    """The parsed JSON of a request's body."""
    check_content_type(request.headers)
    # Not request.body(), which keeps the body as long as the request lives.
    data = b"".join([piece async for piece in request.stream()])
    if len(data) <= QUICK:
        return parsed(data)
    return await in_thread(parsed, data)


def not_taken(what: str) -> ApiError:
    """The error for a body that is not JSON in UTF-8."""
    return ApiError(
        415,
        f"{what} is not taken: send JSON in UTF-8, not compressed, with content-type: application/json",
        code="unsupported_media_type",
        headers={"accept": "application/json"},
    )


def parsed(data: bytes) -> Any:
    """Parse a body as JSON."""
    encoding = json.detect_encoding(data)
    if not encoding.startswith("utf-8"):
        raise not_taken(f"a body in {encoding.upper()}")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            twice = counts.most_common(1)[0][0]
            raise ApiError(400, f"{twice!r:.80} occurs twice in one object", code="invalid_json")
        return made

    def constant(word: str) -> float:
        raise ApiError(400, f"{word} is not JSON", code="invalid_json")

    try:
        return loads(data.decode(encoding), object_pairs_hook=once, parse_constant=constant)
    except NestingError as error:
        raise ApiError(400, str(error), error.field or None, "invalid_json") from None
    except UnicodeDecodeError as error:
        why = f"the body is not UTF-8: byte {data[error.start]:#04x} at {error.start}"
    except json.JSONDecodeError as error:
        why = f"the body is not JSON: {error}"
    except ValueError:  # Python's limit for integers
        why = f"a number has more than {sys.get_int_max_str_digits()} digits"
    raise ApiError(400, why, code="invalid_json")


async def in_thread(work: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
    """Run work in another thread that would block the event loop for too long."""

    def attempt() -> tuple[R, None] | tuple[None, Exception]:
        try:
            return work(*args, **named), None
        except Exception as error:
            return None, error

    # Returned, not raised: anyio's frames would hold the error, whose traceback holds them.
    done = await anyio.to_thread.run_sync(attempt)
    if done[1] is None:
        return done[0]
    try:
        raise done[1]
    finally:
        del done
