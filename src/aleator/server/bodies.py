"""Bodies of requests as they come over the network."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.requests import Request

from aleator.server.errors import ApiError

P = ParamSpec("P")
R = TypeVar("R")

QUICK = 1 << 16
"""Bytes of JSON that are read where they are; longer ones are read in another thread."""
FORM = "application/x-www-form-urlencoded"
"""What ``curl -d`` says of any body where nobody tells it otherwise."""
UTF8 = ("utf-8", "utf8", "us-ascii")


def check_content_type(headers: Headers) -> None:
    """See that a body is said to be JSON in UTF-8.

    A browser sends texts and forms for any page without asking the server first, and with the header Origin: so
    a body that is said to be a form, or nothing, is taken for JSON only where there is no such header.
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
    """The JSON of a request's body."""
    check_content_type(request.headers)
    # Not request.body(), which keeps it for as long as the request lives.
    data = b"".join([piece async for piece in request.stream()])
    if len(data) <= QUICK:
        return parsed(data)
    return await in_thread(parsed, data)


def not_taken(what: str) -> ApiError:
    """The error for a body of another kind than JSON in UTF-8."""
    return ApiError(
        415,
        f"{what} is not taken: send JSON in UTF-8, not compressed, with content-type: application/json",
        code="unsupported_media_type",
        headers={"accept": "application/json"},
    )


def parsed(data: bytes) -> Any:
    """The JSON of a body."""
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
        return json.loads(data.decode(encoding), object_pairs_hook=once, parse_constant=constant)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None
    except UnicodeDecodeError as error:
        raise ApiError(
            400,
            f"the body is not UTF-8: byte {data[error.start]:#04x} at {error.start}",
            code="invalid_json",
        ) from None
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None


async def in_thread(work: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
    """Do something that takes longer than the event loop can wait, in another thread."""
    return await anyio.to_thread.run_sync(lambda: work(*args, **named))
