"""Bodies: read once, and let go of."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from aleator.server.bodies import QUICK, Bodies, body_of, parsed
from aleator.server.errors import ApiError


def piece(length: int) -> dict[str, Any]:
    return {"type": "http.request", "body": b"x" * length, "more_body": True}


async def given(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return messages.pop(0)


async def taken(sent: list[dict[str, Any]], message: Any) -> None:
    sent.append(message)


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("the request is passed on")


def refusal(scope: Any, error: ApiError) -> PlainTextResponse:
    return PlainTextResponse(str(error), error.status)


def test_a_body_is_let_go_of_once_it_is_read() -> None:
    for length in (10, QUICK + 10):
        pieces = [b'{"user": "', b"x" * length, b'"}']
        messages = [
            {"type": "http.request", "body": each, "more_body": i < 2}
            for i, each in enumerate(pieces)
        ]

        async def receive(messages: list[dict[str, Any]] = messages) -> dict[str, Any]:
            return messages.pop(0)

        request = Request({"type": "http", "method": "POST", "headers": []}, receive)
        assert asyncio.run(body_of(request)) == {"user": "x" * length}
        del pieces
        assert not any(
            isinstance(each, bytes) and len(each) >= length
            for each in gc.get_referents(vars(request))
        )


@pytest.mark.parametrize(
    ("last", "status"), [({"type": "http.disconnect"}, None), (piece(700), 413), (piece(400), 503)]
)
def test_a_body_that_is_not_read_to_its_end_leaves_nothing(
    last: dict[str, Any], status: int | None
) -> None:
    """Nothing that only a collection frees."""
    sent: list[dict[str, Any]] = []

    async def read(n: int) -> None:
        bodies = Bodies(refuse, refusal, most_bytes=1000, timeout=9, most_held=1000)
        bodies._held = 200  # others'
        for _ in range(n):
            messages = [piece(500), last, {"type": "http.request"}]
            scope = {"type": "http", "headers": [(b"transfer-encoding", b"chunked")]}
            await bodies(scope, partial(given, messages), partial(taken, sent))
            await asyncio.sleep(0)
            assert bodies._held == 200

    asyncio.run(read(1))
    gc.collect()
    gc.disable()
    try:
        asyncio.run(read(9))
        few = gc.collect()
        asyncio.run(read(99))
        assert gc.collect() == few  # asyncio's own
    finally:
        gc.enable()
    found = [each["status"] for each in sent if "status" in each]
    assert found == ([] if status is None else [status] * 109)


def test_a_number_with_too_many_digits_is_told_in_words_of_the_request() -> None:
    with pytest.raises(ApiError, match=r"^a number has more than [0-9]+ digits$") as refused:
        parsed(b'{"seed": ' + b"9" * 10_000 + b"}")
    assert refused.value.status == 400
