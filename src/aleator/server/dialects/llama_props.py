"""``/props``: what the server is, as llama-server's clients ask."""

from __future__ import annotations

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


ROUTES = [
    Route("/props", props),
    Route("/props", change_props, methods=["POST"]),
]
