"""Bodies: read once, and let go of."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from starlette.requests import Request

from aleator.server.bodies import QUICK, body_of, parsed
from aleator.server.errors import ApiError


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


def test_a_number_with_too_many_digits_is_told_in_words_of_the_request() -> None:
    with pytest.raises(ApiError, match=r"^a number has more than [0-9]+ digits$") as refused:
        parsed(b'{"seed": ' + b"9" * 10_000 + b"}")
    assert refused.value.status == 400
