"""``/v1/models``: the one model that is served."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.server.dialects.openai_errors import render_error as render_error
from aleator.server.service import Service


async def models(request: Request) -> Response:
    """The list of models."""
    service: Service = request.app.state.service
    return JSONResponse({"object": "list", "data": [described(service, service.name)]})


async def model(request: Request) -> Response:
    """One model, under any of its names."""
    service: Service = request.app.state.service
    return JSONResponse(described(service, service.check_model(request.path_params["name"])))


def described(service: Service, name: str) -> dict[str, Any]:
    """A model as OpenAI's list has it, with what llama.cpp (``meta``) and vLLM (``max_model_len``) add."""
    model = service.model
    config = model.weights.config
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "aleator",
        "aliases": list(service.names),
        "max_model_len": model.n_ctx,
        "meta": {
            "architecture": config.architecture,
            "n_vocab": len(model.vocab),
            "n_ctx": model.n_ctx,
            "n_ctx_train": config.context_length,
            "n_embd": config.n_embd,
            "n_params": model.weights.n_parameters,
        },
    }


ROUTES = [
    Route("/v1/models", models),
    Route("/models", models),
    Route("/v1/models/{name:path}", model),
]
