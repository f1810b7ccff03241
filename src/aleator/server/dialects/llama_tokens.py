"""Tokens and templates: ``/tokenize``, ``/detokenize``, ``/apply-template``, and vLLM's forms of them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.chat.message import checked_messages, checked_tools, chosen_tools
from aleator.core.errors import ParameterError
from aleator.server import fields
from aleator.server.bodies import in_thread
from aleator.server.dialects.llama_fields import LLAMA_ACCEPTED, prompt_of, tokens_of
from aleator.server.fields import MOST_COMPLETIONS, OPTIONS, Body, Field, Fields, own_fields
from aleator.server.service import Service, read_body
from aleator.text.rendered import Rendered

TEMPLATE = (
    Field("model", fields.text),
    Field("tools", fields.listing),
    Field("tool_choice", fields.anything),
    Field("add_generation_prompt", fields.switch, True),
    Field("chat_template_kwargs", fields.mapping),
    Field("enable_thinking", fields.switch),
)
"""Fields that affect what a template writes."""

TOKENIZE = own_fields(
    *TEMPLATE,
    Field("content", prompt_of),
    Field("add_special", fields.switch, False),
    Field("parse_special", fields.switch, True),
    Field("with_pieces", fields.switch, False),
    Field("prompt", prompt_of),
    Field("messages", fields.listing),
    Field("add_special_tokens", fields.switch),
    Field("return_token_strs", fields.switch, False),
)
DETOKENIZE = own_fields(
    Field("model", fields.text),
    Field("tokens", fields.list_of(fields.whole(0, 2**31 - 1)), required=True),
)
APPLY = Fields(
    *TEMPLATE,
    Field("messages", fields.listing, required=True),
    Field("stream", fields.switch),
    Field("n", fields.whole(1, MOST_COMPLETIONS)),
    Field("response_format", fields.mapping),
    options=OPTIONS,
    accepted={n: a for n, a in LLAMA_ACCEPTED.items() if n != "stream_options"},
)
"""The fields of ``/apply-template``: those of a chat, of which only the template's part matters here."""


async def tokenize(request: Request) -> Response:
    """Return the tokens of ``content`` in llama-server's form, or of ``prompt`` or ``messages`` in vLLM's."""
    service, body = await read_body(request, TOKENIZE)
    own, model = body.own, service.model
    given = fields.only_one(own, "content", "prompt", "messages")
    if own["messages"] is not None:
        rendered = await in_thread(_rendered, service, body)
        ids: list[int] = await in_thread(service.chat_format.tokens, rendered)
    else:
        special = own["add_special_tokens"]
        if special is None:
            special = own["add_special"] or given == "prompt"
        ids = await in_thread(
            tokens_of,
            model.tokenizer,
            own[given],
            own["parse_special"],
            add_special=special,
            to_continue=False,
        )
    fields.known_ids(given, ids, len(model.vocab))
    if given == "content":
        if not own["with_pieces"]:
            return JSONResponse({"tokens": ids})
        pieces = [{"id": token, "piece": _piece(model.vocab.token_bytes(token))} for token in ids]
        return JSONResponse({"tokens": pieces})
    made: dict[str, Any] = {"count": len(ids), "max_model_len": model.n_ctx, "tokens": ids}
    if own["return_token_strs"]:
        made["token_strs"] = [model.vocab.text(token) for token in ids]
    return JSONResponse(made)


def _piece(raw: bytes) -> str | list[int]:
    """The text of a token, or its bytes if they are not valid text."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def detokenize(request: Request) -> Response:
    """Return the text of tokens, of control tokens too, in llama-server's ``content`` or vLLM's ``prompt``."""
    service, body = await read_body(request, DETOKENIZE)
    own = body.own
    fields.known_ids("tokens", own["tokens"], len(service.model.vocab))
    made = await in_thread(service.model.tokenizer.decode, own["tokens"], at_start=False)
    return JSONResponse({"content": made, "prompt": made})


async def apply_template(request: Request) -> Response:
    """Return a chat's messages as text for ``/completion``; names of control tokens in them are text."""
    service, body = await read_body(request, APPLY)
    return JSONResponse({"prompt": (await in_thread(_rendered, service, body)).text})


def _rendered(service: Service, body: Body) -> Rendered:
    """Messages rendered with the template."""
    own, chat_format = body.own, service.chat_format
    seen, _ = chosen_tools(own["tool_choice"], checked_tools(own["tools"]))
    if seen and not chat_format.shows_tools:
        raise ParameterError("tools: this chat template does not show tools to the model")
    variables = chat_format.arguments(own["enable_thinking"], own["chat_template_kwargs"])
    variables["add_generation_prompt"] = own["add_generation_prompt"]
    messages = checked_messages(own["messages"])
    return chat_format.rendered(messages, [tool for tool, _ in seen], variables)


async def tokenizer_info(request: Request) -> Response:
    """Return vLLM's description of a tokenizer, which evaluation harnesses request."""
    service: Service = request.app.state.service
    vocab, special = service.model.vocab, service.model.vocab.special
    made: dict[str, Any] = {
        "tokenizer_class": "aleator",
        "kind": vocab.kind,
        "vocab_size": len(vocab),
        "model_max_length": service.model.n_ctx,
        "add_bos_token": vocab.add_bos,
        "add_eos_token": vocab.add_eos,
        "chat_template": service.options.chat_template or vocab.chat_template,
    }
    for name in ("bos", "eos", "unk", "pad"):
        token: int | None = getattr(special, name)
        made[f"{name}_token"] = None if token is None else vocab.text(token)
        made[f"{name}_token_id"] = token
    return JSONResponse(made)


ROUTES = [
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/apply-template", apply_template, methods=["POST"]),
    Route("/tokenizer_info", tokenizer_info),
]
