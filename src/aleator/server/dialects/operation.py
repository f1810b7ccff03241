"""``/health``, ``/metrics`` and ``/v1/models``: what runs here; and endpoints that are not here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.server.errors import ApiError, not_built
from aleator.server.service import Service
from aleator.server.telemetry import CONTENT_TYPE, Metrics

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


async def health(request: Request) -> Response:
    """Whether texts are made; needs no key, and says nothing else."""
    service: Service = request.app.state.service
    if service.engine.closed:
        raise ApiError(503, "the engine is closed", code="closed")
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
    names = [service.name, *service.adapters.names]
    return JSONResponse({"object": "list", "data": [described(service, name) for name in names]})


async def model(request: Request) -> Response:
    """One model, under any of its names."""
    service: Service = request.app.state.service
    return JSONResponse(described(service, service.check_model(request.path_params["name"])))


def described(service: Service, name: str) -> dict[str, Any]:
    """A model as OpenAI's list has it, with what llama.cpp (``meta``) and vLLM (``max_model_len``) add.

    An adapter is a model, too, whose ``parent`` is the one that it is added to.
    """
    model = service.model
    config = model.weights.config
    named = [each for each in service.adapters.loaded if each.name == name]
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "aleator",
        "aliases": [] if named else list(service.names),
        "root": named[0].path if named else name,
        "parent": service.name if named else None,
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


async def _refused(why: str, request: Request) -> Response:
    raise not_built(f"{request.url.path!r:.200}: {why}")


def _not_built(paths: Mapping[str, Sequence[str]]) -> list[Route]:
    """Endpoints that other servers of a dialect have and this one has not, by why they are not there.

    One rule for all: they, and what lies below them, answer 501 and say why.  Any other path is 404.
    """
    return [
        Route(each, partial(_refused, why), methods=METHODS)
        for why, those in paths.items()
        for path in those
        for each in (path, f"{path}/{{below:path}}")
    ]


NO_LLAMA_SERVER = _not_built(
    {
        "audio is not supported": ("/audio/transcriptions", "/v1/audio/transcriptions"),
        # GET /models is another endpoint's.
        "only aleator serve --models loads and unloads models": ("/models/load", "/models/unload"),
        "ask GET /models for the states of models": ("/models/sse",),
        "models are named when the server is started: -m or --models": ("/models",),
        "the server runs no tools, and speaks no MCP": ("/tools", "/mcp"),
        "the server fetches nothing from other servers": ("/cors-proxy",),
        "streams cannot be resumed": ("/v1/stream", "/v1/streams/lookup"),
        "a chat under way cannot be steered": ("/v1/chat/completions/control",),
    }
)
NO_OPENAI = _not_built(
    {
        "audio is not supported": ("/v1/audio",),
        "no pictures or videos are made": ("/v1/images", "/v1/videos"),
        "texts are not judged": ("/v1/moderations", "/v1/evals"),
        "there are no sessions: send requests, with stream for pieces": ("/v1/realtime",),
        "nothing is stored: send all that a request needs": (
            "/v1/files", "/v1/uploads", "/v1/conversations", "/v1/vector_stores", "/v1/containers",
            "/v1/assistants", "/v1/threads",
        ),
        "nothing is stored: send the requests, or run aleator batch": ("/v1/batches",),
        "models are not trained": ("/v1/fine_tuning",),
    }
)  # fmt: skip
NO_ANTHROPIC = _not_built(
    {
        "nothing is stored: send the requests": ("/v1/messages/batches",),
        "give /v1/messages the messages": ("/v1/complete",),
    }
)
NO_OLLAMA = _not_built(
    {
        "models are chosen when the server is started: aleator serve -m": (
            "/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs",
        ),
    }
)  # fmt: skip
NOT_BUILT = (*NO_LLAMA_SERVER, *NO_OPENAI, *NO_ANTHROPIC, *NO_OLLAMA)
"""All endpoints that are not here."""
