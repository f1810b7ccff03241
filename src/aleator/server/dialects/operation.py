"""``/health``, ``/metrics`` and ``/v1/models``: what runs here."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.server.errors import ApiError
from aleator.server.metrics import CONTENT_TYPE, Metrics
from aleator.server.service import Service


async def health(request: Request) -> Response:
    """Whether texts are made; needs no key, and says nothing else."""
    service: Service = request.app.state.service
    if service.engine.closed:
        raise ApiError(503, "the engine is closed", code="closed", kind="server_error")
    return JSONResponse({"status": "ok"}, headers={"cache-control": "no-store"})


async def metrics(request: Request) -> Response:
    """Figures in Prometheus' text form."""
    shown: Metrics = request.app.state.metrics
    service: Service = request.app.state.service
    began = {"process-start-time-unix": str(service.started)}  # as llama-server has it
    return Response(shown.page(), media_type=CONTENT_TYPE, headers=began)


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
    Route("/health", health),
    Route("/v1/health", health),
    Route("/metrics", metrics),
    Route("/v1/models", models),
    Route("/models", models),
    Route("/v1/models/{name:path}", model),
]
