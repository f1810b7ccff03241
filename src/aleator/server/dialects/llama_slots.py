"""``/props`` and ``/slots``: what the server is, what is under way, and texts that are saved and restored."""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.server.auth import own_namespace
from aleator.server.bodies import body_of
from aleator.server.dialects.llama_results import settings, without_text
from aleator.server.errors import ApiError, not_built
from aleator.server.fields import Field, Fields, text, wrong
from aleator.server.service import Service
from aleator.server.slots import Slots
from aleator.text.vocabulary import Vocabulary

SALT = Field("cache_salt", text, "")
FILE = Fields(Field("filename", text, required=True), SALT, options={}, accepted={})
"""The body of an action with a file."""
NO_FILE = Fields(SALT, options={}, accepted={})
"""The body of an action without one; it may be empty."""
ACTIONS = ("save", "restore", "erase")


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


async def slots(request: Request) -> Response:
    """The slots, and what is under way in them; no text."""
    service: Service = request.app.state.service
    made: Slots = request.app.state.slots
    if not service.options.slots:
        raise not_built("the server was started with --no-slots")
    if request.query_params.get("fail_on_no_slot") and made.all_busy:
        raise ApiError(503, "no slot is free")
    return JSONResponse(made.described())


async def act(request: Request) -> Response:
    """Save, restore or erase a slot."""
    made: Slots = request.app.state.slots
    if not made.saves:
        raise not_built(
            "slots are not saved, restored or erased",
            "start the server with --slot-save-path DIRECTORY",
        )
    word = request.path_params["id_slot"]
    if not re.fullmatch("[0-9]{1,9}", word):
        raise wrong("id_slot", word, f"give a number, 0 to {made.n - 1}")
    number = int(word)
    action = request.query_params.get("action", "")
    if action not in ACTIONS:
        raise wrong("action", action, f"give {', '.join(ACTIONS)}")
    service: Service = request.app.state.service
    lenient = service.options.lenient
    if action == "erase":
        given = await body_of(request) if await request.body() else {}
        namespace = own_namespace(NO_FILE.read(given, lenient).own["cache_salt"])
        return JSONResponse({"id_slot": number, "n_erased": await made.erase(number, namespace)})
    own = FILE.read(await body_of(request), lenient).own
    name, namespace = own["filename"], own_namespace(own["cache_salt"])
    if action == "save":
        work, n_tokens, n_bytes, took = made.save, "n_saved", "n_written", "save_ms"
    else:
        work, n_tokens, n_bytes, took = made.restore, "n_restored", "n_read", "restore_ms"
    moved = await work(number, namespace, name)
    counts = {n_tokens: moved.tokens, n_bytes: moved.bytes}
    times = {took: 1e3 * moved.seconds}
    return JSONResponse({"id_slot": number, "filename": name, **counts, "timings": times})


ROUTES = [
    Route("/props", props),
    Route("/props", change_props, methods=["POST"]),
    Route("/slots", slots),
    Route("/slots/{id_slot}", act, methods=["POST"]),
]
