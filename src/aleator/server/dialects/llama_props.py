"""``/props``: what the server is, as llama-server's clients ask; and endpoints that are not built."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.server.dialects.llama_errors import not_built
from aleator.server.dialects.llama_errors import render_error as render_error
from aleator.server.dialects.llama_results import settings, without_text
from aleator.server.service import Service
from aleator.server.slots import Slots
from aleator.text.vocabulary import Vocabulary

RERANK, LORA = "documents are not reranked", "LoRA adapters are not supported"
AUDIO, ROUTER = "audio is not supported", "one server serves one model"
NOT_BUILT = {
    "/rerank": RERANK,
    "/reranking": RERANK,
    "/v1/rerank": RERANK,
    "/v1/reranking": RERANK,
    "/lora-adapters": LORA,
    "/audio/transcriptions": AUDIO,
    "/v1/audio/transcriptions": AUDIO,
    "/models/load": ROUTER,
    "/models/unload": ROUTER,
    "/models/sse": ROUTER,
    "/tools": "the server runs no tools, and speaks no MCP",
    "/cors-proxy": "the server fetches nothing from other servers",
    "/v1/stream": "streams cannot be resumed",
    "/v1/streams/lookup": "streams cannot be resumed",
    "/v1/chat/completions/control": "a chat under way cannot be steered",
}
"""Endpoints of llama-server that there are not, and why."""


async def props(request: Request) -> Response:
    """What the server is, and what a request gets that says nothing."""
    service: Service = request.app.state.service
    slots: Slots = request.app.state.slots
    model, vocab = service.model, service.model.vocab
    params, options = service.effective()
    about = {
        "stream": False,
        "n_probs": 0,
        "timings_per_token": False,
        "post_sampling_probs": False,
    }
    made: dict[str, Any] = {
        "default_generation_settings": {
            "params": without_text(settings(params, options, model.tokenizer, about)),
            "n_ctx": slots.n_ctx,
        },
        "total_slots": slots.n,
        "model_alias": service.name,
        "model_path": str(model.weights.path),
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": service.options.slots,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": service.options.chat_template or vocab.chat_template or "",
        "bos_token": _text(vocab, vocab.bos),
        "eos_token": _text(vocab, vocab.eos),
        "build_info": service.fingerprint,
        "is_sleeping": False,
    }
    return JSONResponse(made)


def _text(vocab: Vocabulary, token: int | None) -> str:
    return "" if token is None or not vocab.has_text else vocab.text(token)


async def change_props(request: Request) -> Response:
    """Refused: properties are the server's options."""
    raise not_built("properties cannot be changed", "give them when the server is started")


def _refused(why: str) -> Callable[[Request], Awaitable[Response]]:
    async def refused(request: Request) -> Response:
        raise not_built(f"{request.url.path}: {why}")

    return refused


ROUTES = [
    Route("/props", props),
    Route("/props", change_props, methods=["POST"]),
    *(
        Route(path, _refused(why), methods=["GET", "POST", "DELETE"])
        for path, why in NOT_BUILT.items()
    ),
]
