"""Ollama's endpoints: chats, prompts and vectors, and what it says of models."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.chat.reply import Reply
from aleator.core.version import __version__
from aleator.server.accepted import Accepted
from aleator.server.auth import own_namespace
from aleator.server.bodies import body_of, in_thread
from aleator.server.chat import ChatAnswer, ChatChoice, ChatRequest
from aleator.server.dialects import ollama_input
from aleator.server.dialects.embeddings import check_dimensions, texts_of
from aleator.server.dialects.nested import fitting, in_words, with_records
from aleator.server.dialects.ollama_output import NANO, OllamaWriter, listed, running, shown
from aleator.server.errors import ApiError, api_error
from aleator.server.fields import Body, Field, Fields, text, whole, wrong
from aleator.server.service import Service
from aleator.server.streaming import EventStream, dumps, unless_gone

LATEST = ":latest"
LINES = "application/x-ndjson"
WORDS = {
    "json_schema": "format",
    "reasoning_budget": "think",
    "enable_thinking": "think",
    "chat_template_kwargs has 'reasoning_effort'": "think",
    "chat_template_kwargs": "think",
}
"""What errors of a chat are called here."""

EMBED = Fields(
    Field("model", text, required=True),
    Field("input", texts_of, required=True),
    Field("dimensions", whole(1, 2**31 - 1)),
    options={},
    accepted={
        "keep_alive": ollama_input.REQUEST["keep_alive"],
        "truncate": ollama_input.REQUEST["truncate"],
        "options": Accepted("vectors have no options", ({},)),
    },
)
SHOW = Fields(
    Field("model", text, required=True, aliases=("name",)),
    options={},
    accepted={
        "verbose": Accepted("everything is shown"),
        "system": Accepted("give a system message with each request", ("",)),
        "template": Accepted(
            "templates are chosen at the start: aleator serve --chat-template", ("",)
        ),
        "options": Accepted("give options with each request", ({},)),
    },
)


def render_error(error: ApiError) -> dict[str, Any]:
    """The body of a response that is an error."""
    return {"error": error.message}


async def chat(request: Request) -> Response:
    """Answer messages; a stream unless the request says otherwise."""
    service, body, writer = await _read(request, ollama_input.CHAT, chat=True)
    if not body.own["messages"]:
        return JSONResponse(writer.nothing("load"))
    asked = ollama_input.chat_of(body, service.model.n_ctx, service.options.lenient)
    return await _answered(request, body, writer, asked)


async def generate(request: Request) -> Response:
    """Go on from a prompt: from a chat with this one message, or from the text as it is."""
    service, body, writer = await _read(request, ollama_input.GENERATION)
    lenient = service.options.lenient
    if not body.own["prompt"] and not body.own["raw"]:
        return JSONResponse(writer.nothing("load"))
    if not body.own["raw"]:
        asked = ollama_input.generation_of(body, service.model.n_ctx, lenient)
        return await _answered(request, body, writer, asked)
    for name in ("system", "think"):
        if body.own[name]:
            raise wrong(name, body.own[name], "with raw=true the prompt is all that is read")
    options = ollama_input.options_of(body, service.model.n_ctx, lenient)
    with in_words(WORDS, body):
        made = await service.submit(
            body.own["prompt"],
            {**options, "parse_special": True},
            deadline=body.own["deadline"],
            namespace=own_namespace(body.own["cache_salt"]),
        )
    return await _written(request, body, writer, ChatAnswer([ChatChoice(0, made[0], Reply(None))]))


async def _read(
    request: Request, fields: Fields, chat: bool = False
) -> tuple[Service, Body, OllamaWriter]:
    """The service, what a body says, and what writes the answer; the model's tag may be left out."""
    service: Service = request.app.state.service
    body = fields.read(await body_of(request), service.options.lenient)
    name: str = body.own["model"]
    service.check_model(name.removesuffix(LATEST))
    return service, body, OllamaWriter(name, chat)


async def _answered(
    request: Request, body: Body, writer: OllamaWriter, asked: ChatRequest
) -> Response:
    service: Service = request.app.state.service
    with in_words(WORDS, body):
        answer = await service.chat(fitting(asked, service))
    return await _written(request, body, writer, answer)


async def _written(
    request: Request, body: Body, writer: OllamaWriter, answer: ChatAnswer
) -> Response:
    service: Service = request.app.state.service
    headers = {"x-aleator-seed": str(answer.seed)}
    if body.own["stream"]:
        return EventStream(
            _lines(service, body, answer, writer),
            answer.cancel,
            _failed,
            headers=headers,
            media_type=LINES,
            comment=b"",
        )
    for event in await unless_gone(request, answer.collected(), answer.cancel):
        writer.push(event)
    made = with_records(service, body, answer, _last(answer, writer, whole=True))
    return JSONResponse(made, headers=headers)


async def _lines(
    service: Service, body: Body, answer: ChatAnswer, writer: OllamaWriter
) -> AsyncGenerator[bytes, None]:
    async for events in answer.events():
        lines = [line for event in events for line in writer.push(event)]
        if lines:
            yield b"".join(map(_line, lines))
    yield _line(with_records(service, body, answer, _last(answer, writer)))


def _last(answer: ChatAnswer, writer: OllamaWriter, whole: bool = False) -> dict[str, Any]:
    choice = answer.choices[0]
    return writer.end(choice.stop or "stop", answer.usage, choice.generation.stats, whole)


def _line(made: Mapping[str, Any]) -> bytes:
    return dumps(made).encode() + b"\n"


def _failed(error: BaseException) -> bytes:
    return _line(render_error(api_error(error)))


async def embed(request: Request) -> Response:
    """Vectors of texts."""
    began = time.perf_counter()
    service, body, _ = await _read(request, EMBED)
    check_dimensions(service, body.own["dimensions"])
    vectors, n_tokens = await service.embed("input", body.own["input"], "mean", True)
    made = {
        "model": body.own["model"],
        "embeddings": await in_thread(vectors.tolist),
        "total_duration": int((time.perf_counter() - began) * NANO),
        "load_duration": 0,
        "prompt_eval_count": n_tokens,
    }
    return JSONResponse(made)


async def tags(request: Request) -> Response:
    """The list of models."""
    return JSONResponse({"models": [await in_thread(listed, request.app.state.service)]})


async def running_models(request: Request) -> Response:
    """The list of models in memory."""
    return JSONResponse({"models": [await in_thread(running, request.app.state.service)]})


async def show(request: Request) -> Response:
    """What is known of a model."""
    service, _, _ = await _read(request, SHOW)
    return JSONResponse(await in_thread(shown, service))


async def version(request: Request) -> Response:
    """The version of the package."""
    return JSONResponse({"version": __version__})


ROUTES = [
    Route("/api/chat", chat, methods=["POST"]),
    Route("/api/generate", generate, methods=["POST"]),
    Route("/api/embed", embed, methods=["POST"]),
    Route("/api/tags", tags),
    Route("/api/ps", running_models),
    Route("/api/show", show, methods=["POST"]),
    Route("/api/version", version),
]
