"""``/v1/responses``: OpenAI's Responses, made of a chat.

Nothing is stored: a request holds all that is to be read, and a response says ``"store": false``.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aleator.generate.generation import writing_of
from aleator.server.bodies import body_of
from aleator.server.chatting import ChatAnswer
from aleator.server.dialects.openai_errors import render_error as render_error
from aleator.server.dialects.openai_forms import dumps
from aleator.server.dialects.responses_input import FIELDS, STATELESS, repeated, request_of
from aleator.server.dialects.responses_output import Event, ResponseWriter
from aleator.server.dialects.timings import progressed, timings
from aleator.server.dialects.translated import in_words, with_records
from aleator.server.errors import ApiError, api_error
from aleator.server.fields import Body
from aleator.server.service import Service
from aleator.server.sse import EventStream, event, unless_gone

WORDS = {
    ".function.": ".",
    "json_schema": "text.format.schema",
    "messages": "input",
    "chat_template_kwargs has 'reasoning_effort'": "reasoning.effort",
    "chat_template_kwargs": "reasoning.effort",
}
"""What errors of a chat are called here."""


async def responses(request: Request) -> Response:
    """Answer items, at once or as a stream."""
    service: Service = request.app.state.service
    lenient = service.options.lenient
    body = FIELDS.read(await body_of(request), lenient)
    model = service.check_model(body.own["model"])
    asked = request_of(body, lenient)
    with in_words(WORDS, body):
        answer = await service.chat(asked)
    writer = ResponseWriter(
        secrets.token_hex(12), int(time.time()), _fixed(service, body, answer, model, lenient)
    )
    headers = {"x-aleator-seed": str(answer.seed)}
    if body.own["stream"]:
        return EventStream(
            _events(service, body, answer, writer),
            answer.cancel,
            lambda error: _written(writer.fail(api_error(error))),
            headers=headers,
        )
    for each in await unless_gone(request, answer.collected(), answer.cancel):
        writer.push(each)
    last = writer.end(answer.choices[0].stop or "stop", answer.usage)[-1]
    made = with_records(service, body, answer, last["response"]) | _times(body, answer)
    return JSONResponse(made, headers=headers)


async def input_tokens(request: Request) -> Response:
    """How many tokens the prompt of a response has; makes nothing."""
    service: Service = request.app.state.service
    lenient = service.options.lenient
    body = FIELDS.read(await body_of(request), lenient)
    service.check_model(body.own["model"])
    asked = request_of(body, lenient)
    with in_words(WORDS, body):
        tokens = await service.chat_tokens(asked)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": len(tokens)})


async def stored(request: Request) -> Response:
    """A stored response: there is none."""
    raise ApiError(404, STATELESS, "response_id", "not_found")


def _fixed(
    service: Service, body: Body, answer: ChatAnswer, model: str, lenient: bool
) -> dict[str, Any]:
    """What a response says from its beginning."""
    params = answer.choices[0].generation.request.params
    return {
        **repeated(body, lenient),
        "model": model,
        "seed": answer.seed,
        "system_fingerprint": service.fingerprint,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
    }


async def _events(
    service: Service, body: Body, answer: ChatAnswer, writer: ResponseWriter
) -> AsyncGenerator[bytes, None]:
    yield _written(writer.begin())
    if body.own["return_progress"]:
        async for progress in writing_of(answer.choices[0].generation).prompt_progress():
            about = progressed(progress, body.own["timings_per_token"])
            yield _written(writer.progress(about))
    async for events in answer.events():
        made = [each for event in events for each in writer.push(event)]
        for each in made:
            if each["type"].endswith(".delta"):
                each |= _times(body, answer)
        yield _written(made)
    end = writer.end(answer.choices[0].stop or "stop", answer.usage)
    with_records(service, body, answer, end[-1]["response"])
    end[-1] |= _times(body, answer)
    yield _written(end)


def _times(body: Body, answer: ChatAnswer) -> dict[str, Any]:
    """llama-server's ``timings`` so far, where a request asks for them."""
    if not body.own["timings_per_token"]:
        return {}
    choice = answer.choices[0]
    return {"timings": timings(choice.generation.stats, choice.completion_tokens)}


def _written(events: Iterable[Event]) -> bytes:
    return b"".join(event(dumps(each), each["type"]) for each in events)


ROUTES = [
    Route("/v1/responses", responses, methods=["POST"]),
    Route("/responses", responses, methods=["POST"]),
    Route("/v1/responses/input_tokens", input_tokens, methods=["POST"]),
    Route("/responses/input_tokens", input_tokens, methods=["POST"]),
    Route("/v1/responses/{name:path}", stored, methods=["GET", "DELETE", "POST"]),
]
