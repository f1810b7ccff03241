"""``/lora-adapters``: llama-server's adapters, and their scales in requests that say nothing of them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.server.adapters import by_name, scales_of
from aleator.server.bodies import body_of
from aleator.server.service import Service


async def adapters(request: Request) -> Response:
    """All adapters, by their numbers."""
    service: Service = request.app.state.service
    mine, tokenizer = service.adapters, service.model.tokenizer
    made: list[dict[str, Any]] = [
        {"id": i, "path": each.path, "scale": scale, **each.about}
        for i, (each, scale) in enumerate(zip(mine.loaded, mine.scales, strict=True))
    ]
    for entry, each in zip(made, mine.loaded, strict=True):
        if each.invocation:
            text = tokenizer.vocab.has_text and tokenizer.decode(each.invocation, at_start=False)
            entry["alora_invocation_string"] = text or ""
            entry["alora_invocation_tokens"] = each.invocation
    return JSONResponse(made)


async def change(request: Request) -> Response:
    """Set the scales; requests under way go on with theirs."""
    service: Service = request.app.state.service
    mine = service.adapters
    named = by_name(scales_of("lora", await body_of(request)), mine)
    mine.use([named.get(name, 0.0) for name in mine.names])
    return JSONResponse({"success": True})


ROUTES = [
    Route("/lora-adapters", adapters),
    Route("/lora-adapters", change, methods=["POST"]),
]
